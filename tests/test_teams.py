"""Models for roles and teams from parts: `--model POLICY=NAME ...` and `evaluate.py --team`."""

import json
import re
import shutil
import zlib

import pytest
import torch
from helpers import lines, random_model, refuses, same
from ranks import run_ranks
from transformers import AutoModelForCausalLM

import evaluate
import prepare
import train
from distributed.world import World
from envs import Env, Reward
from model import tiny
from options import parse, policy_map, sources
from records.run_folder import checkpoints, latest_checkpoint, locate, policy_folder

RUN = "--steps 1 --envs-per-step 2 --num-candidates 2 --eval-envs 6 --device cpu".split()  # noqa: SIM905
WARM = ["--warm-start", "2", "--max-response-tokens", "12"]
BOARD = ["--env-options", "rows=3", "cols=3", "blocks=0", "max_moves=4", "view=cells", "--max-turns", "2"]
ROLES = ["tool_user", "planner"]


def save_model(folder):
    """A model of another shape, with another template and another order of ids than the tiny model."""
    tokenizer = tiny.build_tokenizer()
    tokenizer.add_tokens(["<|again|>"], special_tokens=True)
    tokenizer.chat_template = "<|again|>" + tokenizer.chat_template
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "head_dim": 16, "max_position_embeddings": 512}
    sizes |= {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    random_model(tie_word_embeddings=True, **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "other")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A run of one policy for both roles, with checkpoints after 0, 1 and 2 steps."""
    folder = tmp_path_factory.mktemp("runs") / "shared"
    train.main([*RUN, *WARM, *BOARD, "--steps", "2", "--save-every", "1", "--keep", "9", "--output-dir", str(folder)])
    return folder


@pytest.fixture(scope="module")
def roles(tmp_path_factory):
    """A run of a policy for each role, on the same boards, with a learning rate of its own."""
    folder = tmp_path_factory.mktemp("runs") / "roles"
    train.main(
        [*RUN, *WARM, *BOARD, "--policies", "per_role", "--lr", "1e-4", "--seed", "3", "--output-dir", str(folder)]
    )
    return folder


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.parametrize(
    ("models", "policies", "expected"),
    [
        ("tiny", "", {"shared": "tiny"}),
        ("q=x p=./y=z", "p q", {"p": "./y=z", "q": "x"}),
        ("planner=x tool_user=y", "", {"tool_user": "y", "planner": "x"}),  # names mean a policy for each role
        ("p=x p=y", "p q", "POLICY=NAME once for each"),
        ("planer=x tool_user=y", "", "the policies are tool_user, planner (--policies)"),
    ],
)
def test_what_plays_a_policy_at_first(models, policies, expected):
    given = {"p q": ["tool_user=p", "planner=q"]}.get(policies, policies.split())
    argv = ["--model", *models.split(), *(["--policies", *given] if given else [])]

    def found():
        config = parse(argv)
        return sources(config, list(dict.fromkeys(policy_map(config, ROLES).values())))

    if isinstance(expected, dict):
        assert found() == expected
    else:
        with pytest.raises(ValueError, match=f"^--model {models}: .*{re.escape(expected)}"):
            found()


def test_in_a_mixed_team_boards_and_warm_start_are_for_tiny(tmp_path, other, monkeypatch):
    warmed = []
    monkeypatch.setattr(tiny, "warm_start", lambda policy, *_, **options: warmed.append(policy.model.config))
    config = parse([*RUN, *WARM, "--model", "tool_user=tiny", f"planner={other}"])
    levels = prepare.levels_of(config)
    assert levels.training_env.rows == 6
    load = prepare.load_models(config, levels, World())
    assert [model.hidden_size for model in warmed] == [64]
    assert [load(name)[0].config.hidden_size for name in ROLES] == [64, 32]


class Chance(Env):
    """A reward by chance, but the same for the same text: every group has a gradient."""

    agents = ("tool_user", "planner")

    def reset(self, seed):
        self.last = str(seed)
        return self

    def observe(self, agent):
        return [{"role": "user", "content": f"{agent} {self.last}"}]

    def step(self, agent, text):
        self.last = text[-9:]
        return Reward(0.0, zlib.crc32(text.encode()) / 2**32)


@pytest.fixture
def chance(monkeypatch):
    monkeypatch.setattr(prepare, "check", lambda *_: [])  # it takes time, and notices a machine that is busy
    return "test_teams:Chance"


def train_mixed(folder, other, chance, *more):
    options = "--max-turns 2 --max-response-tokens 6 --lr 1e-3 --lr-warmup 0".split()  # noqa: SIM905
    models = ["--model", "tool_user=tiny", f"planner={other}", "--task", chance]
    train.main([*RUN, *options, *models, "--output-dir", str(folder), *more])


def test_two_architectures_and_tokenizers_train_play_and_go_on(tmp_path, other, chance, capsys):
    train_mixed(tmp_path / "whole", other, chance, "--steps", "2")
    for name, shape in (("tool_user", (64, 2)), ("planner", (32, 1))):
        first, last = (AutoModelForCausalLM.from_pretrained(path / name) for path in checkpoints(tmp_path / "whole"))
        assert (last.config.hidden_size, last.config.num_hidden_layers) == shape
        assert not torch.equal(first.model.norm.weight, last.model.norm.weight), "it was trained"
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert all(row[f"{name}/optimizer_steps"] > 0 for row in rows for name in ROLES)
    assert all(row[f"{name}/logprob_gap"] < 1e-4 for row in rows for name in ROLES), "ids are those of its tokenizer"
    train_mixed(tmp_path / "cut", other, chance, "--steps", "1")
    train_mixed(tmp_path / "cut", other, chance, "--steps", "2", "--resume")
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert "(n=4, se " in lines(capsys, tmp_path / "whole", "--envs", 4, "--task", chance)[-1]


def test_ranks_train_two_architectures_as_one_process_does(tmp_path, other, chance):
    train_mixed(tmp_path / "alone", other, chance)
    run_ranks(3, lambda rank: train_mixed(tmp_path / "ranks", other, chance), limit=120)
    alone, ranks = (json.loads((tmp_path / name / "metrics.jsonl").read_text()) for name in ("alone", "ranks"))
    assert alone.pop("groups/per_turn") == ranks.pop("groups/per_turn")
    assert ranks == pytest.approx(alone, rel=1e-3, abs=1e-5)
    assert alone["planner/optimizer_steps"] > 0 < alone["tool_user/optimizer_steps"]
    for name in ROLES:
        both = (weights(latest_checkpoint(tmp_path / run) / name) for run in ("ranks", "alone"))
        torch.testing.assert_close(*both, atol=2e-5, rtol=1e-3)


def test_what_names_a_policy_of_a_run(shared, roles, tmp_path, monkeypatch):
    newest = latest_checkpoint(roles)
    assert locate(str(roles)) == locate(str(newest)) == newest
    assert locate(f"{shared}@1").name == "step-000001"
    assert locate(str(newest / "planner")) == newest / "planner"
    assert locate("tiny") is locate("org/model") is locate(str(tmp_path)) is None
    assert policy_folder(newest, "planner") == policy_folder(newest / "planner", "tool_user") == newest / "planner"
    assert policy_folder(latest_checkpoint(shared), "anybody").name == "shared"
    with pytest.raises(ValueError, match="no policy coder there; name one of planner, tool_user by its folder"):
        policy_folder(newest, "coder")
    monkeypatch.chdir(shared.parent)
    assert locate("shared@0").name == "step-000000"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{run}@7", "no checkpoint of step '7' (RUN@STEP); there are 0, 1, 2"),
        ("{run}s@1", "there are none"),
        ("{run}s", "there is no such folder"),
    ],
)
def test_a_part_that_does_not_exist_is_named(shared, source, words):
    source = source.format(run=shared)
    message = refuses(evaluate.main, "--team", f"tool_user={source}", f"planner={shared}", "--envs", 2)
    assert words in message
    assert source in message


def test_a_team_of_parts_plays_as_its_own_run_does(roles, capsys):
    whole = lines(capsys, roles, "--envs", 6)
    parts = lines(capsys, "--team", f"tool_user={roles}", f"planner={roles}@1", "--envs", 6)
    folders = [f"{name}={latest_checkpoint(roles) / name}" for name in ROLES]
    assert whole[1:] == parts[1:] == lines(capsys, "--team", *folders, "--envs", 6)[1:]


def test_a_run_or_a_team_and_not_both(shared):
    for argv in ([shared, "--team", "tool_user=tiny", "planner=tiny"], [], [shared, "--model", "x"]):
        assert "give a RUN or a model, or --team POLICY=NAME ..." in refuses(evaluate.main, *argv)


def test_two_ranks_play_a_team_of_parts_as_one(shared, roles, capfd):
    argv = ["--team", f"tool_user={shared}@1", f"planner={roles}", "--envs", "5"]
    evaluate.main(argv)
    alone = capfd.readouterr().out.strip().splitlines()
    run_ranks(2, lambda rank: evaluate.main(argv))
    assert capfd.readouterr().out.strip().splitlines()[1:] == alone[1:]


def test_training_starts_from_the_parts_and_resumes_without_them(shared, roles, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(shared, source)
    models = ["--like", str(roles), "--model", f"tool_user={source}@1", f"planner={roles}"]
    argv = [*RUN, *models, "--output-dir", str(tmp_path / "new")]
    train.main(argv)
    first, *_ = checkpoints(tmp_path / "new")
    assert first.name == "step-000000"
    assert same(weights(first / "tool_user"), weights(source / "checkpoints" / "step-000001" / "shared"))
    assert same(weights(first / "planner"), weights(latest_checkpoint(roles) / "planner"))
    shutil.rmtree(source)
    train.main([*argv, "--steps", "2", "--resume"])
    assert len((tmp_path / "new" / "metrics.jsonl").read_text().splitlines()) == 2
