"""The numbers of docs/primer.md: six steps worked out for three answers, and one real step of the tiny model.

    python docs/primer.py            say whether the blocks of primer.md still hold
    python docs/primer.py --write    put them into primer.md

The advantages, the loss and the step are those of the project's own functions.
"""

from __future__ import annotations

import re
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

import torch
from tour import Tour, replay

from grouping import GroupKey, Sample, assign_advantages, group_samples
from model.packing import pack_samples
from options import UpdateConfig
from update import policy_loss, update

PAGE = Path(__file__).with_name("primer.md")
BLOCK = re.compile(r"^```text primer ([\w-]+)\n(.*?)^```$", re.M | re.S)
OPTIONS = (
    "--steps 1 --envs-per-step 16 --num-candidates 8 --max-turns 2 --warm-start 30 --minibatches 1 --lr-warmup 1 "
    "--eval-envs 20 --trees 8 --seed 0 --device cpu --env-options rows=4 cols=4 blocks=0.25 max_moves=2"
)
ANSWERS = ("left", "up", "down")
PROBABILITY = torch.tensor([0.5, 0.3, 0.2])  # of the three answers
REWARD = torch.tensor([0.2, 1.0, 0.0])  # what the environment pays for each of them


def slopes() -> torch.Tensor:
    """(3, 3): row a is the gradient of log p(a) with respect to the three logits, onehot(a) - p."""
    logits = PROBABILITY.log().requires_grad_()
    return torch.stack([torch.autograd.grad(logits.log_softmax(0)[a], logits)[0] for a in range(3)])


def likelihood() -> str:
    """Supervised: somebody says that "up" is right."""
    loss, gradient = -PROBABILITY.log()[1], -slopes()[1]
    return f"loss     -log {PROBABILITY[1]:.1f} = {loss:.3f}\ngradient {row(gradient)}\n"


def reward() -> str:
    """Nobody says what is right; answers are sampled and paid."""
    estimates = REWARD[:, None] * slopes()  # (3, 3) what each answer would contribute, if it is the one sampled
    lines = [
        f"{name:5} p {p:.1f}  reward {r:.1f}  reward * slope {row(estimate)}"
        for name, p, r, estimate in zip(ANSWERS, PROBABILITY, REWARD, estimates, strict=True)
    ]
    logits = PROBABILITY.log().requires_grad_()
    (exact,) = torch.autograd.grad((logits.softmax(0) * REWARD).sum(), logits)
    lines += [f"mean of the samples, weighted by p       {row(PROBABILITY @ estimates)}"]
    return "\n".join([*lines, f"gradient of the expected reward, exactly  {row(exact)}\n"])


def baseline() -> str:
    """The same estimate with something subtracted from every reward: its mean and its variance."""
    mean = float(PROBABILITY @ REWARD)
    lines = []
    for what, paid in (
        ("reward", REWARD),
        ("reward - mean", REWARD - mean),
        ("reward + 10", REWARD + 10),
    ):
        estimates = paid[:, None] * slopes()
        expected = PROBABILITY @ estimates
        variance = float(PROBABILITY @ ((estimates - expected) ** 2).sum(1))
        lines.append(f"{what:14} expected {row(expected)}  variance {variance:7.3f}")
    return "\n".join(lines) + "\n"


def group() -> str:
    """K = 4 answers to one prompt, and four that are all paid the same."""
    lines = []
    for rewards in ([1.0, 0.2, 0.2, 0.0], [0.2, 0.2, 0.2, 0.2]):
        samples = [Sample(GroupKey(0, 0, "planner"), [1], [2], [-1.0], reward) for reward in rewards]
        assign_advantages(group_samples(samples))
        lines.append(f"rewards {row(rewards)}  advantages {row(sample.advantage for sample in samples)}")
    return "\n".join(lines) + "\n"


def ratio() -> str:
    """The answers were sampled by an older policy: the ratio makes its mean that of the new one."""
    new = torch.tensor([0.4, 0.45, 0.15])
    weights = new / PROBABILITY
    lines = [
        f"{name:5} old {p:.2f}  new {q:.2f}  ratio {w:.2f}"
        for name, p, q, w in zip(ANSWERS, PROBABILITY, new, weights, strict=True)
    ]
    lines += [f"old policy, reward         {PROBABILITY @ REWARD:.3f}"]
    lines += [f"old policy, ratio * reward {PROBABILITY @ (weights * REWARD):.3f}"]
    return "\n".join([*lines, f"new policy, reward         {new @ REWARD:.3f}\n"])


def clip() -> str:
    """`update.policy_loss` of one token: the objective, which is minus the loss, and its slope in the log-prob."""
    lines, one = [], torch.ones(1)
    for advantage in (1.0, -1.0):
        for value in (0.5, 0.9, 1.0, 1.1, 1.5):
            old = torch.log(torch.tensor([0.3]))
            new = (old + torch.log(torch.tensor([value]))).requires_grad_()
            loss, _ = policy_loss(new, old, old, advantage * one, one, UpdateConfig(clip=0.2))
            (slope,) = torch.autograd.grad(-loss, new)
            lines.append(
                f"A {advantage:+.0f}  ratio {value:.1f}  objective {-loss.item():+.2f}  slope {slope.item():+.2f}"
            )
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------ one real step


def most_told(tour: Tour) -> list[Sample]:
    """The group of the planner with the most different rewards; ties: the first."""
    groups = [members for members in group_samples(tour.result.samples).values() if members[0].key.agent == "planner"]
    return max(groups, key=lambda members: len({sample.reward for sample in members}))


def common(one: Sample, other: Sample) -> list[int]:
    """The tokens with which both answers begin."""
    pairs = zip(one.response_ids, other.response_ids, strict=False)
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def real_step(tour: Tour) -> dict[str, str]:
    """Eight rewards, their advantages, and what the step does to the token in which the best parts from another."""
    members = most_told(tour)
    best = max(members, key=lambda sample: sample.advantage)
    other = max((s for s in members if s.reward < best.reward), key=lambda sample: len(common(sample, best)))
    place = len(common(other, best))  # up to here they are equal, so both tokens answer one prompt
    tokens = sum(len(sample.response_ids) for sample in tour.result.samples)
    pack, starts = pack_samples([members]), [sum(len(s.response_ids) for s in members[:c]) for c in range(len(members))]
    before = tour.token_logprobs(pack, tour.policy)
    update(tour.policy, tour.result.samples, tour.config, seed=(tour.config.seed, 0))
    after = tour.token_logprobs(pack, tour.policy)
    lines = []
    for sample in (best, other):
        at = starts[members.index(sample)] + place
        token = tour.team.decode("planner", [sample.response_ids[place]])
        lines += [
            f"c={members.index(sample)}, token {place}: {token!r}",
            f"  coefficient  A / tokens of the step  {sample.advantage:+.3f} / {tokens} = "
            f"{sample.advantage * sample.weight:+.6f}",
            f"  log-prob     before {before[at]:.3f}  after {after[at]:.3f}",
            f"  probability  before {before[at].exp():.3f}  after {after[at].exp():.3f}",
        ]
    rewards = [
        f"c={c}  team {s.team:.3f} + local {s.local:.3f} = {s.reward:.3f}  advantage {s.advantage:+.3f}  {tour.text(s)}"
        for c, s in enumerate(members)
    ]
    return {"rewards": "\n".join(rewards) + "\n", "step": "\n".join(lines) + "\n"}


def row(values) -> str:
    return f"({', '.join(f'{float(value) + 0.0:+.3f}' for value in values)})"


def blocks() -> dict[str, str]:
    """Name of every block of the page -> its text (about ten seconds)."""
    worked = {f.__name__: f() for f in (likelihood, reward, baseline, group, ratio, clip)}
    with tempfile.TemporaryDirectory() as folder:
        return worked | real_step(replay(Path(folder) / "run", OPTIONS))


def main(argv: list[str]) -> None:
    found, page = blocks(), PAGE.read_text(encoding="utf-8")
    if argv == ["--write"]:
        PAGE.write_text(BLOCK.sub(lambda match: f"```text primer {match[1]}\n{found[match[1]]}```", page), "utf-8")
        return
    stale = [name for name, text in BLOCK.findall(page) if found[name] != text]
    sys.exit(f"no longer true: {', '.join(stale)}; run python docs/primer.py --write" if stale else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
