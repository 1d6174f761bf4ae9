"""--track: what is logged reaches TensorBoard's own reader, and wandb's calls (a fake module)."""

import sys
import types

import pytest

import train
from records.run_folder import read_rows
from records.track import make_tracker

SMALL = "--envs-per-step 2 --num-candidates 2 --max-turns 1 --warm-start 1 --eval-envs 2 --save-every 1 --device cpu"


def trained(folder, steps, *options):
    train.main([*SMALL.split(), "--steps", str(steps), "--output-dir", str(folder), *options])


def curves(folder):
    """TensorBoard's own reading: name -> {step: value}."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_logged_and_what_a_resumed_run_adds(tmp_path):
    pytest.importorskip("tensorboard")
    trained(tmp_path, 2, "--track", "tensorboard")
    trained(tmp_path, 3, "--track", "tensorboard", "--resume")
    found, logged = curves(tmp_path), read_rows(tmp_path / "metrics.jsonl")
    for name in ("solved", "planner/reward", "tool_user/local", "groups/dead_share", "lr"):
        assert found[name] == pytest.approx({row["step"] + 1: row[name] for row in logged}, rel=1e-6)
    held_out = {row["step"]: row["success"] for row in read_rows(tmp_path / "evaluations.jsonl")}
    assert found["held-out/success"] == pytest.approx(held_out)
    assert len(found["step_s"]) == 3
    assert not {"step", "groups/per_turn", "formats"} & found.keys()
    make_tracker("tensorboard", tmp_path, {}, 1)({"solved": 0.75, "name": "x"}, 2)  # points made again are void
    assert curves(tmp_path)["solved"] == pytest.approx({1: logged[0]["solved"], 2: 0.75}, rel=1e-6)


def test_wandb_gets_the_same_numbers_and_each_run_an_id_of_its_own(tmp_path, monkeypatch):
    calls: list = []
    fake = types.ModuleType("wandb")
    fake.init = lambda **given: calls.append(given)
    fake.log = lambda row, step: calls.append((step, row))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    trained(tmp_path / "a" / "run", 1, "--track", "wandb")
    (start, (first, before), (second, row), (third, after)) = calls
    assert (start["project"], start["name"], start["resume"]) == ("at-grpo", "run", "allow")
    assert start["config"]["task"] == "plan_path"
    assert (first, second, third) == (0, 1, 1)
    assert before.keys() == after.keys() == {"held-out/success", "held-out/se", "held-out/n", "held-out/turns"}
    (logged,) = read_rows(tmp_path / "a" / "run" / "metrics.jsonl")
    assert row["planner/reward"] == logged["planner/reward"]
    assert all(isinstance(value, float) for value in row.values())
    for run, step in (("a", 1), ("b", 0), ("b", 0)):  # resumed, of the same name elsewhere, and started once more
        (tmp_path / run / "run").mkdir(parents=True, exist_ok=True)
        make_tracker("wandb", tmp_path / run / "run", {}, step)
    ids = [call["id"] for call in calls if isinstance(call, dict)]
    assert ids[0] == ids[1]
    assert len({*ids}) == 3


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_before_anything_is_trained(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(SystemExit, match=rf"train.py: error: --track {name}: .*pip install {name}"):
        trained(tmp_path, 1, "--track", name)
    assert not (tmp_path / "metrics.jsonl").exists()
