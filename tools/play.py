"""Play the roles of a task by hand, alone or in a team with a trained model: python -m tools.play TASK [--team RUN].

The boards are those that the default run trains on; KEY=VALUE changes them. After each answer the way that it takes is
drawn with arrows: ^ v < >.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from envs import TASKS, Env, InfraError, Message, mixed_reward
from options import Config
from records.console import say
from sampling.requests import Request, request_seed
from tasks import sandbox
from tasks.boards import parse_answer
from tasks.levels import make_levels
from tasks.walk import with_arrows

Ask = Callable[[str, list[Message], int], list[str]]  # (agent, prompt, k) -> k sampled answers; 0: a greedy one
HINTS = 8  # answers that "?" shows


def read_answer() -> str | None:
    """One answer from standard input, None when there is none left.

    It ends with its answer line, with the closing fence of a program, or with an empty line outside of a program.
    """
    text, fenced = "", False
    for line in sys.stdin:
        if not (fenced or line.strip()):
            if text:
                break
            continue
        text += line
        fence = line.strip().startswith("```")
        fenced ^= fence
        if not fenced and (fence or parse_answer(text) is not None or text.strip() == "?"):
            break
    return text or None


def earned(env: Env, agent: str, text: str) -> tuple[float, str]:
    """Carry out an answer: what it is worth to training, and in words."""
    try:
        reward = env.step(agent, text)
    except InfraError as error:
        return -1.0, f"could not be scored: {error}"
    parts = "".join(f" {name}={value:.2f}" for name, value in reward.info.items())
    return mixed_reward(reward), f"team={reward.team:.2f} local={reward.local:.2f}{parts}"


def best_of(env: Env, agent: str, texts: Sequence[str]) -> str:
    """Show every answer with what it earns on its own copy of the state; returns the best (ties: the first)."""
    tried = [earned(env.copy(), agent, text) for text in texts]
    best = max(range(len(texts)), key=lambda number: tried[number][0])
    for number, (text, (_, words)) in enumerate(zip(texts, tried, strict=True)):
        say(f"{'*' if number == best else ' '} {words}  {' '.join(text.split())[:60]}")
    return texts[best]


def play(env: Env, ask: Ask | None, mine: Sequence[str], candidates: int, turns: int) -> None:
    """One game on the console, of at most `turns` turns (0: until the task ends)."""
    turn, told = 0, set[str]()  # told: roles whose rules were shown
    while not env.done and (turn < turns or not turns):
        turn += 1
        say(f"\nturn {turn}\n{env.render()}".rstrip())
        for agents in env.stages:
            prompts = {agent: env.observe(agent) for agent in agents}
            for agent in () if env.done else agents:
                for message in prompts[agent] if agent in mine else ():
                    if message["role"] != "system" or agent not in told:
                        shown = message["content"].replace(env.render() or "\0", "(the board above)")
                        say(f"\n[{agent}: {message['role']}]\n{shown}")
                told.add(agent)
                if agent in mine or not ask:
                    while (answer := read_answer()) and answer.strip() == "?" and ask:
                        best_of(env, agent, ask(agent, prompts[agent], HINTS))
                else:
                    texts = ask(agent, prompts[agent], candidates)
                    answer = best_of(env, agent, texts) if candidates else texts[0]
                    say(f"\n[{agent} of the team]\n{answer.strip()}")
                if answer is None:
                    return say("\nEnd of input.")
                board = env.picture()
                say(f"-> {earned(env, agent, answer)[1]}")
                if len(env.way) > 1:
                    say(with_arrows(board, env.way))
                if env.done:
                    break
    say(f"\n{env.render()}".rstrip())
    say("Solved." if env.solved else "The task has ended unsolved." if env.done else "The turns are over: unsolved.")


def load(given: argparse.Namespace) -> tuple[Env, Ask, int]:
    """A held-out level of a run (or of the task, for a model), its team, and T. ValueError as evaluate.py has it."""
    from evaluate import load_team  # torch, and a floor above: only this command needs it, and only with --team

    argv = [given.team, "--sandbox", given.sandbox]
    argv += ["--workflow", given.workflow] if given.workflow else []
    argv += ["--max-turns", str(given.max_turns)] if given.max_turns else []
    argv += ["--eval-data", given.data] if given.data else []
    argv += ["--env-options", *given.options] if given.options else []
    _, config, levels, team = load_team([*argv, "--task", given.task])
    asked = 0

    def ask(agent: str, messages: list[Message], k: int) -> list[str]:
        nonlocal asked
        asked += 1
        request = Request(agent, team.encode(agent, messages), request_seed((given.seed,), 0, asked, 0, max(k, 1)))
        (replies,) = team.sampler(1.0 if k else 0.0)([request], max(k, 1))
        if not replies:
            raise ValueError(f"--team {given.team}: the prompt is too long for the model")
        return [team.decode(agent, reply.ids) for reply in replies]

    return levels.held_out(given.seed), ask, config.max_turns


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
    try:
        sandbox.set_mode(given.sandbox)
        if given.team:
            env, ask, turns = load(given)
        else:
            if given.roles or given.candidates:
                raise ValueError("--as and --candidates need --team: without one you play all roles")
            config = Config(
                task=given.task, workflow=given.workflow or "mas", env_options=tuple(given.options)
            ).resolved()
            levels = make_levels(
                given.task, config.workflow, config.env_options, "", given.data, given.max_turns, training=False
            )
            env, ask, turns = levels.held_out_env.reset(seed=given.seed), None, given.max_turns
        if env.runs_programs:
            sandbox.use_bubblewrap()
        if unknown := set(given.roles) - set(env.agents):
            raise ValueError(f"--as {' '.join(sorted(unknown))}: the roles are {', '.join(env.agents)}")
        mine = given.roles if ask else env.agents
        if mine:
            say("An answer ends with its answer line, a closing ``` or an empty line. Ctrl-D ends the game.")
            say('"?" shows what the team would answer.' if ask else "")
        play(env, ask, mine, given.candidates, turns)
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
