"""What a run says of itself: metrics of a step, lines of the console, the logs of its folder, who started it."""

import io
import json

import pytest
from helpers import ScriptedEngine, make_sample
from test_trees import Drawn

from distributed.world import World
from grouping import assign_advantages, group_samples
from options import Config
from records import console
from records.log import LEVELS, Log
from records.metrics import alarms, groups_per_turn, rollout_metrics
from rollout import Episode, Rollout, evaluate, rollout_tree
from tasks.levels import Levels


def row_of(groups, **fields):
    """The metrics of groups given as lists of rewards; the solved share is 0."""
    samples = [make_sample(r, key=(env, env % 2, "ann"), **fields) for env, group in enumerate(groups) for r in group]
    collected = group_samples(samples)
    result = Rollout([Episode(0, samples=samples)])
    return rollout_metrics(result, assign_advantages(collected) | groups_per_turn(collected))


def test_groups_are_counted_and_a_part_that_has_one_of_our_names_replaces_nothing():
    row = row_of([[1.0], [0.0, 1.0], [0.0, 1.0, 1.0]])
    assert row["groups/per_turn"] == [2, 1]
    assert (row["groups/singleton"], row["groups/invalid"], row["samples"]) == (1, 0, 6)
    assert row["ann/reward"] == pytest.approx(4 / 6)
    row = row_of([[0.0, 1.0]], info={"reward": 7.0, "length": 9.0, "truncated": 1.0, "legal": 0.5})
    assert [row[f"ann/{name}"] for name in ("reward", "length", "truncated", "legal")] == [0.5, 2, 0, 0.5]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"groups/dead_share": 0.7}, ""),
        ({"groups/dead_share": 0.8}, "80% of the groups have no signal"),
        ({"groups/dead_share": 0.95, "solved": 0.98}, ""),  # nearly all levels are solved
        ({"p/logprob_gap": 0.5}, "policy p: engine and trainer differ by 0.50 nats a token"),
    ],
)
def test_what_looks_broken_is_said(values, words):
    found = alarms({"groups/dead_share": 0.0, "solved": 0.0, **values}, ["p", "q"])
    assert len(found) == bool(words)
    assert words in "".join(found)


@pytest.mark.parametrize(("encoding", "letters"), [("utf-8", "Größe".encode()), ("ascii", b"Gr\\xf6\\xdfe")])
def test_what_agents_and_data_wrote_is_text_on_any_terminal(monkeypatch, encoding, letters):
    """Not a command to the terminal: ESC ] 52 fills the clipboard, ESC [ 2 J clears the screen."""
    terminal = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(terminal, encoding=encoding, write_through=True))
    console.say("Größe\t\x1b]52;c;cm0=\x07 \x1b[2J\r\udc80")
    assert terminal.getvalue() == letters + b"\t\\x1b]52;c;cm0=\\x07 \\x1b[2J\\r\\udc80\n"


def make_log(folder):
    config, levels = Config(steps=2, num_candidates=3, trees=2), Levels(Drawn(), Drawn())
    return Log(folder, World(), config, levels, ["p"], ScriptedEngine.decode, lambda row, step: None)


def evaluation(script=lambda request, k: "1", count=6):
    engine = ScriptedEngine(script)
    return evaluate([Drawn() for _ in range(count)], engine, encode=engine.encode, decode=engine.decode, max_turns=2)


def one_step(log, step, script, **fields):
    engine = ScriptedEngine(script)
    options = {"encode": engine.encode, "decode": engine.decode, "num_candidates": 3, "max_turns": 2}
    result = rollout_tree([Drawn(), Drawn()], engine, **options)
    row = {"step": step, **rollout_metrics(result, assign_advantages(group_samples(result.samples))), **fields}
    log.step(row, {"step_s": 2.0, "sample_s": 1.5, "update_s": 0.5}, result, example=step == 0)


def a_run(folder, config):
    """Two steps of Drawn environments with an evaluation before and after them."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    log, numbers = make_log(folder), iter(range(10**6))
    log.begin()
    log.evaluation(0, evaluation())
    one_step(log, 0, lambda request, k: "4", **{"p/entropy": 0.5})
    one_step(log, 1, lambda request, k: str(next(numbers) % 7), **{"p/entropy": 0.25})
    log.evaluation(2, evaluation(lambda request, k: "2!" if request.agent == "bob" else "3"))
    return folder


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_a_run_writes_its_logs_and_says_what_its_numbers_are(tmp_path, capsys):
    run = a_run(tmp_path / "one", {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "held-out success after 0 steps: 0.000 (n=6, se 0.000)"
    assert lines[1] == "step 1/2 best of 3 solved 0.00 reward 0.40/0.40 signal 0% entropy 0.50 2.0s"
    assert lines[2].startswith("  note: 100% of the groups have no signal")
    assert lines[3] == "--- example, step 1, environment 1 ---"
    assert lines[-1] == "held-out success after 2 steps: 1.000 (n=6, se 0.000)"
    assert [row["step"] for row in read(run, "metrics.jsonl")] == [0, 1]
    assert [(row["step"], row["env"]) for row in read(run, "trees.jsonl")] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    rows = read(run, "boards.jsonl")
    assert [(row["step"], row["env"]) for row in rows] == [(step, env) for step in (0, 2) for env in range(LEVELS)]
    assert rows[-1]["boards"] == ["empty", "ann:3", "ann:3|bob:2!"]


def test_a_resumed_run_keeps_what_its_checkpoint_knew_and_notes_every_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "a b"])
    run = a_run(tmp_path / "one", {})
    monkeypatch.setattr("sys.argv", ["train.py", "--resume"])
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 0, "so')  # and drops half a row
    make_log(run).begin(1)
    assert [row["step"] for row in read(run, "metrics.jsonl")] == [0]
    assert [row["step"] for row in read(run, "trees.jsonl")] == [0, 0]
    assert [row["step"] for row in read(run, "evaluations.jsonl")] == [0]  # the one after step 2 is made again
    assert [row["step"] for row in read(run, "boards.jsonl")] == [0] * LEVELS
    first, second = json.loads((run / "run.json").read_text(encoding="utf-8"))["sessions"]
    assert (first["command"], second["command"]) == ("python train.py 'a b'", "python train.py --resume")
    assert set(first["versions"]) == {"python", "torch", "transformers", "numpy"}
    make_log(run).begin()
    assert not read(run, "boards.jsonl") + read(run, "metrics.jsonl") + read(run, "evaluations.jsonl")
