"""Whole GRPO steps side by side: this project against TRL's GRPOTrainer, seconds a step, memory and the reward curve.

    python benchmarks/run_vs_trl.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --data gsm8k_train.jsonl
    python benchmarks/run_vs_trl.py --model tiny --data ... --device cpu --steps 2 --prompts 4    # ours alone

A single agent with one turn and K answers to each prompt; a right answer pays 1, any other 0. Both sides get the same
prompts in the same order, the same K, response limit, learning rate (constant), one optimizer step a step, float32
weights with bfloat16 computation, the token mean as loss, and vLLM in the same process. Each runs alone, one after the
other. The first `--warm` steps are left out of the median. Memory is the largest value of nvidia-smi, engine included.
Rewards are sampled, so the two curves are two draws; what they show is that both learn the same thing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub id or folder")
    parser.add_argument("--data", required=True, help="problems with question and answer, JSON lines")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warm", type=int, default=3, help="steps left out of the median")
    parser.add_argument("--prompts", type=int, default=64, help="prompts a step")
    parser.add_argument("--candidates", type=int, default=8, help="K")
    parser.add_argument("--tokens", type=int, default=320, help="limit of a response")
    parser.add_argument("--lr", type=float, default=2e-6)
    parser.add_argument("--micro-batch", type=int, default=16, help="TRL: sequences a micro-batch")
    parser.add_argument("--pack", type=int, default=0, help="ours: tokens a pack (default: what fits)")
    parser.add_argument("--engine-memory", type=float, default=0.3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", help="also write the table as JSON")
    parser.add_argument("--only", choices=("ours", "trl"))
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_trl(args, Path(args.child))
    sides = [args.only] if args.only else ["ours", *(["trl"] if args.device == "cuda" else [])]
    rows = [side_by_side(side, args) for side in sides]
    print(f"{'':6} {'s/step':>8} {'start s':>8} {'peak GB':>8}  reward of each step")
    for row in rows:
        rewards = " ".join(f"{value:.2f}" for value in row["rewards"])
        print(f"{row['side']:6} {row['step_s']:8.2f} {row['start_s']:8.1f} {row['peak_gb']:8.1f}  {rewards}")
    if args.out:
        Path(args.out).write_text(json.dumps({"options": vars(args), "rows": rows}, indent=1))


def side_by_side(side: str, args: argparse.Namespace) -> dict:
    """One side in a process of its own, while the card's memory is watched."""
    with tempfile.TemporaryDirectory() as folder:
        command = ours(args, folder) if side == "ours" else [sys.executable, __file__, *sys.argv[1:], "--child", folder]
        peak, over = [0.0], threading.Event()
        watcher = threading.Thread(target=watch, args=(peak, over, args.device))
        watcher.start()
        begin = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        total = time.monotonic() - begin
        over.set()
        watcher.join()
        if done.returncode:
            sys.exit(f"{side}: exit code {done.returncode}")
        read = read_ours if side == "ours" else read_trl
        seconds, rewards = read(Path(folder))
    median = statistics.median(seconds[args.warm :] or seconds)
    row = {"side": side, "step_s": median, "start_s": total - sum(seconds), "peak_gb": peak[0]}
    return row | {"steps_s": seconds, "rewards": rewards}


def watch(peak: list[float], over: threading.Event, device: str) -> None:
    """Keep the largest amount of memory in use on the card, GB."""
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    query = ["nvidia-smi", "-i", card, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while device == "cuda" and not over.wait(0.5):
        used = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        peak[0] = max(peak[0], *(int(number) / 1024 for number in used))


# --------------------------------------------------------------------------------------------------------------- ours


def ours(args: argparse.Namespace, folder: str) -> list[str]:
    command = f"{sys.executable} train.py --task math --workflow single --max-turns 1 --sampling chains"
    command += f" --grouping trajectory --steps {args.steps} --envs-per-step {args.prompts}"
    command += f" --num-candidates {args.candidates} --max-response-tokens {args.tokens} --lr {args.lr} --lr-final 1"
    command += " --lr-warmup 0 --minibatches 1 --eval-envs 1 --report-every 0 --save-every 1000 --trees 1"
    command += f" --device {args.device} --output-dir {folder}/run"
    command += f" --engine vllm --engine-memory {args.engine_memory}" if args.device == "cuda" else ""
    command += f" --micro-batch-tokens {args.pack}" if args.pack else ""
    held_out = Path(folder, "held_out.jsonl")
    held_out.write_text('{"question": "What is one plus one?", "answer": "2"}\n')
    return [*command.split(), "--model", args.model, "--data", args.data, "--eval-data", str(held_out)]


def read_ours(folder: Path) -> tuple[list[float], list[float]]:
    def read(name: str) -> list[dict]:
        return [json.loads(line) for line in (folder / "run" / name).read_text().splitlines()]

    return [row["step_s"] for row in read("timing.jsonl")], [row["solved"] for row in read("metrics.jsonl")]


# ---------------------------------------------------------------------------------------------------------------- TRL


def run_trl(args: argparse.Namespace, folder: Path) -> None:
    """Train with TRL and write seconds and mean reward of each step into the folder."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from tasks.levels import make_levels
    from tasks.math_env import score_answers

    held_out = folder / "held_out.jsonl"
    held_out.write_text('{"question": "What is one plus one?", "answer": "2"}\n')
    levels = make_levels("math", "single", data=args.data, eval_data=str(held_out), max_turns=1)
    rows = []
    for step in range(args.steps):
        for number in range(args.prompts):
            env = levels.training(0, step, number, args.prompts)
            rows.append({"prompt": env.observe(env.agents[0]), "gold": env.problem.answer})

    def reward(completions: list, gold: list[str], **_) -> list[float]:
        return score_answers([messages[0]["content"] for messages in completions], gold)

    seconds: list[float] = []
    rewards: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__) -> None:
            self.begin = time.monotonic()

        def on_step_end(self, *_, **__) -> None:
            seconds.append(time.monotonic() - self.begin)

        def on_log(self, _, __, ___, logs=None, **____) -> None:
            if logs and "reward" in logs:
                rewards.append(logs["reward"])

    config = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=args.steps, learning_rate=args.lr, lr_scheduler_type="constant",
        per_device_train_batch_size=args.micro_batch, num_generations=args.candidates,
        gradient_accumulation_steps=args.prompts * args.candidates // args.micro_batch,
        max_completion_length=args.tokens, temperature=1.0, shuffle_dataset=False, bf16=True, beta=0.0,
        model_init_kwargs={"dtype": "float32"}, use_vllm=True, vllm_mode="colocate",
        vllm_gpu_memory_utilization=args.engine_memory, vllm_max_model_length=2048,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=args.model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows), callbacks=[Clock()]
    )
    trainer.train()
    (folder / "trl.json").write_text(json.dumps({"seconds": seconds, "rewards": rewards}))


def read_trl(folder: Path) -> tuple[list[float], list[float]]:
    found = json.loads((folder / "trl.json").read_text())
    return found["seconds"], found["rewards"]


if __name__ == "__main__":
    main()
