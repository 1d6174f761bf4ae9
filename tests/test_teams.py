"""Models for roles and teams from parts: `--model POLICY=NAME ...` and `evaluate.py --team`."""

import json
import shutil

import pytest
import torch
from helpers import lines, refuses
from ranks import run_ranks
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

import evaluate
import prepare
import train
from distributed.world import World, start
from model import tiny
from options import BY_MODEL, parse
from records.checkpoint import checkpoints, latest_checkpoint
from records.parts import by_policy, part_of_run, sources_of

RUN = "--steps 1 --envs-per-step 2 --num-candidates 2 --eval-envs 6 --device cpu".split()  # noqa: SIM905
WARM = ["--warm-start", "2", "--max-response-tokens", "12"]
BOARD = ["--env-options", "rows=3", "cols=3", "blocks=0", "max_moves=4", "view=cells", "--max-turns", "2"]
ROLES = ["tool_user", "planner"]


def other_tokenizer():
    """Another template and another order of ids: a text has other ids than for the tiny model."""
    tokenizer = tiny.build_tokenizer()
    tokenizer.add_tokens(["<|again|>"], special_tokens=True)
    tokenizer.chat_template = "<|again|>" + tokenizer.chat_template
    return tokenizer


def save_model(folder, width=32):
    """A model of another shape with another tokenizer."""
    tokenizer = other_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(1)
    Qwen3ForCausalLM(config).save_pretrained(folder)
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


def same(first, second):
    one, two = weights(first), weights(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# --------------------------------------------------------------------------------------------------- names of policies


def test_one_model_is_for_all_and_pairs_are_for_each():
    assert by_policy(["tiny"]) == {"": "tiny"}
    assert by_policy(["a=org/x", "b=./y=z"]) == {"a": "org/x", "b": "./y=z"}
    assert sources_of(["./a=b"], ["p", "q"]) == {"p": "./a=b", "q": "./a=b"}, "a path is no pair"
    assert sources_of(["q=x", "p=y"], ["p", "q"]) == {"p": "y", "q": "x"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["x", "y"], ["--model x y", "one NAME"]),
        (["a=x", "y"], ["--model a=x y", "POLICY=NAME for each"]),
        (["a=x", "a=y"], ["a is given twice"]),
        (["a="], ["nothing is given for a"]),
        ([""], ["nothing is given"]),
        (["a=x", "c=y"], ["no policy c", "the policies are a, b"]),
        (["planer=x", "b=y"], ["no policy planer", "the policies are a, b"]),
        (["a=x"], ["no model for b", "the policies are a, b"]),
    ],
)
def test_unknown_missing_and_doubled_names_are_errors(values, words):
    with pytest.raises(ValueError, match=r"^--model") as error:
        sources_of(values, ["a", "b"])
    assert all(word in str(error.value) for word in words)


def test_a_mistyped_policy_gets_a_hint():
    with pytest.raises(ValueError, match=r"did you mean planner\?"):
        sources_of(["tool_user=x", "planer=y"], ROLES)


@pytest.mark.parametrize(
    ("argv", "policies"),
    [
        ([], ["shared"]),
        (["--model", "x"], ["shared"]),
        (["--model", "tool_user=x", "planner=y"], ["per_role"]),
        (["--model", "shared=x"], ["per_role"]),
        (["--model", "shared=x", "--policies", "shared"], ["shared"]),
        (["--model", "a=x", "b=y", "--policies", "tool_user=a", "planner=b"], ["tool_user=a", "planner=b"]),
    ],
)
def test_models_for_policies_mean_a_policy_for_each_role(argv, policies):
    assert parse(argv)[0].policies == policies


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model planner=tiny tool_user=tiny --policies shared", "the policies are shared"),
        ("--model planner=tiny", "no model for tool_user"),
        ("--model a=tiny planner=tiny --policies tool_user=a planner=b", "no policy planner; the policies are a, b"),
        ("--task sudoku --workflow single --model tool_user=tiny planner=tiny", "no policy tool_user"),
    ],
)
def test_names_that_do_not_fit_the_team_end_a_run(tmp_path, options, words):
    assert words in refuses(train.main, *RUN, "--output-dir", tmp_path / "run", *options.split())


# ------------------------------------------------------------------------------------------------------------- defaults


def test_defaults_are_tinys_only_where_tiny_plays_alone():
    tinys, others = ({name: pair[i] for name, pair in BY_MODEL.items()} for i in (0, 1))
    mixed = {**others, "warm_start": tinys["warm_start"]}

    def found(*argv):
        config, _ = parse(argv)
        return {name: getattr(config, name) for name in BY_MODEL}

    assert found() == found("--model", "tiny") == found("--model", "tool_user=tiny", "planner=tiny") == tinys
    assert found("--model", "org/x") == found("--model", "tool_user=org/x", "planner=org/y") == others
    assert found("--model", "tool_user=tiny", "planner=org/x") == mixed
    assert found("--model", "planner=org/x", "tool_user=tiny", "--lr", "0.5") == {**mixed, "lr": 0.5}


def test_in_a_mixed_team_boards_and_warm_start_are_for_tiny(tmp_path, other, monkeypatch):
    warmed = []
    monkeypatch.setattr(tiny, "warm_start", lambda policy, *_, **options: warmed.append(policy.model.config))
    config, _ = parse([*RUN, *WARM, "--model", "tool_user=tiny", f"planner={other}"])
    task = prepare.task_of(config)
    assert task.training_env.rows == tiny.BOARDS["plan_path"]["rows"]
    load = prepare.first_models(config, task, World())
    assert [model.hidden_size for model in warmed] == [64]
    assert [load(name)[0].config.hidden_size for name in ROLES] == [64, 32]
    assert load("tool_user")[0] is not load("tool_user")[0]


# ------------------------------------------------------------------------------------------------------------- training


CHANCE = """
import copy, zlib
from envs import Env, Reward

class Chance(Env):
    agents, simultaneous = ("tool_user", "planner"), False

    done = solved = False

    def reset(self, seed):
        self.last = str(seed)
        return self

    def observe(self, agent):
        return [{"role": "user", "content": f"{agent} {self.last}"}]

    def step(self, agent, text):
        self.last = text[-9:]
        return Reward(0.0, zlib.crc32(text.encode()) / 2**32)

    def copy(self):
        return copy.copy(self)
"""


@pytest.fixture
def chance(tmp_path_factory, monkeypatch):
    """A task whose reward is by chance, but the same for the same text: every group has a gradient."""
    path = tmp_path_factory.mktemp("task") / "chance.py"
    path.write_text(CHANCE)
    monkeypatch.setattr(prepare, "check", lambda *_: [])  # it takes time, and notices a machine that is busy
    return f"{path}:Chance"


def train_mixed(folder, other, chance, *more):
    options = "--max-turns 2 --max-response-tokens 6 --lr 1e-3 --adam-eps 1e-5 --lr-warmup 0".split()  # noqa: SIM905
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
    train_mixed(tmp_path / "cut", other, chance, "--steps", "2", "--save-every", "1", "--keep", "9")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000002")
    (tmp_path / "cut" / "checkpoints" / "latest").write_text("step-000001")
    train_mixed(tmp_path / "cut", other, chance, *["--steps", "2", "--save-every", "1", "--keep", "9", "--resume"])
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert "(n=4, se " in lines(capsys, tmp_path / "whole", "--envs", 4)[-1]


def test_a_prompt_is_encoded_for_its_own_policy_and_engines_are_one_for_each_architecture(other):
    config, _ = parse([*RUN, *WARM, "--model", "tool_user=tiny", f"planner={other}"])
    task = prepare.task_of(config)
    team = prepare.make_team(config, ROLES, World(), prepare.first_models(config, task, World()))
    messages = [{"role": "user", "content": "tool_user"}]
    ids = {agent: team.encode(agent, messages) for agent in ROLES}
    assert ids["planner"][1:] == ids["tool_user"]
    assert team.decode_prompt("planner", ids["planner"]).startswith("<|again|>")
    assert len({id(engine) for engine in team.engines.values()}) == 2


def test_one_architecture_has_one_engine_wherever_its_weights_come_from(shared):
    config, _ = parse([*RUN, *WARM, "--model", "tool_user=tiny", f"planner={shared}"])
    team = prepare.make_team(config, ROLES, World(), prepare.first_models(config, prepare.task_of(config), World()))
    assert len({id(engine) for engine in team.engines.values()}) == 1


def test_two_architectures_cannot_sleep(other):
    config, _ = parse([*RUN, *WARM, "--model", "tool_user=tiny", f"planner={other}", "--engine-sleep"])
    load = prepare.first_models(config, prepare.task_of(config), World())
    with pytest.raises(ValueError, match="--engine-sleep"):
        prepare.make_team(config, ROLES, World(), load)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_two_architectures_as_one_process_does(tmp_path, other, chance, size):
    train_mixed(tmp_path / "alone", other, chance)
    run_ranks(size, lambda rank: train_mixed(tmp_path / "ranks", other, chance), limit=120)
    alone, ranks = (json.loads((tmp_path / name / "metrics.jsonl").read_text()) for name in ("alone", "ranks"))
    assert alone.pop("groups/per_turn") == ranks.pop("groups/per_turn")
    assert ranks == pytest.approx(alone, rel=1e-3, abs=1e-5)
    assert alone["planner/optimizer_steps"] > 0 < alone["tool_user/optimizer_steps"]
    for name in ROLES:
        one, two = (weights(latest_checkpoint(tmp_path / run) / name) for run in ("alone", "ranks"))
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, atol=2e-5, rtol=1e-3)


# ----------------------------------------------------------------------------------------------------- parts of runs


def test_what_names_a_policy_of_a_run(shared, roles, tmp_path, monkeypatch):
    newest = latest_checkpoint(roles)
    assert part_of_run(str(roles)).folder(["planner"], ["per_role"]) == newest / "planner"
    assert part_of_run(f"{shared}/").checkpoint.name == "step-000002"
    assert part_of_run(f"{shared}@1").checkpoint.name == "step-000001"
    assert part_of_run(str(newest)).folder(["planner"], ["per_role"]) == newest / "planner"
    assert part_of_run(str(newest / "planner")).folder(["tool_user"], ["per_role"]) == newest / "planner"
    assert part_of_run(str(shared)).folder(["anybody", "else"], ["shared"]).name == "shared"
    assert part_of_run("tiny") is part_of_run("org/model") is part_of_run(str(tmp_path)) is None
    with pytest.raises(ValueError, match=r"no policy of that run plays tool_user, planner; it has planner, tool_user"):
        part_of_run(str(roles)).folder(ROLES, ["per_role"])
    with pytest.raises(ValueError, match=r"plays coder"):
        part_of_run(str(roles)).folder(["coder"], ["per_role"])
    monkeypatch.chdir(shared.parent)
    assert part_of_run("shared@0").checkpoint.name == "step-000000"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{run}@7", "no checkpoint of step 7; there are 0, 1, 2"),
        ("{run}@last", "write RUN@STEP"),
        ("{run}@", "write RUN@STEP"),
        ("{run}s@1", "did you mean"),
        ("{run}s", "there is no such folder"),
    ],
)
def test_a_part_that_does_not_exist_is_named(shared, source, words):
    source = source.format(run=shared)
    message = refuses(evaluate.main, "--team", f"tool_user={source}", f"planner={shared}", "--envs", 2)
    assert message.startswith("evaluate.py: error: ")
    assert words in message
    assert source in message or source.removesuffix("@7") in message
    assert "--model" not in message


def test_a_team_of_parts_plays_as_its_own_run_does(roles, capsys):
    whole = lines(capsys, roles, "--envs", 6)
    parts = lines(capsys, "--team", f"tool_user={roles}", f"planner={roles}@1", "--envs", 6)
    folders = [f"{name}={latest_checkpoint(roles) / name}" for name in ROLES]
    assert whole[1:] == parts[1:] == lines(capsys, "--team", *folders, "--envs", 6)[1:]


def test_parts_of_different_runs_steps_and_models_play_together(shared, roles, other, capsys):
    short = ["--max-response-tokens", 8, "--envs", 3]
    printed = lines(capsys, "--team", f"tool_user={shared}@1", f"planner={other}", *short)
    assert f"tool_user={shared}@1 planner={other}" in printed[0]
    assert printed[-1].endswith(")")
    assert "(n=3, se " in lines(capsys, "--team", f"tool_user={shared}@0", f"planner={roles}", "--envs", 3)[-1]
    assert "(n=3, se " in lines(capsys, "--team", "tool_user=tiny", f"planner={roles}", "--envs", 3)[-1]


def test_a_step_of_a_run_is_evaluated(shared, capsys):
    start = json.loads((shared / "evaluations.jsonl").read_text().splitlines()[0])
    printed = lines(capsys, f"{shared}@0", "--envs", 6)
    assert printed[0].startswith("plan_path (mas), step-000000")
    assert printed[-1].startswith(f"success {start['success']:.2f} ")


def test_a_run_or_a_team_and_not_both(shared):
    message = refuses(evaluate.main, shared, "--team", "tool_user=tiny", "planner=tiny")
    assert f"--team tool_user=tiny planner=tiny {shared}: give one NAME" in message
    with pytest.raises(SystemExit) as exit_:  # by argparse, with its usage
        evaluate.main([])
    assert exit_.value.code == 2


def test_two_ranks_play_a_team_of_parts_as_one(shared, roles, capfd):
    argv = ["--team", f"tool_user={shared}@1", f"planner={roles}", "--envs", "5"]
    evaluate.main(argv)
    alone = capfd.readouterr().out.strip().splitlines()
    run_ranks(2, lambda rank: evaluate.main(argv))
    assert capfd.readouterr().out.strip().splitlines()[1:] == alone[1:]


def test_a_damaged_part_is_named(roles, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(roles, copy)
    path = latest_checkpoint(copy) / "planner" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refuses(evaluate.main, "--team", f"tool_user={roles}", f"planner={copy}")


# ------------------------------------------------------------------------------------------------- options of the runs


def test_a_new_run_keeps_the_boards_of_its_parts(shared, roles, tmp_path):
    config, _ = parse(["--model", f"tool_user={shared}@1", f"planner={roles}"])
    assert (config.task, config.workflow, config.max_turns, config.policies) == ("plan_path", "mas", 2, ["per_role"])
    assert set(config.env_options) == {"rows=3", "cols=3", "blocks=0", "max_moves=4", "view=cells"}
    assert (config.lr, config.warm_start, config.max_response_tokens) == (1e-4, 0, 12)
    whole, _ = parse(["--model", str(shared)])
    assert (whole.policies, whole.max_turns, whole.lr) == (["shared"], 2, 8e-4)
    assert parse(["--model", str(roles)])[0].policies == ["per_role"]
    assert parse(["--model", str(latest_checkpoint(roles) / "planner")])[0].policies == ["shared"]


def test_what_is_given_wins_and_only_that(shared):
    config, _ = parse(["--model", str(shared), "--max-turns", "5", "--env-options", "rows=5", "--lr", "0.5"])
    assert (config.max_turns, config.lr) == (5, 0.5)
    assert dict(pair.split("=") for pair in config.env_options) == {
        "rows": "5", "cols": "3", "blocks": "0", "max_moves": "4", "view": "cells"
    }  # fmt: skip
    other, _ = parse(["--model", str(shared), "--task", "sokoban"])
    assert (other.task, other.env_options, other.max_turns) == ("sokoban", [], 2)


def test_boards_of_the_tiny_model_stay_without_it_and_others_with_it(shared, tmp_path):
    """What a run owes to the tiny model by default is written out, and so is what it does not owe to it."""

    def edited(name, **options):
        folder = tmp_path / name
        shutil.copytree(shared, folder)
        saved = json.loads((folder / "config.json").read_text())
        del saved["sha256"]
        (folder / "config.json").write_text(json.dumps(saved | options))
        return folder

    small = edited("small", env_options=[])
    large = edited("large", env_options=[], model=["org/chat"])
    assert prepare.task_of(parse(["--model", str(small)])[0]).training_env.rows == 6
    mixed, _ = parse(["--model", "tool_user=tiny", f"planner={large}"])
    assert prepare.task_of(mixed).training_env.rows == 10
    with pytest.raises(ValueError, match=r"--env-options rows=6, .*large with --env-options rows=10; say") as error:
        parse(["--model", f"tool_user={small}", f"planner={large}"])
    assert str(small) in str(error.value)
    given = ["--env-options", "rows=5", "cols=5", "blocks=0.1", "max_moves=3", "view=cells"]
    assert parse(["--model", f"tool_user={small}", f"planner={large}", *given])[0].env_options == given[1:]


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("task", "sokoban", "--task sokoban"),
        ("max_turns", 5, "--max-turns 5"),
        ("workflow", "single", "--workflow single"),
    ],
)
def test_runs_that_differ_need_an_option_that_decides(shared, tmp_path, option, value, shown):
    shutil.copytree(shared, tmp_path / "b")
    saved = json.loads((tmp_path / "b" / "config.json").read_text())
    del saved["sha256"]
    (tmp_path / "b" / "config.json").write_text(json.dumps(saved | {option: value}))
    argv = ["--model", f"tool_user={shared}", f"planner={tmp_path / 'b'}"]
    with pytest.raises(ValueError, match=shown) as error:
        parse(argv)
    assert str(shared) in str(error.value)
    assert f"--{option.replace('_', '-')} {saved[option]}" in str(error.value)
    assert getattr(parse([*argv, *shown.split()])[0], option) == value


def test_data_for_training_matters_to_training_only(shared, tmp_path):
    for name in "ab":
        shutil.copytree(shared, tmp_path / name)
        saved = json.loads((tmp_path / name / "config.json").read_text())
        del saved["sha256"]
        text = json.dumps(saved | {"task": "math", "env_options": [], "data": f"{name}.jsonl", "eval_data": "c.jsonl"})
        (tmp_path / name / "config.json").write_text(text)
    argv = ["--model", f"reasoner={tmp_path / 'a'}", f"tool_user={tmp_path / 'b'}"]
    with pytest.raises(ValueError, match=r"--data a.jsonl.*--data b.jsonl"):
        parse(argv)
    config, _ = parse(argv, training=False)
    assert (config.task, config.data, config.eval_data) == ("math", "", "c.jsonl")


def test_training_starts_from_the_parts_and_resumes_without_them(shared, roles, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(shared, source)
    argv = [*RUN, "--model", f"tool_user={source}@1", f"planner={roles}", "--output-dir", str(tmp_path / "new")]
    train.main(argv)
    first, *_ = checkpoints(tmp_path / "new")
    assert first.name == "step-000000"
    assert same(first / "tool_user", source / "checkpoints" / "step-000001" / "shared")
    assert same(first / "planner", latest_checkpoint(roles) / "planner")
    saved = json.loads((source / "config.json").read_text())
    del saved["sha256"]
    (source / "config.json").write_text(json.dumps(saved | {"max_turns": 6}))  # as if it had been trained anew
    train.main([*argv, "--steps", "2", "--resume"])
    assert latest_checkpoint(tmp_path / "new").name == "step-000002"
    rows = (tmp_path / "new" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2
    assert max(json.loads(row)["turns"] for row in rows) <= 2


def test_ranks_start_from_parts(shared, roles):
    argv = [*RUN, "--model", f"tool_user={shared}", f"planner={roles}"]

    def work(rank):
        world, (config, _) = start("cpu"), parse(argv)
        load = prepare.first_models(config, prepare.task_of(config), world)
        team = prepare.make_team(config, ROLES, world, load)
        return {name: {key: value.clone() for key, value in p.weights()} for name, p in team.policies.items()}

    a, b = run_ranks(2, work)
    expected = weights(latest_checkpoint(shared) / "shared"), weights(latest_checkpoint(roles) / "planner")
    assert (list(a), list(b)) == (["tool_user"], ["planner"])
    for found, one in ((a["tool_user"], expected[0]), (b["planner"], expected[1])):
        assert all(torch.equal(value, one[key]) for key, value in found.items())
