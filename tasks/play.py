"""Play the roles of a task by hand: python -m tasks.play TASK."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from envs import TASKS, Message, make_env, picture
from tasks.boards import parse_answer


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
            if not fenced and parse_answer(text) is not None:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the roles of a task by hand: read a prompt, write an answer, see what it is worth."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--workflow", default="mas", help="mas, single or ensemble, as far as the task has it")
    parser.add_argument("--seed", type=int, default=0, help="which level or problem")
    parser.add_argument("--data", help="file of problems (math and code)")
    parser.add_argument("--tool", choices=["direct", "python"], help="how the tool user of a board works")
    options = vars(parser.parse_args(arguments))
    task, seed = options.pop("task"), options.pop("seed")
    try:
        env = make_env(task, **{name: value for name, value in options.items() if value is not None}).reset(seed=seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print("An answer ends with its answer line, a closing ``` or an empty line. Ctrl-D ends the game.")
    seen: set[str] = set()
    while not env.done:
        at_start = {agent: env.observe(agent) for agent in env.agents}
        board = picture(env)
        seen.discard(board)  # it may be that of the turn before
        if not any(board in message["content"] for message in at_start[env.agents[0]]):
            print(f"\n{board}")
        for agent in env.agents:
            for message in at_start[agent] if env.simultaneous else env.observe(agent):
                text = unseen(message, board, seen)
                if text:
                    print(f"\n[{agent}: {message['role']}]\n{text}")
            answer = read_answer()
            if answer is None:
                print("\nEnd of input.")
                return
            reward = env.step(agent, answer)
            parts = " ".join(f"{name}={value:.2f}" for name, value in reward.info.items())
            print(f"-> team={reward.team:.2f} local={reward.local:.2f} {parts}")
    print(f"\n{picture(env)}".rstrip())
    print("Solved." if env.solved else "The task has ended unsolved.")


if __name__ == "__main__":
    main()
