"""The exercises: what they say of stubs, of right and of wrong solutions."""

import importlib
import json
import re
from pathlib import Path

import pytest
from helpers import tables

from benchmarks.break_it import CHANGES, broken
from exercises.__main__ import main, same
from exercises.e6_tree_and_chains import product as count

ROOT = Path(__file__).parent.parent / "exercises"


def pooled(rewards, valid):
    """Population deviation, and answers that were not scored count."""
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5 + 1e-6
    return [(reward - mean) / spread for reward in rewards]


def last(env, answers):
    """Commits the last answer instead of the best."""
    rewards = []
    for agent in env.agents:
        for text in answers[agent]:
            twin = env.copy()
            reward = twin.step(agent, text)
            rewards.append(reward.team + reward.local)
        env = twin
    return rewards, env.value


MISTAKES = {
    "e1_group_key": lambda sample: (sample.key.turn, sample.key.agent),
    "e2_advantages": pooled,
    "e3_commit": last,
    "e4_mixed_reward": lambda reward, alpha: alpha * (reward.team + reward.local),
    "e5_clipped_loss": lambda new, old, advantage, clip: -(new - old).exp() * advantage,
    "e6_tree_and_chains": lambda samples, key: (count(samples, key)[1],) * 2,
    "e7_loss_weights": lambda lengths: [1 / (len(lengths) * n) for n in lengths],
    "e8_shared_prompt": lambda prompt, answers: (sum(answers, prompt), list(range(len(sum(answers, prompt))))),
}


def test_the_places_that_break_it_changes_are_still_there(tmp_path):
    for number, (name, _, file, pairs) in enumerate(CHANGES):
        text = (broken(number, tmp_path / str(number)) / file).read_text(encoding="utf-8")
        assert (text == (ROOT.parent / file).read_text(encoding="utf-8")) is not bool(pairs), name
        compile(text, file, "exec")


def test_the_page_of_what_breaks_it_has_the_numbers_that_were_recorded():
    page = (ROOT.parent / "docs" / "exercises.md").read_text(encoding="utf-8")
    names, shown = [table[1:] for table in tables(page) if table[0][0] == "N"]
    assert names == [[str(number), name] for number, (name, *_) in enumerate(CHANGES)]
    record = (ROOT.parent / "docs" / "break_it.json").read_text(encoding="utf-8")
    runs = json.loads(record)["runs"]
    for one, (number, first, second, machine, *_) in zip(runs, shown, strict=True):
        success = {seed: float(cell) for seed, cell in (("0", first), ("1", second)) if cell}
        assert (one["number"], one["success"], one["machine"]) == (int(number), success, machine)
    assert {float(n) for n in re.findall(r"0\.\d\d\b", page)} <= {float(n) for n in re.findall(r"0\.\d+", record)}
    for line in json.loads(record)["lines"]:  # what the script printed
        number, seed, success = re.match(r"(\d) .*, seed (\d): held-out 0\.005 -> (\S+);", line).groups()
        assert any(str(one["number"]) == number and one["success"].get(seed) == float(success) for one in runs)


def test_the_product_solves_them(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--solved"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert out.endswith("9 of 9 solved\n")
    assert "WRONG" not in out


def test_a_stub_is_said_to_be_unsolved(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["4"])
    assert ended.value.code == 1
    assert "not solved yet: exercises/e4_mixed_reward.py\n0 of 1 solved\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name):
    module = importlib.import_module(f"exercises.{name}")
    assert not all(same(expected, got) for _, expected, got in module.checks(MISTAKES[name]))
