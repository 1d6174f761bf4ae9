"""From the options to what the loop needs: environments, policies, engines, and the step to start from."""

import copy
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from distributed.exchange import gather_episodes
from distributed.world import World, place
from model import lora, tiny
from model.policy import Policy, make_policy
from options import Config, policy_map, sources
from records import run_folder
from records.card import write_cards
from records.checkpoint import load_optimizers, save_checkpoint
from records.log import LEVELS, Log, say
from records.stop import Stop, Stopped
from records.track import make_tracker
from rollout import Evaluation, evaluate
from sampling.engine import Engine
from sampling.team import Team
from sampling.transformers_engine import TransformersEngine
from sampling.vllm_engine import VllmEngine, alone_on_the_gpu, import_vllm
from tasks import sandbox
from tasks.levels import HELD_OUT_SEEDS, Levels, make_levels
from tasks.registry import TASKS, task_class
from tools.check import check


@dataclass
class Run:
    config: Config
    team: Team
    levels: Levels
    pool: Executor | None  # threads that score; None: scoring is fast
    log: Log
    stop: Stop
    done: int = 0  # steps in the newest checkpoint

    def first_evaluation(self) -> float:
        """Held-out success before training: played now, or read by a run that resumes."""
        if self.config.resume:
            path = self.log.run / "evaluations.jsonl"
            if not (rows := run_folder.read_rows(path, ("step", "success", "se", "n"))):
                raise ValueError(f"{path}: the evaluation before training is missing")
            before = rows[0]["success"]
        else:
            self.log.say("first evaluation: held-out environments, played greedily before training")
            before = self.evaluate(0).success
            self.save(0)
        if self.team.world.main:  # last: without it the folder holds no run and can be used again
            run_folder.write_text(self.log.run / "config.json", json.dumps(asdict(self.config), indent=1))
        return before

    def steps(self) -> Iterator[int]:
        """The steps that are left. A signal on any rank: the step is finished and saved, then Stopped."""
        world, self.stop.patient, self.stop.begun = self.team.world, True, True
        for step in self.log.progress(self.done):
            yield step
            if number := max(world.gather(self.stop.number)):  # all ranks stop after the same step
                if self.done <= step:
                    self.save(step + 1)
                world.close()
                raise Stopped(number)
        self.stop.patient = False

    def evaluate(self, step: int) -> Evaluation:
        """Held-out success after `step` steps, logged."""
        result = held_out(self.config, self.team, self.levels, self.pool)
        self.log.evaluation(step, result)
        write_cards(self.log.run, step, self.config, self.team, self.levels)
        return result

    def save(self, step: int) -> None:
        save_checkpoint(self.log.run, step, self.team.policies, self.config.keep, self.team.world)
        self.done = step
        write_cards(self.log.run, step, self.config, self.team, self.levels)


def prepare(config: Config, world: World, folder: Path, stop: Stop) -> Run:
    """A new run, or one that goes on from its newest checkpoint. ValueError on options and data that do not fit."""
    say(world, f"{config.task} ({config.workflow}), model {' '.join(config.model)}; run folder {folder}")
    small = world.device == "cpu" and set(config.model) == {"tiny"} and "OMP_NUM_THREADS" not in os.environ
    if small:
        torch.set_num_threads(1)  # to sample: two gain little
    checkpoint = run_folder.latest_checkpoint(folder) if config.resume else None
    done = run_folder.step_of(checkpoint) if checkpoint else 0
    if done > config.steps:
        raise ValueError(f"--steps {config.steps}: {folder} has done {done} already")
    levels = levels_of(config)
    pool = scoring_pool(config, levels)
    if config.task not in TASKS:
        check(levels.training_env.copy(), config.task)
    agents = levels.training_env.agents
    track = make_tracker(config.track if world.main else "none", folder, asdict(config), done)
    team = make_team(config, agents, world, load_models(config, levels, world, checkpoint))
    for name, policy in team.policies.items():
        if small and world.size == 1:
            policy.threads = None  # the first update chooses them, or the checkpoint has them
        if policy.adapted and not policy.model.name_or_path:  # nobody else has what is below
            policy.save(base := folder / "bases" / name, lora.merged_weights(policy.root, policy.model))
            policy.model.name_or_path = str(base.resolve())
    inputs = world.merge(inputs_of(config, team.policies))
    if world.main:
        (run_folder.check_pins if config.resume else run_folder.pin)(folder, inputs)
    log = Log(folder, world, config, levels, list(team.ranks_of), team.decode, track)
    log.say(f"{team.describe()}; agents act in the order {', '.join(agents)}")
    if checkpoint:
        load_optimizers(checkpoint, team.policies)
        log.say(f"resuming after step {done}")
    else:
        env = levels.training(config.seed, 0, 0, config.envs_per_step)
        prompt = team.tokenizers[team.policy_of[agents[0]]].decode(team.encode(agents[0], env.observe(agents[0])))
        log.say(f"the first prompt, as the model sees it:\n{prompt}")
    log.begin(done if checkpoint else -1)
    return Run(config, team, levels, pool, log, stop, done)


def levels_of(config: Config, training: bool = True) -> Levels:
    """The levels of a run, or only the held-out ones."""
    problems = config.data, config.eval_data, config.max_turns
    return make_levels(config.task, config.workflow, config.env_options, *problems, training=training)


def scoring_pool(config: Config, levels: Levels) -> Executor | None:
    """Threads where scoring waits for other processes, else None."""
    sandbox.set_mode(config.sandbox)
    if levels.training_env.runs_programs:
        sandbox.use_bubblewrap()  # or a refusal, before anything is loaded
    # no more than the cores of this rank, or programs would time out
    threads = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return ThreadPoolExecutor(threads) if levels.training_env.slow_scoring else None


def inputs_of(config: Config, policies: Mapping[str, Policy]) -> dict[str, str]:
    """What a run is made from: {file: ""} for problems, its own task and weights below adapters, {hub id: commit}."""
    files, commits = [config.data, config.eval_data], {}
    if config.task not in TASKS:
        files.append(inspect.getfile(task_class(config.task)))
    for base in {str(policy.model.name_or_path) for policy in policies.values() if policy.adapted}:
        files += map(str, Path(base).glob("*.[js]*"))
        if not Path(base).is_dir():  # on the hub another model may have this name tomorrow
            commits[base] = Path(str(cached_file(base, "config.json", local_files_only=True))).parent.name
    return {file: "" for file in files if Path(file).is_file()} | commits


def held_out(
    config: Config, team: Team, levels: Levels, pool: Executor | None, samples: int = 1, temperature: float = 0.0,
    top_p: float = 1.0,
) -> Evaluation:  # fmt: skip
    """Success on environments that training never sees, greedy by default."""
    numbers = levels.held_out_numbers(config.eval_envs)
    ids = team.world.mine(numbers)
    return evaluate(
        list(map(levels.held_out, ids)),
        team.sampler(temperature, top_p),
        encode=team.encode,
        decode=team.decode,
        max_turns=config.max_turns,
        samples=samples,
        seed=(config.seed, HELD_OUT_SEEDS),
        env_ids=ids,
        pool=pool,
        gather=lambda result: gather_episodes(team.world, result, numbers[:LEVELS]),
    )


Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]  # a model on the CPU
Load = Callable[[str], Loaded]  # policy -> its model, which policies with adapters share


def places(config: Config, agents: Sequence[str], world: World) -> dict[str, list[int]]:
    """The ranks of every policy. ValueError on --ranks and --frozen that do not fit."""
    names = list(dict.fromkeys(policy_map(config, agents).values()))
    if not set(config.frozen) < set(names):
        raise ValueError(f"--frozen {' '.join(config.frozen)}: name some of the policies {', '.join(names)}, not all")
    return place(names, world.size, config.ranks)


def make_team(config: Config, agents: Sequence[str], world: World, weights: Load) -> Team:
    """The policies of this rank with optimizers and engines, and all tokenizers: it plays whole environments."""
    policy_of, ranks_of = policy_map(config, agents), places(config, agents, world)
    policies = dict[str, Policy]()
    meshes = world.meshes(ranks_of)
    models: Iterable[tuple] = ((name, *weights(name)) for name in meshes)  # one at a time on the CPU
    if config.adapter == "lora":  # a model has all its adapters before it is sharded
        models = list(models)
    for name, model, tokenizer in models:
        policies[name] = make_policy(
            name, model, tokenizer, config.lr, world.device, meshes[name], config.gradient_checkpointing, config.fused,
            config.optimizer, next((other.root for other in policies.values() if other.model is model), None),
        )  # fmt: skip
    firsts = [name for name in policies if ranks_of[name][0] == world.rank]  # each tokenizer travels once
    tokenizers = world.merge({name: policies[name].tokenizer for name in firsts})
    team = Team(policies, policy_of, make_engines(config, policies), tokenizers, world, ranks_of, config.frozen)
    if world.device.startswith("cuda") and not config.micro_batch_tokens:
        team.fit_packs(config.gradient_checkpointing)
    return team


# of a configuration: where a model comes from, and how its weights were stored
NAMES = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}


def make_engines(config: Config, policies: dict[str, Policy]) -> dict[str, Engine]:
    """One engine for all policies of an architecture: it loads a policy's weights before its turn."""
    alike, engines = dict[str, list[str]](), dict[str, Engine]()
    for name, policy in policies.items():
        policy.exact_engine = config.engine == "transformers" and policy.device.type == "cpu"
        architecture = policy.model.config.to_dict()
        parts = [(key, architecture[key]) for key in sorted({*architecture} - NAMES)]
        alike.setdefault(str(parts + sorted(policy.stop_ids)), []).append(name)
    for names in alike.values():
        policy, limit = policies[names[0]], config.max_response_tokens
        if config.engine == "transformers":
            engine: Engine = TransformersEngine(policy, limit)
        else:  # a large one leaves the GPU to the update; two could not take turns
            sleep = policy.size >= 1e9 and len(alike) == 1 and alone_on_the_gpu()
            engine = VllmEngine(policy, limit, memory=config.engine_memory, sleep=sleep)
        engines |= dict.fromkeys(names, engine)
    return engines


def load_models(config: Config, levels: Levels, world: World, checkpoint: Path | None = None) -> Load:
    """Models from a checkpoint, or those of `--model`. All ranks call it. ValueError on a policy without one.

    What starts from one model is warm-started once. Policies of other runs are not, nor what plays beside the tiny
    model: it alone has no idea of how to answer.
    """
    names = list(places(config, levels.training_env.agents, world))  # this and vLLM may refuse, before anything loads
    if config.engine == "vllm":
        say(world, "loading vLLM")
        import_vllm(torch.device(world.device))
    folders = {name: str(checkpoint / name) for name in names} if checkpoint else sources(config, names)
    imitates = "tiny" if "tiny" in folders.values() else config.warm_start and "all"
    loaded = dict[str, Loaded]()
    lasting = set[str]()  # what anybody can load by its name: the run keeps no copy
    for name, source in folders.items():
        if found := run_folder.locate(source):  # a policy of a run
            part = run_folder.policy_folder(found, name)
            bases = (part.parents[2] / "bases").rglob("*.[js]*")
            run_folder.check_pins(part.parents[2], {str(base): "" for base in bases})
            folders[name] = str(part)
        elif imitates in (source, "all"):
            loaded[source] = loaded.get(source) or warm_started(source, config, levels, world)
        elif not lora.is_adapter(Path(source)):
            lasting.add(source)

    def load(name: str) -> Loaded:
        folder = base = folders[name]
        if continued := checkpoint is not None and lora.is_adapter(Path(folder)):
            lasting.add(base := lora.base_of(Path(folder)))
        model, tokenizer = loaded.get(base) or lora.load_whole(base)
        if config.adapter == "none":
            return copy.deepcopy(model) if base in loaded else model, tokenizer
        loaded[base] = model, tokenizer  # one model for all policies that start from it
        if continued:
            lora.load_adapter(model, name, Path(folder))
        lora.add_adapter(model, name, config.lora_rank, config.seed)  # unless it has one
        model.name_or_path = (str(Path(base).resolve()) if Path(base).is_dir() else base) if base in lasting else ""
        return model, tokenizer

    return load


def warm_started(source: str, config: Config, levels: Levels, world: World) -> Loaded:
    """A model after imitating noisy moves, if the task has some. All ranks get the weights of rank 0."""
    model, tokenizer = tiny.build(config.seed) if source == "tiny" else lora.load_whole(source)
    if not levels.training_env.noisy_answer:
        say(world, f"no warm start: {config.task} has no noisy answers to imitate; {source} starts as it is")
        return model, tokenizer
    say(world, f"warm start: {config.warm_start} steps of imitating noisy moves")
    device, lr = ("cpu", 3e-3) if source == "tiny" else (world.device, 2e-5)
    if world.main:
        policy = make_policy("warm start", model, tokenizer, config.lr, device)
        tiny.warm_start(policy, levels.warm, steps=config.warm_start, turns=config.max_turns, seed=config.seed, lr=lr)
        model.to("cpu")  # type: ignore[arg-type]
    world.agree(model.parameters())
    return model, tokenizer
