"""Play the roles of a task by hand, alone or in a team with a trained model: python -m tools.play TASK [--team RUN]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from envs import TASKS, Env, InfraError, Message, Reward, make_env, mixed_reward
from sampling.requests import Request, request_seed
from tasks import sandbox
from tasks.boards import parse_answer
from tasks.levels import parse_pairs
from tasks.registry import located

Ask = Callable[[str, list[Message], int], list[str]]  # (agent, prompt, k) -> k sampled answers; 0: a greedy one
Player = Callable[[Env, str, list[Message]], "str | None"]  # (environment, agent, prompt) -> its answer; None: stop
HINTS = 8  # answers that "?" shows


def read_answer() -> str | None:
    """One answer from standard input, None when there is none left.

    It ends with its answer line, with the closing fence of a program, or with an empty line outside of a program.
    """
    text, fenced = "", False
    for line in sys.stdin:
        if line.strip().startswith("```"):
            fenced = not fenced
            text += line
            if not fenced:
                break
        elif fenced or line.strip():
            text += line
            if not fenced and (parse_answer(text) is not None or text.strip() == "?"):
                break
        elif text:
            break
    return text or None


def unseen(message: Message, board: str, seen: set[str]) -> str:
    """What the player has not read yet of a message: a board is drawn once a turn, a line of rules once a game.

    `seen` are boards and lines; it grows by those of this message.
    """
    text = message["content"]
    if message["role"] == "system":
        new = [line for line in text.split("\n") if line not in seen]
        seen.update(new)
        return "\n".join(new)
    if board and board in text:
        text = text.replace(board, "(the board above)") if board in seen else text
        seen.add(board)
    return text


class Person:
    """Reads prompts on the console and types answers; "?" shows what the team would answer, if there is one."""

    def __init__(self, ask: Ask | None = None):
        self.ask = ask
        self.seen: set[str] = set()
        self.asked: set[str] = set()  # roles that were asked this turn

    def __call__(self, env: Env, agent: str, messages: list[Message]) -> str | None:
        board = env.render()
        if agent in self.asked or not self.asked:  # a new turn
            self.asked.clear()
            self.seen.discard(board)  # it may be that of the turn before
            if not any(board in message["content"] for message in messages):
                print(f"\n{board}")
        self.asked.add(agent)
        for message in messages:
            if text := unseen(message, board, self.seen):
                print(f"\n[{agent}: {message['role']}]\n{text}")
        answer = read_answer()
        while self.ask and answer and answer.strip() == "?":
            compare(env, agent, self.ask(agent, messages, HINTS))
            answer = read_answer()
        return answer


def teammate(ask: Ask, candidates: int, env: Env, agent: str, messages: list[Message]) -> str:
    """The team's greedy answer; with `candidates` the best of so many, as in training."""
    print(f"\n[{agent} of the team]" if env.render() else f"\n{messages[-1]['content']}\n[{agent} of the team]")
    texts = ask(agent, messages, candidates)
    answer = compare(env, agent, texts) if candidates else texts[0]
    print(answer.strip())
    return answer


def compare(env: Env, agent: str, texts: Sequence[str]) -> str:
    """Print every answer with what it earns on its own copy of the state; returns the best (ties: the first)."""
    rewards = [tried(env.copy(), agent, text) for text in texts]
    worth = [mixed_reward(reward) if reward else -1.0 for reward in rewards]
    best = worth.index(max(worth))
    for number, (text, reward) in enumerate(zip(texts, rewards, strict=True)):
        print(f"{'*' if number == best else ' '} {shown(reward)}  {' '.join(text.split())[:60]}")
    return texts[best]


def tried(env: Env, agent: str, text: str) -> Reward | None:
    """The reward of an answer, None when it could not be scored."""
    try:
        return env.step(agent, text)
    except InfraError:
        return None


def shown(reward: Reward | None) -> str:
    if reward is None:
        return "could not be scored"
    parts = "".join(f" {name}={value:.2f}" for name, value in reward.info.items())
    return f"team={reward.team:.2f} local={reward.local:.2f}{parts}"


def play(env: Env, players: dict[str, Player], turns: int = 0) -> None:
    """One game on the console, of at most `turns` turns (0: until the task ends)."""
    turn = 0
    while not env.done and (turn < turns or not turns):
        turn += 1
        for agents in env.stages:
            prompts = {agent: env.observe(agent) for agent in agents}
            for agent in () if env.done else agents:
                answer = players[agent](env, agent, prompts[agent])
                if answer is None:
                    print("\nEnd of input.")
                    return
                print(f"-> {shown(tried(env, agent, answer))}")
                if env.done:
                    break
    print(f"\n{env.render()}".rstrip())
    print("Solved." if env.solved else "The task has ended unsolved." if env.done else "The turns are over: unsolved.")


def load(given: argparse.Namespace) -> tuple[Env, Ask, int]:
    """A held-out level of a run (or of the task, for a model), its team, and T. ValueError as evaluate.py has it."""
    from evaluate import load_team  # torch, and a floor above: only this command needs it, and only with --team
    from prepare import scoring_pool
    from records.parts import part_of_run

    argv = [given.team]
    for option in ("workflow", "max_turns", "sandbox"):
        argv += [f"--{option.replace('_', '-')}={vars(given)[option]}"] if vars(given)[option] else []
    argv += ["--eval-data", given.data] if given.data else []
    argv += ["--env-options", *given.options] if given.options else []
    if given.task not in TASKS or not (part := part_of_run(given.team)) or part.policy:  # a model plays any task
        argv += ["--task", given.task]
    _, config, task, team = load_team(argv)
    if config.task != located(given.task):
        raise ValueError(f"--team {given.team}: it was trained on {config.task}, not on {given.task}")
    scoring_pool(config, task)  # the sandbox of the run
    asked = 0

    def ask(agent: str, messages: list[Message], k: int) -> list[str]:
        nonlocal asked
        asked += 1
        request = Request(agent, team.encode(agent, messages), request_seed((given.seed,), 0, asked, 0, max(k, 1)))
        (replies,) = team.sampler(1.0 if k else 0.0)([request], max(k, 1))
        if not replies:
            raise ValueError(f"--team {given.team}: the prompt is too long for the model")
        return [team.decode(agent, reply.ids) for reply in replies]

    return task.held_out(given.seed), ask, config.max_turns


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the roles of a task by hand: read a prompt, write an answer, see what it is worth."""
    parser = argparse.ArgumentParser(prog="python -m tools.play", description=main.__doc__)
    parser.add_argument("task", help=f"{', '.join(TASKS)}, or file.py:Class")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--workflow", help="mas (default), single or ensemble, as far as the task has it")
    parser.add_argument("--seed", type=int, default=0, help="which level or problem")
    parser.add_argument("--data", metavar="FILE", help="problems, for tasks that read them")
    parser.add_argument("--max-turns", type=int, default=0, metavar="N", help="end after N turns")
    parser.add_argument("--team", metavar="RUN", help="a run or a model that plays the roles you do not take")
    parser.add_argument("--as", dest="roles", nargs="+", default=[], metavar="ROLE", help="your roles beside --team")
    parser.add_argument(
        "--candidates", type=int, default=0, metavar="K",
        help="the team draws K answers, shows their rewards and takes the best (default: its greedy answer)",
    )  # fmt: skip
    parser.add_argument("--sandbox", choices=("auto", "rlimit"), help="where programs run, as in train.py")
    given = parser.parse_args(arguments)
    try:
        sandbox.set_mode(given.sandbox or "auto")
        if given.team:
            env, ask, turns = load(given)
        else:
            if given.roles or given.candidates:
                raise ValueError("--as and --candidates need --team: without one you play all roles")
            options: dict[str, Any] = parse_pairs(given.task, given.options)
            options |= {name: vars(given)[name] for name in ("workflow", "data") if vars(given)[name] is not None}
            env, ask, turns = make_env(given.task, **options).reset(seed=given.seed), None, given.max_turns
        if env.runs_programs:
            sandbox.use_bubblewrap()
        if unknown := set(given.roles) - set(env.agents):
            raise ValueError(f"--as {' '.join(sorted(unknown))}: the roles are {', '.join(env.agents)}")
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    person = Person(ask)
    team = partial(teammate, ask, given.candidates) if ask else person
    players: dict[str, Player] = {agent: person if agent in given.roles else team for agent in env.agents}
    if person in players.values():
        hint = ' "?" shows what the team would answer.' if ask else ""
        print(f"An answer ends with its answer line, a closing ``` or an empty line. Ctrl-D ends the game.{hint}")
    else:
        print(env.render())
    play(env, players, turns)


if __name__ == "__main__":
    main()
