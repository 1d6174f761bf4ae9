"""Play the roles of a task by hand, alone or in a team with a trained model: python -m tools.play TASK [--team RUN].

The boards are those that the default run trains on; KEY=VALUE changes them. After each answer the way that it takes is
drawn with arrows: ^ v < >.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Collection, Sequence

from envs import Env, Message, Reward, mixed_reward
from options import parse
from records.console import errors_in_one_line, say
from sampling.requests import Request, request_seed
from tasks import sandbox
from tasks.boards import parse_answer
from tasks.levels import make_levels
from tasks.registry import TASKS
from tasks.walk import with_arrows

Ask = Callable[[str, list[Message], int], list[str]]  # (agent, prompt, k) -> k sampled answers; 0: a greedy one
HINTS = 8  # answers that "?" shows


def read_answer() -> str:
    """One answer from standard input, "" when there is none left.

    It ends with its answer line, with the closing fence of a program, or with an empty line outside of a program.
    """
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
    """Show every answer with what it earns on its own copy of the state; returns the best (ties: the first)."""
    rewards = [env.copy().step(agent, text) for text in texts]
    best = max(range(len(texts)), key=lambda k: mixed_reward(rewards[k]))
    for k, text in enumerate(texts):
        say(f"{'*' if k == best else ' '} {in_words(rewards[k])}  {' '.join(text.split())[:60]}")
    return texts[best]


def play(env: Env, ask: Ask | None, mine: Collection[str], candidates: int, turns: int) -> None:
    """One game on the console, of at most `turns` turns (0: until the task ends)."""
    turn = 0
    while not env.done and (turn < turns or not turns):
        turn += 1
        say(f"\nturn {turn}\n{env.render()}".rstrip())
        for agents in env.stages:
            prompts = {agent: env.observe(agent) for agent in agents}
            for agent in agents:
                if env.done:
                    break
                if agent in mine or not ask:
                    for message in prompts[agent]:
                        if turn == 1 or message["role"] != "system":  # the rules once
                            shown = message["content"].replace(env.render() or "\0", "(the board above)")
                            say(f"\n[{agent}: {message['role']}]\n{shown}")
                    while (answer := read_answer()) == "?" and ask:
                        best_of(env, agent, ask(agent, prompts[agent], HINTS))
                    if not answer:
                        return say("\nEnd of input.")
                else:
                    texts = ask(agent, prompts[agent], candidates)
                    answer = best_of(env, agent, texts) if candidates else texts[0]
                    say(f"\n[{agent} of the team]\n{answer.strip()}")
                board = env.picture()
                say(f"-> {in_words(env.step(agent, answer))}")
                if len(env.way) > 1:
                    say(with_arrows(board, env.way))
    say(f"\n{env.render()}".rstrip())
    say("Solved." if env.solved else "The task has ended unsolved." if env.done else "The turns are over: unsolved.")


def load(team_of: str, argv: Sequence[str], seed: int) -> tuple[Env, Ask, int]:
    """A held-out level of a run (or of the task, for a model), its team, and T. ValueError as evaluate.py has it."""
    from evaluate import load_team  # torch, and a floor above: only this command needs it, and only with --team

    _, config, levels, team = load_team([team_of, *argv])
    asked = itertools.count(1)

    def ask(agent: str, messages: list[Message], k: int) -> list[str]:
        request = Request(agent, team.encode(agent, messages), request_seed((seed,), 0, next(asked), 0, max(k, 1)))
        (replies,) = team.sampler(1.0 if k else 0.0)([request], max(k, 1))
        if not replies:
            raise ValueError(f"--team {team_of}: the prompt is too long for the model")
        return [team.decode(agent, reply.ids) for reply in replies]

    return levels.held_out(seed), ask, config.max_turns


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the roles of a task by hand: read a prompt, write an answer, see what it is worth."""
    parser = argparse.ArgumentParser(prog="python -m tools.play", description=main.__doc__)
    parser.add_argument("task", help=f"{', '.join(TASKS)}, or file.py:Class")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--workflow", help="mas (default), single, tool or ensemble, as far as the task has it")
    parser.add_argument("--seed", type=int, default=0, help="which level or problem")
    parser.add_argument("--eval-data", "--data", dest="data", default="", metavar="FILE", help="problems to play")
    parser.add_argument("--max-turns", type=int, default=0, metavar="N", help="end after N turns")
    parser.add_argument("--team", metavar="RUN", help="a run or a model that plays the roles you do not take")
    parser.add_argument("--as", dest="roles", nargs="+", default=[], metavar="ROLE", help="your roles beside --team")
    parser.add_argument("--candidates", type=int, default=0, metavar="K", help="the team takes the best of K answers")
    parser.add_argument("--sandbox", choices=("auto", "rlimit"), default="auto", help="where programs run")
    given = parser.parse_intermixed_args(arguments)  # KEY=VALUE may stand anywhere
    argv = ["--task", given.task, "--sandbox", given.sandbox]
    words = {"workflow": [given.workflow], "max-turns": [given.max_turns], "eval-data": [given.data]}
    for name, values in {**words, "env-options": given.options}.items():
        argv += [f"--{name}", *map(str, values)] if any(values) else []
    with errors_in_one_line("tools.play"):
        if given.team:
            env, ask, turns = load(given.team, argv, given.seed)
        elif given.roles or given.candidates:
            raise ValueError("--as and --candidates need --team: without one you play all roles")
        else:
            config, ask, turns = parse(argv), None, given.max_turns
            levels = make_levels(given.task, config.workflow, config.env_options, "", given.data, turns, training=False)
            env = levels.held_out_env.reset(seed=given.seed)
        sandbox.set_mode(given.sandbox)
        if env.runs_programs:
            sandbox.use_bubblewrap()
        if unknown := set(given.roles) - set(env.agents):
            raise ValueError(f"--as {' '.join(sorted(unknown))}: the roles are {', '.join(env.agents)}")
        if given.roles or not ask:
            say("An answer ends with its answer line, a closing ``` or an empty line. Ctrl-D ends the game.")
            say('"?" shows what the team would answer.' if ask else "")
        play(env, ask, given.roles, given.candidates, turns)


if __name__ == "__main__":
    main()
