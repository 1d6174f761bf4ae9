"""Adapters: policies that share a frozen model, what engines and checkpoints get, ranks, exact resuming."""

import json
import os
import re
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from helpers import gradients_agree, lines, make_sample, objective, random_batch, reference_logprobs, small_model, whole
from helpers import same as equal
from helpers import watch_gradients as watch
from helpers import weights_of as named
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from distributed.world import start
from model import lora, tiny
from model.attention import packed
from model.packing import pack_samples
from model.policy import make_policy
from records.console import half_up
from records.run_folder import latest_checkpoint, read_rows
from update import update

peft = pytest.importorskip("peft")
ROLES = ["tool_user", "planner"]
RUN = "--envs-per-step 4 --num-candidates 3 --max-turns 1 --eval-envs 6 --warm-start 25 --device cpu".split()  # noqa: SIM905
RUN += ["--env-options", "rows=3", "cols=3", "blocks=0", "max_moves=4", "view=cells", "--policies", "per_role"]
LORA = ["--adapter", "lora", "--lora-rank", "4", "--save-every", "1", "--keep", "9", "--trees", "0"]


def pair(checkpointing=False, mesh=None, architecture="qwen3", **layout):
    """Two policies on one model, with adapters that are no longer 0."""
    model = small_model(architecture, **layout)
    for name in "ab":
        lora.add_adapter(model, name, 4, 0)
    with torch.no_grad():
        for i, name in enumerate("ab"):
            for j, (_, weight) in enumerate(lora.adapter_weights(model, name)):
                weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(100 * i + j))
    first = make_policy("a", model, tiny.build_tokenizer(), 1e-2, "cpu", mesh, checkpointing)
    return first, make_policy("b", model, first.tokenizer, 1e-2, "cpu", mesh, checkpointing, root=first.root)


def plain(policy):
    """A model without adapters that has the weights of a policy."""
    model = type(policy.model)(policy.model.config)
    missing, unexpected = model.load_state_dict(whole(policy), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tie", [True, False])
def test_what_engines_get_computes_what_the_policy_does(architecture, tie):
    """Under the model's own names; the two policies differ, and their turns may come in any order."""
    policies = pair(architecture=architecture, tie=tie)
    samples = random_batch()[:3]
    found = {}
    for policy in (*policies, policies[0]):
        model = plain(policy)
        assert {name: tuple(w.shape) for name, w in model.named_parameters()} == {
            name: tuple(shape) for name, shape in policy.shapes.items()
        }
        expected = torch.cat([reference_logprobs(model, sample) for sample in samples])
        with packed(policy.model), torch.no_grad():
            found[policy.name] = policy.logprobs(pack_samples([samples]), 1.0)[0]
        torch.testing.assert_close(found[policy.name], expected, atol=1e-5, rtol=1e-5)
    assert (found["a"] - found["b"]).abs().max() > 0.01


def test_a_new_adapter_changes_nothing_and_is_the_same_for_the_same_seed():
    model, again, other = small_model(), small_model(), small_model()
    for one, seed in ((model, 0), (again, 0), (other, 1)):
        lora.add_adapter(one, "p", 4, seed)
    policy = make_policy("p", model, tiny.build_tokenizer(), 1e-2)
    expected = dict(small_model().named_parameters())
    assert equal(dict(policy.weights()), expected)
    own, alike, differs = (dict(lora.adapter_weights(one, "p")) for one in (model, again, other))
    assert equal(own, alike)
    assert not equal(own, differs)
    assert len(own) == 2 * 7 * 2  # A and B of seven linear layers in two blocks


def test_an_update_moves_one_adapter_and_nothing_else():
    a, b = pair()
    for policy, other in ((a, b), (b, a)):
        before = named(policy)
        update(policy, random_batch(), objective(minibatches=2))
        own = {name for name, _ in policy.parameters()}
        moved = {name for name, weight in named(policy).items() if not torch.equal(weight, before[name])}
        assert moved == own
        assert not own & {name for name, _ in other.parameters()}
    assert all(weight.grad is None for _, weight in a.model.named_parameters())
    assert {id(w) for group in a.optimizer.param_groups for w in group["params"]} == {id(w) for _, w in a.parameters()}


def test_gradients_are_those_of_the_merged_model():
    """d L / d B = scale * (d L / d W) A^T and d L / d A = scale * B^T (d L / d W), with W of a model by itself."""
    a, _ = pair()
    twin = make_policy("twin", plain(a), a.tokenizer, 1e-2)
    seen, expected = watch(a), watch(twin)
    adapters = {name: weight.detach().clone() for name, weight in a.parameters()}
    for policy in (a, twin):
        update(policy, random_batch(), objective())
    (found,), (full,) = seen, expected
    assert found.keys() == adapters.keys()
    wanted = {}
    for name in adapters:
        layer, matrix = name.split(".lora_")
        gradient, scale = full[f"{layer}.weight"], lora.ALPHA / 4
        low, high = (adapters[f"{layer}.lora_{x}.of_a.weight"] for x in "AB")
        wanted[name] = scale * (high.T @ gradient if matrix[0] == "A" else gradient @ low.T)
    gradients_agree(found, wanted, 1e-4)


@pytest.mark.parametrize(("size", "checkpointing"), [(1, False), (2, True), (3, False)])
def test_ranks_move_adapters_as_one_process_does(size, checkpointing):
    alone = pair()

    def steps(policies):
        for step in range(2):
            for shift, policy in enumerate(policies):
                update(policy, random_batch(seed=shift), objective(minibatches=2, grad_clip=0.5), (0, step))

    def work(rank):
        mesh = start("cpu").meshes({"a": list(range(size))})["a"]
        policies = pair(checkpointing, mesh)
        frozen = {name: w.clone() for name, w in lora.merged_weights(policies[0].root, policies[0].model)}
        steps(policies)
        assert equal(dict(lora.merged_weights(policies[0].root, policies[0].model)), frozen)
        return [whole(policy) for policy in policies]

    steps(alone)
    for found in run_ranks(size, work):
        torch.testing.assert_close(found, [whole(policy) for policy in alone], atol=2e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two adapters, three steps, with all its checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "lora"
    train.main([*RUN, *LORA, "--steps", "3", "--output-dir", str(folder)])
    return folder


def test_a_checkpoint_is_a_folder_of_peft(run):
    folder = latest_checkpoint(run)
    for name in ROLES:
        saved = json.loads((folder / name / "adapter_config.json").read_text())
        assert (saved["peft_type"], saved["r"], saved["base_model_name_or_path"]) == (
            "LORA", 4, str(run / "bases" / "tool_user")
        )  # fmt: skip
        assert (folder / name / "adapter_model.safetensors").exists()
        assert not (folder / name / "model.safetensors").exists()
        base = AutoModelForCausalLM.from_pretrained(saved["base_model_name_or_path"])
        theirs = peft.PeftModel.from_pretrained(base, folder / name)
        merged, _ = lora.load_whole(str(folder / name))
        sample = make_sample(prompt=[5, 6, 7], response=[8, 9, 4])
        with torch.no_grad():
            own, expected = (reference_logprobs(model, sample) for model in (merged, theirs))
            untrained = reference_logprobs(AutoModelForCausalLM.from_pretrained(run / "bases" / "tool_user"), sample)
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(own, untrained, atol=1e-4), "it was trained"
    assert [path.name for path in (run / "bases").iterdir()] == ["tool_user"], "one for both"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(run, tmp_path, ranks):
    copy = tmp_path / "cut"
    shutil.copytree(run, copy)
    for step in (2, 3):
        shutil.rmtree(copy / "checkpoints" / f"step-{step:06d}")
    (copy / "checkpoints" / "latest").write_text("step-000001")
    argv = [*RUN, *LORA, "--steps", "3", "--output-dir", str(copy), "--resume"]
    run_ranks(ranks, lambda rank: train.main(argv)) if ranks > 1 else train.main(argv)
    found, expected = ((path / "metrics.jsonl").read_text() for path in (copy, run))
    if ranks == 1:
        assert found == expected
    for name in ROLES:
        models = (lora.load_whole(str(latest_checkpoint(path) / name))[0] for path in (copy, run))
        both = (dict(model.named_parameters()) for model in models)
        torch.testing.assert_close(*both, atol=0 if ranks == 1 else 1e-4, rtol=0)


def test_a_run_is_evaluated_moved_and_merged(run, tmp_path, capsys):
    expected = lines(capsys, run, "--envs", 6)
    saved = read_rows(run / "evaluations.jsonl")[-1]
    assert expected[-1].startswith(f"success {half_up(saved['success'])} ")
    merged = lines(capsys, run, "--envs", 6, "--merge", tmp_path / "merged")
    assert merged == expected
    team = [f"{name}={tmp_path / 'merged' / name}" for name in ROLES]
    options = ["--envs", 6, "--max-turns", 1, "--max-response-tokens", 16, "--device", "cpu", *RUN[12:18]]
    assert RUN[12] == "--env-options"
    assert lines(capsys, "--team", *team, *options)[1:] == expected[1:]
    AutoTokenizer.from_pretrained(tmp_path / "merged" / "planner")
    weight = AutoModelForCausalLM.from_pretrained(tmp_path / "merged" / "planner").model.layers[0].mlp.up_proj.weight
    base = AutoModelForCausalLM.from_pretrained(run / "bases" / "tool_user").model.layers[0].mlp.up_proj.weight
    assert not torch.equal(weight, base)

    moved = tmp_path / "elsewhere"
    shutil.copytree(run, moved)
    hidden = run.with_name("hidden")
    run.rename(hidden)
    try:
        assert lines(capsys, moved, "--envs", 6)[1:] == expected[1:]
    finally:
        hidden.rename(run)


def test_adapters_and_whole_models_play_and_train_on(run, tmp_path, capsys):
    """From adapters to whole weights and back: a part is merged, and what is below new adapters is in the new run."""
    argv = [*RUN[:8], "--steps", "1", "--max-response-tokens", "8", "--device", "cpu"]
    argv += ["--model", f"tool_user={run}@1", f"planner={run}"]
    train.main([*argv, "--output-dir", str(tmp_path / "full")])
    assert (latest_checkpoint(tmp_path / "full") / "planner" / "model.safetensors").is_file()
    argv[-2] = f"tool_user={tmp_path / 'full'}"
    train.main([*argv, *LORA, "--output-dir", str(tmp_path / "again")])
    assert sorted(path.name for path in (tmp_path / "again" / "bases").iterdir()) == sorted(ROLES)
    shutil.copytree(latest_checkpoint(tmp_path / "again") / "planner", tmp_path / "adapter")  # outside of any run
    argv[argv.index("--model") + 1 :] = [str(tmp_path / "adapter"), "--policies", "per_role", *RUN[12:18]]
    train.main([*argv, *LORA, "--output-dir", str(tmp_path / "adapted")])
    assert [path.name for path in (tmp_path / "adapted" / "bases").iterdir()] == ["tool_user"]
    assert "(n=3, se " in lines(capsys, tmp_path / "adapted", "--envs", 3)[-1]
    shutil.rmtree(tmp_path / "full")
    assert "(n=3, se " in lines(capsys, tmp_path / "again", "--envs", 3)[-1]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder as peft saves it, and a loader of its base without the checks of whole models."""
    folder, config = tmp_path_factory.mktemp("peft"), peft.LoraConfig(
        r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )  # fmt: skip
    torch.manual_seed(0)
    peft.get_peft_model(small_model(), config).save_pretrained(folder)
    change(folder, {"init_lora_weights": True, "base_model_name_or_path": "base"})
    return folder


def change(folder, fields=None, weights=None):
    path = folder / lora.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | (fields or {})))
    if weights:
        tensors = load_file(folder / lora.WEIGHTS)
        weights(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / lora.WEIGHTS)


def outcome(folder):
    """Log-probs of the merged model, and those by peft (None where it raises). ValueError of one line."""
    sample, base = make_sample(prompt=[5, 6, 7], response=[8, 9, 4]), (lambda _: (small_model(), None))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(lora, "load_model", base)
        found = reference_logprobs(lora.load_whole(str(folder))[0], sample)
        model = small_model()
        lora.load_adapter(model, "p", folder)
        torch.testing.assert_close(reference_logprobs(model, sample), found)
        try:
            return found, reference_logprobs(peft.PeftModel.from_pretrained(small_model(), folder), sample)
        except Exception:
            return found, None


def first(change_of):
    """The same change of the first A (2, 16), or of the first B, of which B 'up' begins with another name."""
    return lambda tensors: tensors.update({(name := min(tensors)): change_of(tensors[name])})


REFUSED = [  # (fields of the configuration, change of the weights, words of the refusal)
    ({"base_model_name_or_path": None}, None, "base_model_name_or_path is missing"),
    ({"revision": "v2"}, None, "revision is 'v2'"),
    ({"use_dora": True}, None, "use_dora"),
    ({"modules_to_save": ["embed_tokens"]}, None, "modules_to_save"),
    ({"layer_replication": [[0, 2], [1, 2]]}, None, "layer_replication"),
    ({"alora_invocation_tokens": [1]}, None, "alora_invocation_tokens"),
    ({"init_lora_weights": "pissa_niter_4"}, None, "init_lora_weights is 'pissa_niter_4'"),
    ({"something_new": 3}, None, "something_new is 3"),
    ({"lora_alpha": float("nan")}, None, "lora_alpha is nan"),
    ({"r": 4}, None, "expected torch.Size([4, "),
    ({"target_modules": ["q_proj"]}, None, "down_proj.lora_A.weight has"),
    ({"target_modules": ["q_proj", "down_proj", "up_proj"]}, None, "up_proj.lora_A"),
    ({"target_modules": ["lm_head"]}, None, "adapter: "),
    ({}, lambda w: w.update({"base_model.model.lm_head.lora_A.weight": torch.ones(2, 16)}), "lm_head.lora_A"),
    ({}, first(lambda weight: weight[:1]), "has the shape [1, 24], expected torch.Size([2, 24])"),
    ({}, first(lambda weight: weight[0]), "has the shape [24]"),
    ({}, first(lambda weight: weight.int()), "torch.int32"),
    ({}, first(lambda weight: weight > 0), "torch.bool"),
    ({}, first(lambda weight: weight / 0), "not finite"),
    ({"r": 1}, lambda tensors: tensors.update({n: t[:1, :1] for n, t in tensors.items()}), "has the shape [1, 1]"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "weights", "words"), REFUSED)
def test_an_adapter_that_is_not_plain_is_refused_by_name(elsewhere, tmp_path, fields, weights, words):
    folder = shutil.copytree(elsewhere, tmp_path / "adapter")
    change(folder, fields, weights)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        outcome(folder)
    assert str(error.value).startswith(f"--model {folder}: ")
    assert "\n" not in str(error.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.sampled_from(["", "all", "q_proj", "gaussian"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["q_proj", "0"]), inner, max_size=1),
    max_leaves=3,
)


@settings(max_examples=int(os.environ.get("ADAPTER_EXAMPLES", "40")), deadline=None)
@given(name=st.sampled_from([*peft.LoraConfig().to_dict(), "unknown"]), value=VALUES)
def test_any_field_is_refused_or_computes_what_peft_does(elsewhere, name, value):
    with tempfile.TemporaryDirectory() as parent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = outcome(elsewhere)
        folder = shutil.copytree(elsewhere, Path(parent) / "adapter")
        change(folder, {name: value})
        try:
            found, theirs = outcome(folder)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            torch.testing.assert_close(found, expected if theirs is None else theirs, atol=1e-5, rtol=1e-5)


def test_a_run_that_was_copied_plays_on_its_own_base(run, tmp_path):
    """Though another model lies where the base was when the run was made."""
    folder = latest_checkpoint(shutil.copytree(run, tmp_path / "copy")) / "planner"
    assert lora.base_of(folder) == str(tmp_path / "copy" / "bases" / "tool_user")
