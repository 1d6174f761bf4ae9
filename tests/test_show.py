"""What a run shows of itself beside its metrics: boards, the spread of groups, and who started it with what."""

import json
import random

import pytest
from helpers import ScriptedEngine, Toy
from test_report import CONFIG, KEYS, ask, ask_page, browser

import report
from distributed.world import World
from envs import make_env
from grouping import assign_advantages, group_samples, trajectory_key
from records.boards import LEVELS, board_rows, replay
from records.checkpoint import append_row, cut_log
from records.compare import comparison, labels
from records.groups import BINS, group_row
from records.log import Log
from records.metrics import rollout_metrics
from records.page import by_turn, choice, clocks, duration, read_run, sections, summary
from records.trees import most_interesting, tree_rows
from rollout import Rollout, evaluate, rollout_chains, rollout_tree
from tasks.plan_path import PlanPath

PLANS = {"tool_user": ["[R]", "[D]", "nothing"], "planner": ["[U]", "[R, R]", "[R]"]}


class Drawn(Toy):
    """A Toy that draws its log."""

    def render(self):
        return "|".join(self.log) or "empty"


class Moody(Drawn):
    """Its second life is worth something else than its first."""

    lives = 0

    def step(self, agent, text):
        type(self).lives += 1
        return super().step(agent, str(type(self).lives % 9))


def play(envs, script, sample=rollout_tree, k=3, turns=2):
    engine = ScriptedEngine(script)
    result = sample(envs, engine, encode=engine.encode, decode=engine.decode, num_candidates=k, max_turns=turns)
    assign_advantages(group_samples(result.samples, trajectory_key if sample is rollout_chains else lambda s: s.key))
    return result


def boards(row, episode=0):
    """(before, after each candidate) of every stage."""
    return [
        (row["boards"][stage["board"]], [row["boards"][c["board"]] for c in stage["candidates"]])
        for stage in row["episodes"][episode]["stages"]
    ]


# ---------------------------------------------------------------------------------------------------------------- trees


def test_a_tree_shows_the_board_before_a_stage_and_after_each_candidate():
    result = play([Drawn()], lambda request, k: "152"[k], turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Drawn())
    assert boards(row) == [
        ("empty", ["ann:1", "ann:5", "ann:2"]),
        ("ann:5", ["ann:5|bob:1", "ann:5|bob:5", "ann:5|bob:2"]),
    ]
    assert len(row["boards"]) == len(set(row["boards"]))  # each is written once


def test_chains_show_the_boards_of_each_trajectory():
    result = play([Drawn()], lambda request, k: str(request.seed % 3), rollout_chains, turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Drawn())
    assert [boards(row, k)[1] for k in range(3)] == [(f"ann:{k}", [f"ann:{k}|bob:{k}"]) for k in range(3)]


@pytest.mark.parametrize("view", ["grid", "cells"])
def test_a_real_board_is_drawn_whatever_its_agents_see(view):
    def level(env):
        return PlanPath.from_text("S.G\n...", view=view)

    result = play([level(0)], lambda request, k: f"#### {PLANS[request.agent][k]}", turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, level)
    tool_user, planner = [[before, *after] for before, after in boards(row)]
    assert {board.split("\n")[1] for board in tool_user} == {"P . G"}  # a proposal moves nobody
    assert [board.split("\n")[1] for board in planner] == ["P . G", "P . G", ". . P", ". P G"]


def test_an_environment_without_a_picture_has_no_boards():
    assert Toy().render() == ""
    assert make_env("sudoku").reset(seed=1).render().startswith("Puzzle:\n")
    result = play([Toy()], lambda request, k: "152"[k])
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Toy())
    assert row == tree_rows(result, 0, ScriptedEngine.decode, 1)[0]
    assert "boards" not in row


def test_a_board_that_would_be_another_one_is_not_shown():
    result = play([Moody()], lambda request, k: "152"[k], turns=1)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1, lambda env: Moody())
    assert row["boards"] == ["empty"]
    assert "board" not in row["episodes"][0]["stages"][1]


def test_candidates_that_were_not_scored_have_no_board():
    result = play([Drawn()], lambda request, k: ("infra", "4", "6")[k], turns=1)
    assert replay(Drawn(), result.samples, ScriptedEngine.decode)[0] == ("empty", ["", "ann:4", "ann:6"])


def test_where_scoring_is_slow_only_what_was_committed_is_played_again():
    env = Drawn()
    env.slow_scoring = True
    result = play([Drawn()], lambda request, k: "152"[k], turns=1)
    assert replay(env, result.samples, ScriptedEngine.decode) == [
        ("empty", ["", "ann:5", ""]), ("ann:5", ["", "ann:5|bob:5", ""]),
    ]  # fmt: skip


def test_what_is_recorded_are_the_environments_with_the_most_groups_with_a_signal():
    envs = [Toy(name="flat"), Toy(name="flat"), Toy(name="half"), Toy(name="full"), Toy(name="full")]
    names = [env.name for env in envs]

    def script(request, k):
        name = "".join(map(chr, request.prompt_ids)).split()[0]
        return str(k) if name == "full" or (name == "half" and request.agent == "ann") else "4"

    result = play(envs, script)
    recorded = [names[row["env"]] for row in tree_rows(result, 0, ScriptedEngine.decode, 3)]
    assert recorded == ["half", "full", "full"]
    assert [row["env"] for row in tree_rows(result, 0, ScriptedEngine.decode, 1)] == [3]


def test_the_rows_of_several_ranks_are_those_of_all_environments_together():
    numbers = random.Random(1)
    result = play([Toy() for _ in range(9)], lambda request, k: str(numbers.randrange(3)))
    parts = [Rollout(result.episodes[start : start + 3]) for start in (0, 3, 6)]
    for limit in (0, 1, 2, 5, 9):
        rows = [row for part in parts for row in tree_rows(part, 0, ScriptedEngine.decode, limit)]
        assert most_interesting(rows, limit) == tree_rows(result, 0, ScriptedEngine.decode, limit)


def test_small_differences_of_reward_are_recorded():
    result = play([Toy()], lambda request, k: "1")
    for k, sample in enumerate(result.samples):
        sample.reward = 1 + 1e-5 * (k % 3)
    (row,) = tree_rows(result, 0, ScriptedEngine.decode, 1)
    assert [c["reward"] for c in row["episodes"][0]["stages"][0]["candidates"]] == [1.0, 1.00001, 1.00002]


# --------------------------------------------------------------------------------------------------------------- groups


def test_the_spread_of_a_step():
    """Turn 0: ann differs, bob does not; turn 1: nobody does."""

    def script(request, k):
        return str(k) if len(request.prompt_ids) == len("toy ann sees nothing") else "5"

    result = play([Toy(), Toy()], script)
    row = group_row(result.samples, 4)
    assert (row["step"], row["signal"], row["tokens"]) == (4, [0.5, 0.0], 2 * 4 * 3 * 2)
    assert (sum(row["advantages"]), len(row["advantages"])) == (24, BINS)
    assert row["advantages"][BINS // 2] == 18 + 2  # all fives, and 1 of 0 1 2
    assert row["reward_limit"] == 1.0
    assert {agent: sum(counts) for agent, counts in row["rewards"].items()} == {"ann": 12, "bob": 12}
    assert row["rewards"]["bob"][BINS // 2] == 12  # .5
    json.dumps(row)


def test_a_step_in_which_nothing_was_scored():
    row = group_row(play([Toy()], lambda request, k: "infra").samples, 0)
    assert (row["signal"], sum(row["advantages"]), row["rewards"], row["reward_limit"]) == ([0.0], 0, {}, 1.0)


# ----------------------------------------------------------------------------------------------------------- evaluation


def evaluation(level, script, count=6):
    engine = ScriptedEngine(script)
    return evaluate([level(i) for i in range(count)], engine, encode=engine.encode, decode=engine.decode, max_turns=2)


def make_log(folder, level=lambda number: Drawn(), trees=2):
    return Log(folder, World(), 2, ["ann", "bob"], ["p"], ScriptedEngine.decode, trees, lambda s, e: level(e), level)


def test_the_first_held_out_boards_are_recorded():
    result = evaluation(lambda number: Drawn(), lambda request, k: "3!" if request.agent == "bob" else "1")
    rows = board_rows(result.episodes, 25, ScriptedEngine.decode, lambda number: Drawn())
    assert [row["level"] for row in rows] == list(range(LEVELS))
    assert rows[0] == {
        "step": 25, "level": 0, "solved": True, "ended": "done", "board": "empty", "actions": [
            {"turn": 0, "agent": "ann", "text": "1", "board": "ann:1"},
            {"turn": 0, "agent": "bob", "text": "3!", "board": "ann:1|bob:3!"},
        ],
    }  # fmt: skip
    assert board_rows(result.episodes, 25, ScriptedEngine.decode, lambda number: Toy()) == []


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_boards_of_evaluations_are_written_and_cut_like_the_evaluations(tmp_path):
    log, result = make_log(tmp_path), evaluation(lambda number: Drawn(), lambda request, k: "1")
    log.clear()
    for step in (0, 1, 2):
        log.evaluation(step, result)
    log.cut(1)
    assert [row["step"] for row in read(tmp_path, "evaluations.jsonl")] == [0, 1]
    assert [row["step"] for row in read(tmp_path, "boards.jsonl")] == [0] * LEVELS + [1] * LEVELS
    log.clear()
    assert not (tmp_path / "boards.jsonl").exists()
    make_log(tmp_path, trees=0).clear()


def test_a_run_that_records_no_trees_records_no_boards(tmp_path):
    log = make_log(tmp_path, trees=0)
    log.clear()
    log.evaluation(0, evaluation(lambda number: Drawn(), lambda request, k: "1"))
    assert not (tmp_path / "boards.jsonl").exists()


def test_every_command_that_worked_on_a_run_is_noted(tmp_path, monkeypatch):
    result = evaluation(lambda number: Drawn(), lambda request, k: "1")
    for arguments, begin in ((["a b"], lambda log: log.clear()), (["--resume"], lambda log: log.cut(0))):
        monkeypatch.setattr("sys.argv", ["train.py", *arguments])
        log = make_log(tmp_path)
        begin(log)
        log.evaluation(0, result)
    first, second = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["sessions"]
    assert (first["command"], second["command"]) == ("python train.py 'a b'", "python train.py --resume")
    assert set(first) == {"command", "date", "versions", "processes", "seconds"}
    assert set(first["versions"]) == {"python", "torch", "transformers", "numpy"}
    assert 0 <= first["seconds"] < 60


# ----------------------------------------------------------------------------------------------------------- comparison


def a_run(folder, seconds=2.0, **options):
    """Two steps of Drawn environments with an evaluation before and after them."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "seed": 3, **options}), encoding="utf-8")
    log, numbers = make_log(folder), iter(range(10**6))
    log.clear()
    log.evaluation(0, evaluation(lambda number: Drawn(), lambda request, k: "1"))
    for step in (0, 1):
        result = play(
            [Drawn(), Drawn()], (lambda request, k: str(next(numbers) % 7)) if step else lambda request, k: "4"
        )
        counts = assign_advantages(group_samples(result.samples))
        row = {"step": step, **rollout_metrics(result, counts)}
        log.step(row, {"step_s": seconds}, result, example=False)
    log.evaluation(2, evaluation(lambda number: Drawn(), lambda request, k: "2!" if request.agent == "bob" else "3"))
    return folder


def embedded(page):
    return json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])


def test_runs_are_compared_by_steps_tokens_and_seconds(tmp_path, capsys):
    one, two = a_run(tmp_path / "one"), a_run(tmp_path / "two", seconds=3.0, alpha=0.5, lr=1e-3)
    capsys.readouterr()
    report.main([str(one), str(two)])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'comparison.html'}: 2 runs, 4 steps, ")
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    data = embedded(page)
    assert data["differences"] == {
        "runs": ["one", "two"],
        "options": [["alpha", ["1.0", "0.5"]], ["lr", ["–", "0.001"]]],
    }
    tokens = 2 * 4 * 3 * 2  # environments, stages, candidates, tokens of an answer
    assert data["clocks"] == [
        {"tokens": [0, tokens, 2 * tokens], "seconds": [0, 2.0, 4.0]},
        {"tokens": [0, tokens, 2 * tokens], "seconds": [0, 3.0, 6.0]},
    ]
    charts = {chart["title"]: chart["series"] for chart in data["sections"][0]["charts"]}
    assert [(line["name"], line["run"], line["y"]) for line in charts["Held-out success"]] == [
        ("one", 0, [0.0, 1.0]), ("two", 1, [0.0, 1.0]),
    ]  # fmt: skip
    assert [line["name"] for line in charts["Reward"]] == ["one ann", "one bob", "two ann", "two bob"]
    assert labels([read_run(one), read_run(one), read_run(two)]) == ["one (1)", "one (2)", "two"]


def test_one_bad_run_among_several_is_named(tmp_path):
    one = a_run(tmp_path / "one")
    with pytest.raises(SystemExit, match="nowhere holds no run"):
        report.main([str(one), str(tmp_path / "nowhere")])
    assert not (tmp_path / "comparison.html").exists()


def test_steps_that_are_missing_leave_only_the_axis_of_steps(tmp_path):
    run = a_run(tmp_path / "one")
    (run / "groups.jsonl").unlink()
    assert clocks(read_run(run)) == {"seconds": [0, 2.0, 4.0]}
    cut_log(run / "timing.jsonl", 1)
    assert clocks(read_run(run)) == {}


# ------------------------------------------------------------------------------------------------------------- the page


def test_the_top_says_who_started_it_when_and_with_what(tmp_path):
    run = a_run(tmp_path / "one")
    facts = dict(summary(read_run(run)))
    session = json.loads((run / "run.json").read_text(encoding="utf-8"))["sessions"][0]
    assert (facts["Seed"], facts["Command"]) == ("3", session["command"])
    assert facts["Date"] == f"{session['date'].replace('T', ' ')}, {duration(session['seconds'])}"
    assert f"torch {session['versions']['torch']}" in facts["Versions"]


def test_the_page_says_how_the_recorded_environments_were_chosen(tmp_path):
    run = a_run(tmp_path / "one")
    assert "most groups that have a signal" in choice(read_run(run))
    (run / "groups.jsonl").unlink()  # a run of an older version
    assert choice(read_run(run)) == "The first environments of each step are recorded."


def test_charts_by_role_and_by_turn(tmp_path):
    charts = {c["title"]: c["series"] for part in sections(read_run(a_run(tmp_path / "one"))) for c in part["charts"]}
    assert [(line["name"], line["x"], line["y"]) for line in charts["Held-out format"]] == [
        ("ann", [0, 2], [1.0, 1.0]), ("bob", [0, 2], [1.0, 1.0]),
    ]  # fmt: skip
    assert [(line["name"], line["y"]) for line in charts["Groups with a signal"]] == [
        ("turn 0", [0.0, 1.0]), ("turn 1", [0.0, 1.0]),
    ]  # fmt: skip


def test_a_turn_that_nobody_reached_has_no_share_but_a_count():
    rows = [{"step": 0, "x": [1.0, 0.5]}, {"step": 1, "x": [0.25]}, {"step": 2}]
    assert by_turn(rows, "x")[1] == {"name": "turn 1", "x": [0], "y": [0.5]}
    assert by_turn(rows, "x", unreached=(0,))[1] == {"name": "turn 1", "x": [0, 1], "y": [0.5, 0]}


def test_without_javascript_there_are_curves_and_a_tree(tmp_path):
    run = a_run(tmp_path / "<one> {{DATA}}")
    page = report.page(read_run(run))
    assert page.count("<noscript>") == page.count("</noscript>") == 1
    still = page.split("<noscript>")[1].split("</noscript>")[0]
    assert "<h3>Success</h3>" in still
    assert still.count("<polyline") > 20
    assert "One recorded tree: step 1, environment 0" in still  # not step 0, where nothing was learned
    assert "<pre class='board'>empty</pre>" in still
    assert still.count("★ <code>") == 4
    assert "<h1>&lt;one&gt; {{DATA}}</h1>" in page
    assert embedded(page)["boards"]


# -------------------------------------------------------------------------------------------------------------- browser


@browser
@pytest.mark.slow
def test_ways_through_a_run(tmp_path):
    answer = ask(a_run(tmp_path / "one"), KEYS + """
        answer = [status()];
        for (const way of ["signal", "unsolved", "largest"]) {
          document.getElementById(`way-${way}`).click();
          answer.push(status());
        }
        press("n");
        const most = Math.max(...groups.map((one) => one.most));
        document.getElementById("way-largest").click();
        const { stage } = current();
        answer.push(stage.candidates.some((candidate) => Math.abs(candidate.advantage) === most));
    """, "#step=0&env=0&stage=0")  # fmt: skip
    assert answer[0].startswith("Step 0, environment 0")
    assert answer[1] == "Step 1, environment 0: out of turns (2 turns). Shown: turn 0, ann."
    assert answer[2] == "Step 1, environment 1: out of turns (2 turns). Shown: turn 0, ann."
    assert answer[3].startswith("Step 1")
    assert answer[4] is True


@browser
@pytest.mark.slow
def test_boards_are_shown_before_and_after(tmp_path):
    answer = ask(a_run(tmp_path / "one"), """
        const boards = () => [...document.querySelectorAll(".boards pre")].map((node) => node.textContent);
        answer = [boards()];
        const rows = [...document.querySelectorAll(".candidates tbody tr")];
        rows[0].dispatchEvent(new PointerEvent("pointerenter"));
        answer.push(boards());
        rows[0].dispatchEvent(new PointerEvent("pointerleave"));
        answer.push(boards());
        rows[1].querySelector("button").click();
        rows[1].dispatchEvent(new PointerEvent("pointerleave"));
        answer.push(boards(), rows.map((row) => row.classList.contains("shown")));
    """, "#step=1&env=0&stage=0")  # fmt: skip
    first, second, third = (["empty", f"ann:{k}"] for k in range(3))
    assert answer == [third, first, third, second, [False, True, False]]  # the third is committed


@browser
@pytest.mark.slow
def test_a_slider_walks_a_board_through_training(tmp_path):
    answer = ask(a_run(tmp_path / "one"), """
        const shown = () => [document.getElementById("board-status").textContent,
          [...document.querySelectorAll("#film .board")].map((node) => node.textContent)];
        answer = [shown()];
        const slider = document.getElementById("evaluation");
        slider.value = slider.max;
        slider.dispatchEvent(new Event("input"));
        answer.push(shown());
    """)  # fmt: skip
    assert answer[0] == [
        "After 0 steps: out of turns (4 actions).",
        ["empty", "ann:1", "ann:1|bob:1", "ann:1|bob:1|ann:1", "ann:1|bob:1|ann:1|bob:1"],
    ]
    assert answer[1] == ["After 2 steps: solved (2 actions).", ["empty", "ann:3", "ann:3|bob:2!"]]


@browser
@pytest.mark.slow
def test_a_click_on_a_curve_opens_that_step(tmp_path):
    answer = ask(a_run(tmp_path / "one"), KEYS + """
        const plot = document.querySelectorAll("figure svg.opens")[2], box = plot.getBoundingClientRect();
        const at = (type, share) => plot.dispatchEvent(new PointerEvent(type,
          { clientX: box.left + 44 + share * (box.width - 44), clientY: box.top + 50, bubbles: true }));
        at("pointermove", 0.9);
        at("click", 0.9);
        answer = [status(), document.getElementById("spread-step").previousSibling.textContent];
    """, "#step=0&env=0&stage=0")  # fmt: skip
    assert answer == ["Step 1, environment 0: out of turns (2 turns). Shown: turn 0, ann.", "Step 1"]


@browser
@pytest.mark.slow
def test_curves_of_several_runs_over_tokens(tmp_path):
    runs = [a_run(tmp_path / "one"), a_run(tmp_path / "two", alpha=0.5)]
    probe = """<script>{ const select = document.getElementById("axis"); select.value = "tokens";
      select.dispatchEvent(new Event("change"));
      const answer = [[...select.options].map((option) => option.value),
        document.querySelector("figure .legend").textContent, document.getElementById("differences").textContent,
        document.getElementById("explorer").checkVisibility()];
      const out = document.createElement("pre"); out.id = "answer"; out.textContent = JSON.stringify(answer);
      document.body.append(out); }</script></body>"""
    page = comparison([read_run(run) for run in runs]).replace("</body>", probe)
    assert ask_page(tmp_path, page) == [
        ["step", "tokens", "seconds"], "96 tokensone 1two 1", "optiononetwoalpha1.00.5", False,
    ]  # fmt: skip


@browser
@pytest.mark.slow
def test_long_lines_are_smoothed_over_their_values(tmp_path):
    run = a_run(tmp_path / "one")
    for step in range(2, 40):
        append_row(run / "metrics.jsonl", {"step": step, "solved": step % 2})
    answer = ask(run, """
        const count = () => document.querySelector("figure svg").querySelectorAll("path.raw").length;
        const last = () => smooth([0, 1, 0, 1]).at(-1);
        answer = [count(), last()];
        const slider = document.getElementById("smoothing");
        slider.value = 0;
        slider.dispatchEvent(new Event("input"));
        answer.push(count(), last(), digits(0.0000123456), digits(-2.4712), digits(0.5), digits(0));
    """)  # fmt: skip
    assert answer == [1, pytest.approx((1 + 0.7**2) / (1 + 0.7 + 0.7**2 + 0.7**3)), 0, 1,
                      "1.23e−5", "−2.47", "0.500", "0"]  # fmt: skip
