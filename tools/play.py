"""Play the roles of a task by hand, alone or in a team with a trained model: python -m tools.play TASK [--team RUN].

The boards are those of the default run; KEY=VALUE changes them. The way of an answer is drawn with arrows: ^ v < >.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

from envs import Env, Message, Reward, mixed_reward
from options import parse
from records.console import errors_in_one_line, say
from sampling.requests import Request, request_seed
from tasks import sandbox
from tasks.boards import parse_answer, with_arrows
from tasks.levels import make_levels
from tasks.registry import TASKS

HINTS = 8  # answers that "?" shows
ASKED = itertools.count(1)  # questions to the team, each with a seed of its own


def read_answer() -> str:
    """One answer: up to an answer line, a closing fence or an empty line. "" at the end of the input."""
    text = ""
    for line in sys.stdin:
        text += line
        fenced = len(re.findall(r"^\s*```", text, re.M)) % 2
        ended = line.strip()[:3] in ("", "```") or parse_answer(text) is not None or text.strip() == "?"
        if text.strip() and ended and not fenced:
            break
    return text.strip()


def in_words(reward: Reward) -> str:
    parts = {"team": reward.team, "local": reward.local, **reward.info}
    return " ".join(f"{name}={value:.2f}" for name, value in parts.items())


def best_of(env: Env, agent: str, texts: Sequence[str]) -> str:
    """The best answer (ties: the first). Shows what each earns."""
    rewards = [env.copy().step(agent, text) for text in texts]
    best = max(range(len(texts)), key=lambda k: mixed_reward(rewards[k]))
    for k, text in enumerate(texts):
        say(f"{'*' if k == best else ' '} {in_words(rewards[k])}  {' '.join(text.split())[:60]}")
    return texts[best]


def ask(team: Any, agent: str, messages: list[Message], k: int) -> list[str]:
    """k sampled answers of a `Team`; 0: the greedy one."""
    request = Request(agent, team.encode(agent, messages), request_seed([0], 0, next(ASKED), 0, max(k, 1)))
    (replies,) = team.sampler(1.0 if k else 0.0)([request], max(k, 1))
    if not replies:
        raise ValueError("the prompt is too long for the model")
    return [team.decode(agent, reply.ids) for reply in replies]


def play(env: Env, team: Any, mine: list[str], candidates: int, turns: int) -> None:
    for turn in itertools.takewhile(lambda _: not env.done, range(turns)):
        say(f"\nturn {turn + 1}\n{env.render()}".rstrip())
        for agents in env.stages:
            prompts = {agent: env.observe(agent) for agent in agents}
            for agent in itertools.takewhile(lambda _: not env.done, agents):
                if agent in mine or not team:
                    for message in prompts[agent]:
                        if turn == 0 or message["role"] != "system":  # the rules once
                            shown = message["content"].replace(env.render() or "\0", "(the board above)")
                            say(f"\n[{agent}: {message['role']}]\n{shown}")
                    while (answer := read_answer()) == "?" and team:
                        best_of(env, agent, ask(team, agent, prompts[agent], HINTS))
                    if not answer:
                        return say("\nEnd of input.")
                else:
                    texts = ask(team, agent, prompts[agent], candidates)
                    answer = best_of(env, agent, texts) if candidates else texts[0]
                    say(f"\n[{agent} of the team]\n{answer.strip()}")
                board = env.picture()
                say(f"-> {in_words(env.step(agent, answer))}")
                if len(env.way) > 1:
                    say(with_arrows(board, env.way))
    say(f"\n{env.render()}".rstrip())
    say("Solved." if env.solved else "The task has ended unsolved." if env.done else "The turns are over: unsolved.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the roles of a task by hand: read a prompt, write an answer, see what it is worth."""
    more = "--workflow single, --max-turns 3, --eval-data FILE and all other options of train.py work here too"
    parser = argparse.ArgumentParser(prog="python -m tools.play", description=main.__doc__, epilog=more)
    parser.add_argument("task", help=f"{', '.join(TASKS)}, or file.py:Class; KEY=VALUE after it: its options")
    parser.add_argument("--seed", type=int, default=0, help="which level or problem")
    parser.add_argument("--team", metavar="RUN", help="a run or a model that plays the roles you do not take")
    parser.add_argument("--as", dest="roles", nargs="+", default=[], metavar="ROLE", help="your roles beside --team")
    parser.add_argument("--candidates", type=int, default=0, metavar="K", help="the team takes the best of K answers")
    given, words = parser.parse_known_args(arguments)
    pairs = [word for word in words if re.match(r"\w+=", word)]
    argv = ["--task", given.task, *(word for word in words if word not in pairs)]
    argv += ["--env-options", *pairs] if pairs else []
    with errors_in_one_line("tools.play"):
        team: Any = None
        if not given.team:
            if given.roles or given.candidates:
                raise ValueError("--as and --candidates need --team: without one you play all roles")
            config = parse(argv)
            data = config.eval_data or config.data
            options = config.task, config.workflow, config.env_options, "", data, config.max_turns
            env = make_levels(*options, training=False).held_out_env.reset(seed=given.seed)
        else:
            from evaluate import load_team  # torch, and a floor above: only --team needs it

            _, config, levels, team = load_team([given.team, *argv])
            env = levels.held_out(given.seed)
        sandbox.set_mode(config.sandbox)
        if env.runs_programs:
            sandbox.use_bubblewrap()
        if unknown := set(given.roles) - set(env.agents):
            raise ValueError(f"--as {' '.join(sorted(unknown))}: the roles are {', '.join(env.agents)}")
        say("An answer ends with its answer line, a closing ``` or an empty line. Ctrl-D ends the game.")
        say('"?" shows what the team would answer.' if team else "")
        play(env, team, given.roles, given.candidates, config.max_turns)


if __name__ == "__main__":
    main()
