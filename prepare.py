"""Build what the loop needs from the options of a run: environments, policies, engines, and the step to start from."""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from distributed.exchange import gather_episodes
from distributed.world import World, place, start
from envs import TASKS
from model import lora, tiny
from model.loading import load_model
from model.lora import load_whole
from model.policy import LogProbs, Policy, make_policy
from options import Config, load, policy_map, sources
from records.checkpoint import latest_checkpoint, load_optimizers, read_state, save_checkpoint
from records.log import LEVELS, Log, on_main, say
from records.parts import part_of_run
from records.run_folder import locked, write_text
from records.stop import Stop, Stopped, how_to_go_on, speaks
from records.track import make_tracker
from records.values import fits, in_words
from rollout import Evaluation, evaluate
from sampling.engine import Engine
from sampling.team import Team
from sampling.transformers_engine import TransformersEngine
from sampling.vllm_engine import VllmEngine, import_ahead
from tasks import sandbox
from tasks.levels import HELD_OUT_SEEDS, Levels, make_levels
from tools.check import check


@dataclass
class Run:
    """What `train.train` works with."""

    config: Config
    team: Team
    task: Levels
    pool: Executor | None  # threads that score, None where scoring is fast
    log: Log
    start: int = 0  # finished steps
    before: float = 0.0  # held-out success before training
    stop: Stop = field(default_factory=Stop)
    saved: int = -1  # steps in the newest checkpoint

    def steps(self) -> Iterator[int]:
        """The steps that are left. After Ctrl-C or SIGTERM on any rank the step is finished and saved, then Stopped."""
        world, self.stop.patient = self.team.world, True
        for step in self.log.progress(self.start):
            yield step
            if number := world.most(self.stop.number):  # all ranks stop after the same step
                if self.saved <= step:
                    self.save(step + 1)
                world.close()
                raise Stopped(number)
        self.stop.patient = False

    def evaluate(self, step: int) -> Evaluation:
        """Held-out success after `step` steps, logged."""
        result = held_out(self.config, self.team, self.task, self.pool)
        self.log.evaluation(step, result)
        return result

    def save(self, step: int) -> None:
        """A checkpoint after `step` steps."""
        state, world = {"before": self.before}, self.team.world
        save_checkpoint(self.log.run, step, self.team.policies, state, self.config.keep, world)
        self.saved = step


@contextmanager
def started(config: Config) -> Iterator[Run]:
    """The run of these options, whose folder is locked as long as the context lasts.

    What is wrong with options, data or folders ends the program with one line; Ctrl-C and SIGTERM end it with the
    command that goes on, and exit code 130 or 143.
    """
    folder = ""
    with ExitStack() as held:
        try:
            try:
                world = start(config.device)
                if world.device == "cpu" and set(config.model) == {"tiny"}:
                    torch.set_num_threads(1)  # two gain little, and wait for each other where a neighbour is busy
                stop = held.enter_context(Stop())
                folder = world.gather(config.output_dir)[0]  # its default holds the time of day
                config = replace(config, output_dir=folder)
                if not config.resume and (Path(folder) / "config.json").exists():
                    raise ValueError(f"--output-dir {folder} already holds a run: add --resume, or name another folder")
                Path(folder).mkdir(parents=True, exist_ok=True)
                on_main(world, lambda: held.enter_context(locked(Path(folder))))
                run = set_up(config, world, stop)
            except (ValueError, OSError, ImportError) as error:
                if dist.is_initialized():
                    dist.destroy_process_group()
                sys.exit(f"train.py: error: {error}")
            gc.freeze()  # a million objects of the libraries stay: garbage collection need not look at them every time
            yield run
        except Stopped as stopped:
            if speaks():
                print(how_to_go_on(config), flush=True)
            if dist.is_initialized():  # the other ranks may wait in the middle of anything: nobody can close the job
                os._exit(128 + stopped.number)
            sys.exit(128 + stopped.number)


def set_up(config: Config, world: World, stop: Stop) -> Run:
    """Start a run, or resume one. Raises ValueError on options and data that do not fit together."""
    folder, checkpoint = Path(config.output_dir), None
    say(world, f"{config.task} ({config.workflow}), model {' '.join(config.model)}; run folder {folder}")
    if config.resume:
        checkpoint = latest_checkpoint(folder)
        state = read_state(checkpoint, world)
        if state["step"] > config.steps:
            raise ValueError(f"--steps {config.steps}: {folder} has done {state['step']} already")
        if not fits(state.get("before"), float):
            raise ValueError(f"{checkpoint / 'state.json'}: 'before' has to be {in_words(float)}")
    task = task_of(config)
    pool, agents = scoring_pool(config, task), task.training_env.agents
    if config.task not in TASKS and (mistakes := check(task.training_env.copy, config.task)):
        raise ValueError(f"--task {config.task}: {mistakes[0]} (python -m tools.check {config.task} lists all)")
    done = state["step"] if checkpoint else 0
    track = on_main(world, lambda: make_tracker(config.track, folder, asdict(config), done))
    if config.warm_start and task.training_env.noisy_answer and not checkpoint:
        say(world, f"warm start: {config.warm_start} steps of imitating noisy moves")
    if config.engine == "vllm":  # while the model is loaded and warmed up
        import_ahead(world.device)
    weights = saved_models(checkpoint) if checkpoint else first_models(config, task, world)
    team = make_team(config, agents, world, weights)
    save_bases(team.policies, folder)
    log = Log(
        folder, world, config, agents, list(team.ranks_of), team.decode,
        lambda step, i: task.training(config.seed, step, i, config.envs_per_step), task.held_out, track,
    )  # fmt: skip
    run = Run(config, team, task, pool, log, stop=stop)
    log.say(f"{team.describe()}; agents act in the order {', '.join(agents)}")

    def save_config() -> None:
        if world.main:
            write_text(folder / "config.json", json.dumps(asdict(config), indent=1))

    if checkpoint:
        load_optimizers(checkpoint, team.policies)
        log.cut(state["step"])
        save_config()
        log.say(f"resuming after step {state['step']}")
        return replace(run, start=state["step"], before=state["before"], saved=state["step"])
    log.say(f"the first prompt, as the model sees it:\n{first_prompt(config, task, team)}")
    log.clear()
    log.say("first evaluation: held-out environments, played greedily before training")
    run = replace(run, before=run.evaluate(0).success)
    run.save(0)
    save_config()  # last: before this file exists there is no run to resume, and the folder can simply be used again
    return run


def task_of(config: Config, training: bool = True) -> Levels:
    """The task of a run, or only its held-out levels."""
    return make_levels(
        config.task, config.workflow, config.env_options, config.data, config.eval_data, config.max_turns,
        training=training,
    )  # fmt: skip


def scoring_pool(config: Config, task: Levels) -> Executor | None:
    """Threads where scoring waits for other processes (programs, symbolic mathematics); None for plain board games."""
    sandbox.set_mode(config.sandbox)
    if task.training_env.runs_programs:
        sandbox.use_bubblewrap()  # or a refusal, before anything is loaded
    return ThreadPoolExecutor(threads()) if task.training_env.slow_scoring else None


def threads() -> int:
    """Cores of this rank: with more threads, programs that run in parallel would time out."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def first_prompt(config: Config, task: Levels, team: Team) -> str:
    agent, env = task.training_env.agents[0], task.training(config.seed, 0, 0, config.envs_per_step)
    return team.decode_prompt(agent, team.encode(agent, env.observe(agent)))


def held_out(
    config: Config, team: Team, task: Levels, pool: Executor | None, samples: int = 1, temperature: float = 0.0,
    top_p: float = 1.0,
) -> Evaluation:  # fmt: skip
    """Success on environments that training never sees, greedy by default."""
    numbers = task.held_out_numbers(config.eval_envs)
    ids = team.world.mine(numbers)
    return evaluate(
        [task.held_out(number) for number in ids],
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


# --------------------------------------------------------------------------------------------------------------- team

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]  # a model on the CPU
Load = Callable[[str], Loaded]  # name of a policy -> its model; with adapters the same one where policies share it


def make_team(config: Config, agents: Sequence[str], world: World, weights: Load) -> Team:
    """The policies of this rank, each with its own weights and optimizer, and the engines that sample from them.

    A rank loads no other models, but it has the tokenizers of all policies, because it plays whole environments.
    """
    policy_of = policy_map(config, agents)
    names = list(dict.fromkeys(policy_of.values()))
    if not set(config.frozen) < set(names):
        raise ValueError(f"--frozen {' '.join(config.frozen)}: name some of the policies {', '.join(names)}, not all")
    ranks_of = place(names, world.size, config.ranks)
    policies: dict[str, Policy] = {}
    roots: dict[int, LogProbs] = {}  # by model: policies with adapters may share it
    meshes, adapted = world.meshes(ranks_of), config.adapter == "lora"
    models: Iterable[tuple] = ((name, *weights(name)) for name in meshes)  # one after the other: they leave the CPU
    if adapted:
        models = list(models)
        for name, model, _ in models:
            lora.add_adapter(model, name, config.lora_rank, config.seed)
    for name, model, tokenizer in models:
        policies[name] = make_policy(
            name, model, tokenizer, config.lr, world.device, meshes[name], config.gradient_checkpointing, config.fused,
            config.optimizer, roots.get(id(model)),
        )  # fmt: skip
        roots[id(model)] = policies[name].root
    firsts = [name for name in policies if ranks_of[name][0] == world.rank]  # each tokenizer travels once
    tokenizers = world.merge({name: policies[name].tokenizer for name in firsts})
    team = Team(policies, policy_of, make_engines(config, policies), tokenizers, world, ranks_of, config.frozen)
    if world.device.startswith("cuda"):
        team.fit_packs(config.gradient_checkpointing)
    return team


SLEEPS = 1_000_000_000  # parameters from which on an engine frees the GPU's memory during updates
# of a configuration: where a model comes from, and how its weights were stored
NAMES = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}


def make_engines(config: Config, policies: dict[str, Policy]) -> dict[str, Engine]:
    """One engine for all policies of the same architecture: it loads a policy's weights before that policy's turn."""
    kinds: dict[str, str] = {}
    for name, policy in policies.items():
        architecture = policy.model.config.to_dict()
        parts = [(key, architecture[key]) for key in sorted({*architecture} - NAMES)]
        kinds[name] = str(parts + sorted(policy.stop_ids))
    engines: dict[str, Engine] = {}
    for name, policy in policies.items():
        if kinds[name] in engines:
            continue
        if config.engine == "vllm":  # a large engine leaves the GPU to the update, which two cannot take turns in
            large = sum(shape.numel() for shape in policy.shapes.values()) >= SLEEPS and len({*kinds.values()}) == 1
            sleep = large and alone_on_the_gpu()
            made: Engine = VllmEngine(policy, config.max_response_tokens, memory=config.engine_memory, sleep=sleep)
        else:
            made = TransformersEngine(policy, config.max_response_tokens)
        engines[kinds[name]] = made
    return {name: engines[kind] for name, kind in kinds.items()}


def alone_on_the_gpu() -> bool:
    """Whether no other process has memory here: vLLM counts what all use, and fails if that grows while it sleeps."""
    if not torch.cuda.is_available():
        return True
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() < 2 * 2**30  # the context of this process takes less


def saved_models(checkpoint: Path) -> Load:
    """How the policies of a checkpoint go on."""
    bases: dict[str, Loaded] = {}

    def load(name: str) -> Loaded:
        folder = checkpoint / name
        if not lora.is_adapter(folder):
            return load_model(str(folder))
        source = lora.base_of(folder)
        model, tokenizer = bases[source] = bases.get(source) or load_model(source)
        lora.load_adapter(model, name, folder)
        model.name_or_path = source
        return model, tokenizer

    return load


def save_bases(policies: Mapping[str, Policy], run: Path) -> None:
    """Write the models below adapters into the run, where no hub and no folder outside has them. All ranks call it."""
    for name, policy in policies.items():
        if policy.adapted and not policy.model.name_or_path:
            folder = run / "bases" / name
            policy.save(folder, lora.merged_weights(policy.root, policy.model))
            policy.model.name_or_path = str(folder.resolve())


def first_models(config: Config, task: Levels, world: World) -> Load:
    """How the policies start: as `--model` says, warm-started once for all that start from the same model.

    Policies of runs are not warm-started, and in a team with the tiny model only that one is: it alone has no idea of
    how to answer. All ranks call it. ValueError on a policy without a model, and on a run that is damaged or has no
    policy for these agents.
    """
    policy_of = policy_map(config, task.training_env.agents)
    given = sources(config, list(dict.fromkeys(policy_of.values())))
    parts = {source: part for source in given.values() if (part := part_of_run(source))}
    for checkpoint in dict.fromkeys(part.checkpoint for part in parts.values()):
        read_state(checkpoint, world, training=False)
    folders = dict(given)
    for name, source in given.items():
        if source in parts:
            part, agents = parts[source], [agent for agent, owner in policy_of.items() if owner == name]
            folders[name] = str(part.folder(agents, load(part.run).policies))
    models = [source for source in dict.fromkeys(given.values()) if source not in parts]
    imitating = [source for source in models if source == "tiny"] or (models if config.warm_start else [])
    loaded = {source: warm_started(source, config, task, world) for source in imitating}
    # what anybody can load by its name: the run need not keep a copy (`save_bases`)
    lasting = {name for name in models if name not in imitating and not lora.is_adapter(Path(name))}

    def load_first(name: str) -> Loaded:
        source = folders[name]
        if config.adapter == "lora":  # one model for all policies that start from it
            model, tokenizer = loaded[source] = loaded.get(source) or load_whole(source)
            known = str(Path(source).resolve()) if Path(source).is_dir() else source
            model.name_or_path = known if source in lasting else ""
            return model, tokenizer
        if source not in loaded:
            return load_whole(source)
        model, tokenizer = loaded[source]
        return copy.deepcopy(model), tokenizer

    return load_first


def warm_started(source: str, config: Config, task: Levels, world: World) -> Loaded:
    """A model after imitating noisy moves, where the task has some. All ranks get the weights of rank 0."""
    model, tokenizer = tiny.build(config.seed) if source == "tiny" else load_whole(source)
    if not task.training_env.noisy_answer:  # math and code: the tiny model only shows that everything runs
        say(world, f"no warm start: {config.task} has no noisy answers to imitate; {source} starts as it is")
        return model, tokenizer
    device = "cpu" if source == "tiny" else world.device
    if world.main:
        torch.set_float32_matmul_precision("high")  # noise is imitated: TF32 will do, and is several times as fast
        tiny.warm_start(
            make_policy("warm start", model, tokenizer, config.lr, device),
            task.warm,
            steps=config.warm_start,
            turns=config.max_turns,
            seed=config.seed,
            lr=3e-3 if source == "tiny" else 2e-5,
        )
        torch.set_float32_matmul_precision("highest")
        model.to("cpu")  # type: ignore[arg-type]
    world.agree(model.parameters())
    return model, tokenizer
