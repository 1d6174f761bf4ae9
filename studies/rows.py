"""The rows of the tables of `experiments.py`, their trainings, and which are compared.

A training is named by its own options of train.py. `--steps 67%`: of the steps of other rows, so that a schedule ends
after as many candidates as a tree needed.
"""

import re
from dataclasses import dataclass, field

TURNS, CANDIDATES, ENVS = 4, 8, 48
BUDGET = ENVS * 2 * TURNS * CANDIDATES  # candidates a step at most: environments, agents, turns, K
CHAINS = "--sampling chains --grouping trajectory"  # GRPO
SINGLE = "--workflow single"
NEAR = "--env-options planner_sees=near"
ROLES = "--policies per_role"
Team = dict[str, tuple[str, str]]  # agent -> (options, policy) that plays it
AT_GRPO, SIGHT = "MAS + AT-GRPO, shared policy", "short sight: shared policy"


@dataclass(frozen=True)
class Method:
    """A row: the start or the end of a training, or a team of checkpoints."""

    label: str
    options: str = ""  # "" is AT-GRPO with a shared policy
    untrained: bool = False
    team: Team = field(default_factory=dict)

    @property
    def trainings(self) -> list[str]:
        return list(dict.fromkeys(options for options, _ in self.team.values())) or [self.options]


def steps_of(options: str, steps: int) -> int:
    share = re.search(r"--steps (\d+)%", options)
    return max(1, round(steps * int(share[1]) / 100)) if share else steps


def options_of(options: str, steps: int, team: int) -> list[str]:
    """All options of a training, with as many environments as BUDGET allows for `team` agents."""
    found = f"--max-turns {TURNS} --num-candidates {CANDIDATES} {options}"
    turns, candidates = (int(re.findall(rf"--{name} (\d+)", found)[-1]) for name in ("max-turns", "num-candidates"))
    envs = BUDGET // ((1 if SINGLE in options else team) * turns * candidates)
    found = re.sub(r"--steps \d+%", "", found)
    return f"{found} --envs-per-step {max(1, envs)} --steps {steps_of(options, steps)}".split()


def _alone(view: str = "") -> Team:
    """Each role is played by the policy that was trained while the other stayed at its warm start."""
    roles = {"tool_user": "planner", "planner": "tool_user"}
    return {agent: (f"{view}{ROLES} --frozen {other}", agent) for agent, other in roles.items()}


def _played(options: str, tool_user: str = "shared", planner: str = "shared") -> Team:
    return {"tool_user": (options, tool_user), "planner": (options, planner)}


TABLES = {
    "methods": [
        Method("single agent, untrained", SINGLE, untrained=True),
        Method("single agent + GRPO, T = 1", f"{SINGLE} {CHAINS} --max-turns 1"),  # as published
        Method("single agent + GRPO", f"{SINGLE} {CHAINS}"),
        Method("single agent + tree", SINGLE),
        Method("MAS, untrained", untrained=True),
        Method("MAS + GRPO", CHAINS),
        Method(AT_GRPO),
        Method("MAS + AT-GRPO, policy per role", ROLES),
    ],
    "roles": [
        Method("roles trained alone, then combined", team=_alone()),
        Method("policies of the roles swapped", team=_played(ROLES, "planner", "tool_user")),
    ],
    "sight": [  # roles once more, where the planner sees only the cells around it
        Method("short sight: single agent + tree", f"{SINGLE} {NEAR}"),
        Method(SIGHT, NEAR),
        Method("short sight: policy per role", f"{NEAR} {ROLES}"),
        Method("short sight: alone, then combined", team=_alone(f"{NEAR} ")),
        Method("short sight: policies swapped", team=_played(f"{NEAR} {ROLES}", "planner", "tool_user")),
    ],
    "ablations": [
        Method("parallel chains instead of a tree", "--sampling parallel --grouping prompt"),
        Method("groups by agent, turns pooled", "--grouping agent"),
        Method("groups by turn, agents pooled", "--grouping turn"),
        Method("outcome reward only", "--reward outcome"),
        Method("alpha = 0 (local reward only)", "--alpha 0"),
        Method("alpha = 0.5", "--alpha 0.5"),
        Method("alpha = 1"),
        Method("K = 2", "--num-candidates 2"),
        Method("K = 4", "--num-candidates 4"),
        Method("K = 8"),
        Method("T = 1", team=_played("--max-turns 1")),
        Method("T = 2", team=_played("--max-turns 2")),
        Method("T = 4"),
    ],
    "credit": [  # what is it that helps: the tree, rewards for each action, or the rate of learning?
        Method(f"{who}: {name}", f"{workflow}{options}".strip())
        for who, workflow, share in (("single agent", f"{SINGLE} ", 67), ("team", "", 56))
        for name, options in {
            "tree, dense": "",
            "tree, outcome": "--reward outcome",
            "chains, dense": f"{CHAINS} --reward dense",
            "chains, outcome": f"{CHAINS} --reward outcome",
            "GRPO": CHAINS,
            "GRPO, as many candidates": f"{CHAINS} --steps {share}%",
            "GRPO, tuned": f"{CHAINS} --minibatches 8",  # chosen on seed 100, which no table has (docs/credit.md)
            "chains by turn and agent": "--sampling parallel --grouping agent_turn",  # prompts differ in a group
        }.items()
    ],
}
# claim -> the row that should be better, the one it is compared with, and the latter's shorter schedule if any
CLAIMS: dict[str, tuple[str, ...]] = {
    "tree groups against trajectory groups, team": (AT_GRPO, "MAS + GRPO"),
    "tree groups against trajectory groups, single agent": ("single agent + tree", "single agent + GRPO"),
    "team against single agent, both GRPO": ("MAS + GRPO", "single agent + GRPO"),
    "team with four turns against single agent with one, as published": (AT_GRPO, "single agent + GRPO, T = 1"),
    "team against single agent, both with trees": (AT_GRPO, "single agent + tree"),
    "policy per role against shared policy": ("MAS + AT-GRPO, policy per role", AT_GRPO),
    "short sight: team against single agent": (SIGHT, "short sight: single agent + tree"),
    "short sight: policy per role against shared policy": ("short sight: policy per role", SIGHT),
}
for who in ("single agent", "team"):
    for claim, names in {
        "tree against chains, dense": ("tree, dense", "chains, dense"),
        "tree against chains, outcome": ("tree, outcome", "chains, outcome"),
        "dense against outcome, tree": ("tree, dense", "tree, outcome"),
        "tree against GRPO": ("tree, dense", "GRPO", "GRPO, as many candidates"),
        "tree against tuned GRPO": ("tree, dense", "GRPO, tuned"),
        "tree against chains by turn and agent": ("tree, dense", "chains by turn and agent"),
    }.items():
        CLAIMS[f"{who}: {claim}"] = tuple(f"{who}: {name}" for name in names)
