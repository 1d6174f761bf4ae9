"""What `experiments.py` trains, which rows its tables have, and which rows are compared."""

from __future__ import annotations

from dataclasses import dataclass, field

AGENTS, TURNS, CANDIDATES, ENVS = 2, 4, 8, 48
BUDGET = ENVS * AGENTS * TURNS * CANDIDATES  # candidates a step at most
CHAINS = "--sampling chains --grouping trajectory"
PLACES = "--sampling parallel --grouping agent_turn"
TUNED = f"{CHAINS} --lr 1.6e-3 --minibatches 8"  # chosen on seeds that no table has
NEAR = "--env-options planner_sees=near"


@dataclass(frozen=True)
class Training:
    """One way to train: options of train.py, and what a step samples.

    `share`: of the steps of a whole run. A shorter run ends its schedule too, so it is compared with another row that
    needs as many candidates in all.
    """

    options: str
    agents: int = AGENTS
    turns: int = TURNS
    candidates: int = CANDIDATES
    share: float = 1.0

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
    quick: bool = False  # a row that --quick has too

    @property
    def trainings(self) -> list[str]:
        """The trainings that must be finished for this row."""
        return list(dict.fromkeys([self.training, *(training for training, _ in self.team.values())]))


def _single(options: str, turns: int = TURNS, share: float = 1.0) -> Training:
    return Training(f"--workflow single {options}", agents=1, turns=turns, share=share)


TRAININGS = {
    "single_grpo_1": _single(CHAINS, turns=1),  # the baseline as published: one answer
    "single_grpo": _single(CHAINS),
    "single_grpo_short": _single(CHAINS, share=0.67),  # of the candidates of chains a tree needed so many
    "single_grpo_tuned": _single(TUNED),
    "single_dense": _single(f"{CHAINS} --reward dense"),
    "single_outcome": _single(f"{CHAINS} --reward outcome"),
    "single_places": _single(PLACES),  # the group key without what makes its prompts equal
    "single_tree": _single(""),
    "single_tree_outcome": _single("--reward outcome"),
    "mas_grpo": Training(CHAINS),
    "mas_grpo_short": Training(CHAINS, share=0.56),
    "mas_grpo_tuned": Training(TUNED),
    "mas_dense": Training(f"{CHAINS} --reward dense"),
    "mas_outcome": Training(f"{CHAINS} --reward outcome"),
    "mas_places": Training(PLACES),
    "shared": Training(""),  # AT-GRPO
    "per_role": Training("--policies per_role"),
    "near_single": _single(NEAR),
    "near_shared": Training(NEAR),
    "near_per_role": Training(f"{NEAR} --policies per_role"),
    "near_tool_user_alone": Training(f"{NEAR} --policies per_role --frozen planner"),
    "near_planner_alone": Training(f"{NEAR} --policies per_role --frozen tool_user"),
    "tool_user_alone": Training("--policies per_role --frozen planner"),  # its partner stays at the warm start
    "planner_alone": Training("--policies per_role --frozen tool_user"),
    "parallel": Training("--sampling parallel --grouping prompt"),  # K chains instead of a fan at each action
    "agent_key": Training("--grouping agent"),
    "turn_key": Training("--grouping turn"),
    "outcome": Training("--reward outcome"),
    "alpha_0": Training("--alpha 0"),
    "alpha_0.5": Training("--alpha 0.5"),
    "k_2": Training("", candidates=2),
    "k_4": Training("", candidates=4),
    "t_1": Training("", turns=1),  # trained with one turn, played with TURNS
    "t_2": Training("", turns=2),
}


def _alone(view: str = "") -> dict[str, tuple[str, str]]:
    """Each role is played by the policy that was trained while the other one stayed at its warm start."""
    return {agent: (f"{view}{agent}_alone", agent) for agent in ("tool_user", "planner")}


def _swapped(training: str) -> dict[str, tuple[str, str]]:
    return {"tool_user": (training, "planner"), "planner": (training, "tool_user")}


def _all_turns(training: str) -> dict[str, tuple[str, str]]:
    """A shared policy that was trained with a number of turns other than TURNS plays both roles of a full game."""
    return dict.fromkeys(("tool_user", "planner"), (training, "shared"))


TABLES = {
    "methods": [
        Method("single agent, untrained", "single_tree", untrained=True, quick=True),
        Method("single agent + GRPO, T = 1", "single_grpo_1", quick=True),
        Method("single agent + GRPO", "single_grpo", quick=True),
        Method("single agent + tree", "single_tree", quick=True),
        Method("MAS, untrained", "shared", untrained=True, quick=True),
        Method("MAS + GRPO", "mas_grpo", quick=True),
        Method("MAS + AT-GRPO, shared policy", "shared", quick=True),
        Method("MAS + AT-GRPO, policy per role", "per_role", quick=True),
    ],
    "roles": [
        Method("roles trained alone, then combined", "tool_user_alone", team=_alone(), quick=True),
        Method("policies of the roles swapped", "per_role", team=_swapped("per_role"), quick=True),
        Method("short sight: single agent + tree", "near_single"),
        Method("short sight: shared policy", "near_shared"),
        Method("short sight: policy per role", "near_per_role"),
        Method("short sight: alone, then combined", "near_tool_user_alone", team=_alone("near_")),
        Method("short sight: policies swapped", "near_per_role", team=_swapped("near_per_role")),
    ],
    "ablations": [
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
    ],
    "credit": [  # what is it that helps: the tree, rewards for each action, or the rate of learning?
        Method("single agent: tree, dense", "single_tree"),
        Method("single agent: tree, outcome", "single_tree_outcome"),
        Method("single agent: chains, dense", "single_dense"),
        Method("single agent: chains, outcome", "single_outcome"),
        Method("single agent: GRPO", "single_grpo"),
        Method("single agent: GRPO, as many candidates", "single_grpo_short"),
        Method("single agent: GRPO, tuned", "single_grpo_tuned"),
        Method("single agent: chains by turn and agent", "single_places"),
        Method("team: tree, dense", "shared"),
        Method("team: tree, outcome", "outcome"),
        Method("team: chains, dense", "mas_dense"),
        Method("team: chains, outcome", "mas_outcome"),
        Method("team: GRPO", "mas_grpo"),
        Method("team: GRPO, as many candidates", "mas_grpo_short"),
        Method("team: GRPO, tuned", "mas_grpo_tuned"),
        Method("team: chains by turn and agent", "mas_places"),
    ],
}
# Of the paper: the row that should be better, the row it is compared with, and the latter's shorter schedule if any.
CLAIMS: dict[str, tuple[str, ...]] = {
    "tree groups against trajectory groups, team": ("MAS + AT-GRPO, shared policy", "MAS + GRPO"),
    "tree groups against trajectory groups, single agent": ("single agent + tree", "single agent + GRPO"),
    "team against single agent, both GRPO": ("MAS + GRPO", "single agent + GRPO"),
    "team with four turns against single agent with one, as published": (
        "MAS + AT-GRPO, shared policy",
        "single agent + GRPO, T = 1",
    ),
    "team against single agent, both with trees": ("MAS + AT-GRPO, shared policy", "single agent + tree"),
    "policy per role against shared policy": ("MAS + AT-GRPO, policy per role", "MAS + AT-GRPO, shared policy"),
    "short sight: team against single agent": ("short sight: shared policy", "short sight: single agent + tree"),
    "short sight: policy per role against shared policy": (
        "short sight: policy per role",
        "short sight: shared policy",
    ),
}
for who in ("single agent", "team"):
    tree, grpo = f"{who}: tree, dense", f"{who}: GRPO"
    CLAIMS[f"{who}: tree against chains, dense"] = (tree, f"{who}: chains, dense")
    CLAIMS[f"{who}: tree against chains, outcome"] = (f"{who}: tree, outcome", f"{who}: chains, outcome")
    CLAIMS[f"{who}: dense against outcome, tree"] = (tree, f"{who}: tree, outcome")
    CLAIMS[f"{who}: tree against GRPO"] = (tree, grpo, f"{grpo}, as many candidates")
    CLAIMS[f"{who}: tree against tuned GRPO"] = (tree, f"{grpo}, tuned")
    CLAIMS[f"{who}: tree against chains by turn and agent"] = (tree, f"{who}: chains by turn and agent")

NOTES = f"""\
- Budget: a step samples at most {BUDGET} candidates in every row, environments x agents x turns x K. Environments that
  are solved early need fewer; the column has the mean that was sampled. `T` and `K` trade against environments a step.
- Success: greedy, no tree, {TURNS} turns (the single agent with T = 1 plays one, as published), the same held-out
  levels for every row and seed. ± is the standard error over seeds.
- Equal candidates: a row whose schedule is shorter, so that it has sampled as many when it ends. Where there is none,
  the success of each seed when it had sampled so many, read off a straight line between two evaluations: then the
  learning rate had not yet come down. The budget is the largest that all runs of a table reached.
- Differences: of runs with the same seed; in brackets the 95% interval of their mean (t distribution), then the number
  of seeds where the difference is positive. They cover the variation between seeds, not the choice of held-out boards.
  p: of the differences at equal steps, two-sided, corrected by Holm for all comparisons of this page.
- Signal: share of groups whose rewards differ; the others teach nothing.
- Untrained, alone and combined, swapped, short sight, pooled: docs/runs.md. Rewards: studies/ablations.py.
"""
