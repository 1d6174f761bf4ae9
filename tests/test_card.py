"""The model card in the folder of a policy: what it says is so, and its snippets run."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Toy

import evaluate
import train
from envs import Env
from options import Config, load, parse
from records.card import command, fenced, write_cards
from records.run_folder import read_rows
from tasks.levels import Levels

SMALL = """--envs-per-step 2 --warm-start 30 --eval-envs 4 --max-turns 2 --num-candidates 4 --save-every 1 --keep 9
--report-every 2 --lr-warmup 0 --device cpu --policies per_role --max-response-tokens 12 --steps 3"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card") / "run"
    train.main([*SMALL.split(), "--output-dir", str(folder)])
    return folder


def card(run, step, policy="planner"):
    return Path(run, "checkpoints", f"step-{step:06d}", policy, "README.md").read_text(encoding="utf-8")


def test_every_checkpoint_says_the_last_success_that_was_measured(run):
    rows = {row["step"]: row for row in read_rows(run / "evaluations.jsonl")}
    assert [*rows] == [0, 2, 3]
    for step, tested in ((0, 0), (1, 0), (2, 2), (3, 3)):
        row, text = rows[tested], card(run, step)
        assert f"for {step} steps with AT-GRPO" in text
        assert f"after {tested} steps: **{row['success']:.3f}** (n=4, standard error {row['se']:.3f})" in text


def test_its_command_is_that_of_the_run(run):
    (line,) = re.findall(r"^python train\.py .*$", card(run, 3), re.M)
    assert replace(parse(shlex.split(line)[2:]), output_dir="") == load(run)


@pytest.mark.parametrize(
    "argv",
    [
        "",
        "--model some/model --adapter lora --lora-rank 4 --policies tool_user=a planner=b --frozen a",
        "--task sokoban --workflow single --env-options rows=5 view=cells --fused --lr 5e-5 --track wandb",
        "--model tool_user=tiny planner=some/model --ranks 6 2",
    ],
)
def test_a_command_says_what_differs_from_the_defaults(argv):
    config = replace(parse(argv.split()), output_dir="runs/a", resume=True, like="runs/b")
    words = shlex.split(command(config))
    assert replace(parse(words[2:]), output_dir="runs/a", resume=True, like="runs/b") == config
    assert len(words) <= 2 + len(argv.split()) + 2  # boards of the tiny model stand beside those that were given


def test_its_snippet_answers_as_the_evaluation_did(run, monkeypatch, capsys):
    text = card(run, 3, "tool_user")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(run / "checkpoints" / "step-000003" / "tool_user")
    exec(code, {})
    level = [row for row in read_rows(run / "boards.jsonl") if (row["step"], row["env"]) == (3, 0)]
    first = level[0]["episodes"][0]["stages"][0]
    assert first["agent"] == "tool_user"
    assert capsys.readouterr().out.rstrip("\n").splitlines()[-1] == first["candidates"][0]["text"]
    assert f"```text\n{level[0]['messages'][0]['content']}\n```" in text


def test_a_step_of_the_run_plays_with_cards_beside_it(run, capsys):
    evaluate.main([f"{run}@1", "--envs", "2"])
    assert "(n=2," in capsys.readouterr().out


class Rude(Toy):
    """Its system prompt tries to end the block that it stands in."""

    def observe(self, agent):
        return [{"role": "system", "content": "Write\n````\ncode\n```\n{roles}"}, *super().observe(agent)]


def test_a_prompt_cannot_end_its_block_and_a_hub_id_is_the_base(tmp_path):
    folder = tmp_path / "checkpoints" / "step-000007"
    (folder / "shared").mkdir(parents=True)
    row = {"step": 5, "success": 0.5, "se": 0.25, "n": 4}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = Config(model=("some/model",), adapter="lora", task="/a/rude.py:Rude").resolved()
    env: Env = Rude()
    write_cards(folder, config, {"ann": "shared", "bob": "shared"}, Levels(env, env), ranks=2)
    text = card(tmp_path, 7, "shared")
    start = """---
base_model: some/model
library_name: peft
pipeline_tag: text-generation
tags: [at-grpo, reinforcement-learning, multi-agent, "rude.py:Rude"]
---
"""
    assert text.startswith(start)
    assert text.count("\n`````text\nWrite\n````\ncode\n```\n{roles}\n`````\n") == 2
    assert "torchrun --nproc-per-node 2 train.py" in text
    assert fenced([{"role": "user", "content": "````"}]) == "```text\nnone\n```"
