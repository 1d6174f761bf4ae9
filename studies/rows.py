"""What `experiments.py` trains, which rows its tables have, and which rows are compared."""

from __future__ import annotations

from dataclasses import dataclass, field

AGENTS, TURNS, CANDIDATES, ENVS = 2, 4, 8, 48
BUDGET = ENVS * AGENTS * TURNS * CANDIDATES  # candidates a step at most
CHAINS = "--sampling chains --grouping trajectory"
NEAR = "--env-options planner_sees=near"


@dataclass(frozen=True)
class Training:
    """One way to train. `cost`: seconds a step on one core, measured once, to order runs and to estimate the time."""

    options: str  # of train.py
    cost: float = 1.3
    agents: int = AGENTS
    turns: int = TURNS
    candidates: int = CANDIDATES

    @property
    def envs(self) -> int:
        """Environments per step, chosen so that every training samples at most BUDGET candidates."""
        return BUDGET // (self.agents * self.turns * self.candidates)


@dataclass(frozen=True)
class Method:
    """A row of a table: the start or the end of a training, or a team put together from checkpoints."""

    label: str
    training: str
    untrained: bool = False
    team: dict[str, tuple[str, str]] = field(default_factory=dict)  # agent -> (training, policy) that plays it
    quick: bool = False  # a row that --quick has too (the methods are always there)

    @property
    def trainings(self) -> list[str]:
        """The trainings that must be finished for this row."""
        return list(dict.fromkeys([self.training, *(training for training, _ in self.team.values())]))


TRAININGS = {
    "single_grpo_1": Training(f"--workflow single {CHAINS}", 2.9, agents=1, turns=1),
    "single_grpo": Training(f"--workflow single {CHAINS}", 3.6, agents=1),
    "single_tree": Training("--workflow single", agents=1),
    "mas_grpo": Training(CHAINS, 4.6),
    "shared": Training(""),
    "per_role": Training("--policies per_role"),
    "near_single": Training(f"--workflow single {NEAR}", agents=1),
    "near_shared": Training(NEAR),
    "near_per_role": Training(f"{NEAR} --policies per_role"),
    "near_tool_user_alone": Training(f"{NEAR} --policies per_role --frozen planner"),
    "near_planner_alone": Training(f"{NEAR} --policies per_role --frozen tool_user"),
    "tool_user_alone": Training("--policies per_role --frozen planner"),
    "planner_alone": Training("--policies per_role --frozen tool_user"),
    "parallel": Training("--sampling parallel --grouping prompt", 3.5),
    "agent_key": Training("--grouping agent"),
    "turn_key": Training("--grouping turn"),
    "outcome": Training("--reward outcome"),
    "alpha_0": Training("--alpha 0"),
    "alpha_0.5": Training("--alpha 0.5"),
    "k_2": Training("", 2.0, candidates=2),
    "k_4": Training("", 1.6, candidates=4),
    "t_1": Training("", 2.2, turns=1),
    "t_2": Training("", 1.8, turns=2),
}


def _alone(view: str = "") -> dict[str, tuple[str, str]]:
    """Each role is played by the policy that was trained while the other one stayed at its warm start."""
    return {agent: (f"{view}{agent}_alone", agent) for agent in ("tool_user", "planner")}


def _swapped(training: str) -> dict[str, tuple[str, str]]:
    return {"tool_user": (training, "planner"), "planner": (training, "tool_user")}


def _all_turns(training: str) -> dict[str, tuple[str, str]]:
    """A shared policy that was trained with a number of turns other than TURNS plays both roles of a full game."""
    return dict.fromkeys(("tool_user", "planner"), (training, "shared"))


METHODS = [
    Method("single agent, untrained", "single_tree", untrained=True),
    Method("single agent + GRPO, T = 1", "single_grpo_1"),
    Method("single agent + GRPO", "single_grpo"),
    Method("single agent + tree", "single_tree"),
    Method("MAS, untrained", "shared", untrained=True),
    Method("MAS + GRPO", "mas_grpo"),
    Method("MAS + AT-GRPO, shared policy", "shared"),
    Method("MAS + AT-GRPO, policy per role", "per_role"),
]
ROLES = [
    Method("roles trained alone, then combined", "tool_user_alone", team=_alone(), quick=True),
    Method("policies of the roles swapped", "per_role", team=_swapped("per_role"), quick=True),
    Method("short sight: single agent + tree", "near_single"),
    Method("short sight: shared policy", "near_shared"),
    Method("short sight: policy per role", "near_per_role"),
    Method("short sight: alone, then combined", "near_tool_user_alone", team=_alone("near_")),
    Method("short sight: policies swapped", "near_per_role", team=_swapped("near_per_role")),
]
ABLATIONS = [
    Method("parallel chains instead of a tree", "parallel"),
    Method("groups by agent, turns pooled", "agent_key"),
    Method("groups by turn, agents pooled", "turn_key", quick=True),
    Method("outcome reward only", "outcome"),
    Method("alpha = 0 (local reward only)", "alpha_0"),
    Method("alpha = 0.5", "alpha_0.5"),
    Method("alpha = 1", "shared"),
    Method("K = 2", "k_2"),
    Method("K = 4", "k_4"),
    Method("K = 8", "shared"),
    Method("T = 1", "t_1", team=_all_turns("t_1")),
    Method("T = 2", "t_2", team=_all_turns("t_2")),
    Method("T = 4", "shared"),
]
CLAIMS = {  # of the paper: the row that should be better, and the row it is compared with, by their labels
    "tree groups against trajectory groups, team": ("MAS + AT-GRPO, shared policy", "MAS + GRPO"),
    "tree groups against trajectory groups, single agent": ("single agent + tree", "single agent + GRPO"),
    "team against single agent, both GRPO": ("MAS + GRPO", "single agent + GRPO"),
    "team with four turns against single agent with one, as published": (
        "MAS + AT-GRPO, shared policy",
        "single agent + GRPO, T = 1",
    ),
    "team against single agent, both with trees": ("MAS + AT-GRPO, shared policy", "single agent + tree"),
    "policy per role against shared policy": ("MAS + AT-GRPO, policy per role", "MAS + AT-GRPO, shared policy"),
    "short sight: team against single agent": (
        "short sight: shared policy",
        "short sight: single agent + tree",
    ),
    "short sight: policy per role against shared policy": (
        "short sight: policy per role",
        "short sight: shared policy",
    ),
}
NOTES = f"""\
- Budget: a step samples at most {BUDGET} candidates in every row, environments x agents x turns x K. Environments that
  are solved early need fewer; the column has the mean that was sampled. `T` and `K` trade against environments a step.
- Success: greedy, no tree, {TURNS} turns (the single agent with T = 1 plays one, as published), the same held-out
  levels for every row and seed. ± is the standard error over seeds.
- Equal budgets: the success of each seed when it had sampled so many candidates or tokens, or trained for so many
  seconds, read off a straight line between two evaluations. The budget is the largest that all runs of a table reached;
  the comparisons with short sight use that of their own table.
- Differences: of runs with the same seed; in brackets the 95% interval of their mean (t distribution), then the number
  of seeds where the difference is positive. The interval covers the variation between seeds, not the choice of the
  held-out boards, which are the same for all; nothing corrects for the number of comparisons. Equal steps: the last
  that all runs of both rows have reached.
- Signal: share of groups whose rewards differ; the others teach nothing. Signal and candidates a step are means over
  all steps that a row was trained.
- Untrained: after the warm start, which imitates noise.
- Trained alone: each role is trained (policy per role) while the other one stays at its warm start; then both play
  together. Each role learns from as many candidates of its own as in the row with a policy per role.
- Swapped: the two policies of the row with a policy per role play each other's role.
- Short sight (planner_sees=near): the planner, and so the single agent, sees only its cell and which of its four
  neighbours are free; only the tool user sees the board and the goal. The single agent never learns where the goal is,
  so the lead of the team over it measures information, not training.
- Parallel chains: K independent chains, agent- and turn-wise groups, own rewards. Groups may only compare answers to
  one prompt, and after the first action few chains share one.
- Pooled groups: trees as in AT-GRPO, but a group also compares answers to different prompts.
- Outcome reward: 1 for an action that solves the task, else 0.
"""
