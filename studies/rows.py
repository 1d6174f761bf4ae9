"""What `experiments.py` trains, which rows its tables have, and which rows are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TURNS, CANDIDATES, ENVS = 4, 8, 48
BUDGET = ENVS * 2 * TURNS * CANDIDATES  # candidates a step at most: environments, agents, turns, K
CHAINS = "--sampling chains --grouping trajectory"
PLACES = "--sampling parallel --grouping agent_turn"
TUNED = f"{CHAINS} --lr 1.6e-3 --minibatches 8"  # chosen on seeds that no table has
SINGLE = "--workflow single"
NEAR = "--env-options planner_sees=near"


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


TRAININGS = {  # name -> options of train.py
    "single_grpo_1": f"{SINGLE} {CHAINS} --max-turns 1",  # the baseline as published: one answer
    "single_grpo": f"{SINGLE} {CHAINS}",
    "single_grpo_short": f"{SINGLE} {CHAINS}",
    "single_grpo_tuned": f"{SINGLE} {TUNED}",
    "single_dense": f"{SINGLE} {CHAINS} --reward dense",
    "single_outcome": f"{SINGLE} {CHAINS} --reward outcome",
    "single_places": f"{SINGLE} {PLACES}",  # the group key without what makes its prompts equal
    "single_tree": SINGLE,
    "single_tree_outcome": f"{SINGLE} --reward outcome",
    "mas_grpo": CHAINS,
    "mas_grpo_short": CHAINS,
    "mas_grpo_tuned": TUNED,
    "mas_dense": f"{CHAINS} --reward dense",
    "mas_outcome": f"{CHAINS} --reward outcome",
    "mas_places": PLACES,
    "shared": "",  # AT-GRPO
    "per_role": "--policies per_role",
    "near_single": f"{SINGLE} {NEAR}",
    "near_shared": NEAR,
    "near_per_role": f"{NEAR} --policies per_role",
    "near_tool_user_alone": f"{NEAR} --policies per_role --frozen planner",
    "near_planner_alone": f"{NEAR} --policies per_role --frozen tool_user",
    "tool_user_alone": "--policies per_role --frozen planner",  # its partner stays at the warm start
    "planner_alone": "--policies per_role --frozen tool_user",
    "parallel": "--sampling parallel --grouping prompt",  # K chains instead of a fan at each action
    "agent_key": "--grouping agent",
    "turn_key": "--grouping turn",
    "outcome": "--reward outcome",
    "alpha_0": "--alpha 0",
    "alpha_0.5": "--alpha 0.5",
    "k_2": "--num-candidates 2",
    "k_4": "--num-candidates 4",
    "t_1": "--max-turns 1",  # trained with one turn, played with TURNS
    "t_2": "--max-turns 2",
}
# Of the steps of other rows, so that the schedule ends after as many candidates as a tree needed.
SHARES = {"single_grpo_short": 0.67, "mas_grpo_short": 0.56}


def steps_of(training: str, steps: int) -> int:
    return max(1, round(steps * SHARES.get(training, 1)))


def options_of(training: str, steps: int, team: int) -> list[str]:
    """Options of train.py, with as many environments a step as BUDGET allows for a team of so many agents."""
    options = f"--max-turns {TURNS} --num-candidates {CANDIDATES} {TRAININGS[training]}"
    turns, candidates = (int(re.findall(rf"--{name} (\d+)", options)[-1]) for name in ("max-turns", "num-candidates"))
    envs = BUDGET // ((1 if SINGLE in options else team) * turns * candidates)
    return f"{options} --envs-per-step {max(1, envs)} --steps {steps_of(training, steps)}".split()


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
    ],
    "sight": [  # roles once more, where the planner sees only the cells around it
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
