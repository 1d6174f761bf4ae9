"""The model card in the folder of a policy: what it says is so, and its snippet runs."""

import json
import re
from types import SimpleNamespace

import pytest
from helpers import Toy

import evaluate
import train
from options import Config
from records.card import write_cards
from records.run_folder import read_object, read_rows
from tasks.levels import Levels

SMALL = """--envs-per-step 2 --warm-start 30 --eval-envs 4 --max-turns 2 --num-candidates 4 --save-every 1 --keep 9
--report-every 2 --lr-warmup 0 --device cpu --policies per_role --max-response-tokens 12"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card") / "run"
    train.main([*SMALL.split(), "--steps", "2", "--output-dir", str(folder)])
    train.main(["--resume", "--steps", "3", "--output-dir", str(folder)])  # the cards are in nobody's way
    return folder


def test_every_checkpoint_says_the_last_success_that_was_measured(run, capsys):
    rows = {row["step"]: row for row in read_rows(run / "evaluations.jsonl")}
    for step, tested in ((0, 0), (1, 0), (2, 2), (3, 3)):
        row, text = rows[tested], (run / f"checkpoints/step-00000{step}/planner/README.md").read_text()
        assert f"for {step} steps with AT-GRPO" in text
        assert f"after {tested} steps: **{row['success']:.3f}** (n=4, standard error {row['se']:.3f})" in text
        assert f"```bash\n{read_object(run / 'run.json')['sessions'][0]['command']}\n```" in text
    # vLLM takes every such file for weights
    assert len([*(run / "checkpoints/step-000003/planner").glob("*.safetensors")]) == 1
    evaluate.main([f"{run}@1", "--envs", "2"])
    assert "(n=2," in capsys.readouterr().out


def test_its_snippet_answers_as_the_evaluation_did(run, monkeypatch, capsys):
    monkeypatch.chdir(run / "checkpoints" / "step-000003" / "tool_user")
    with open("README.md", encoding="utf-8") as file:
        text = file.read()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(code, {})
    level = next(row for row in read_rows(run / "boards.jsonl") if (row["step"], row["env"]) == (3, 0))
    first = level["episodes"][0]["stages"][0]
    assert first["agent"] == "tool_user"
    assert capsys.readouterr().out.rstrip("\n").splitlines()[-1] == first["candidates"][0]["text"]
    assert f"```text\n{level['messages'][0]['content']}\n```" in text


class Rude(Toy):
    """Its system prompt tries to end the block that it stands in."""

    def observe(self, agent):
        return [{"role": "system", "content": "Write\n````\ncode\n```\n{roles}"}, *super().observe(agent)]


def test_a_prompt_cannot_end_its_block_and_a_hub_id_is_the_base(tmp_path):
    (tmp_path / "checkpoints" / "step-000007" / "shared").mkdir(parents=True)
    (tmp_path / "evaluations.jsonl").write_text('{"step": 5, "success": 0.5, "se": 0.25, "n": 4}\n')
    (tmp_path / "run.json").write_text(json.dumps({"sessions": [{"command": "python train.py"}]}))
    config = Config(model=("some/model",), adapter="lora", task="/a/rude.py:Rude").resolved()
    team = SimpleNamespace(
        world=SimpleNamespace(main=True), policy_of={"ann": "shared", "bob": "shared"}, ranks_of={"shared": [0]}
    )
    write_cards(tmp_path, 7, config, team, Levels(Rude(), Rude()))
    text = (tmp_path / "checkpoints/step-000007/shared/README.md").read_text()
    assert text.startswith("---\nbase_model: some/model\nlibrary_name: peft\npipeline_tag: text-generation\ntags: [")
    assert text.count("\n`````text\nWrite\n````\ncode\n```\n{roles}\n`````\n") == 2
