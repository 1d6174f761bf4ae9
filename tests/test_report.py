"""The page of a run: hostile text stays text, every number comes from the files, bad folders are named.

Tests marked slow open the page in headless Chromium (Debian package `chromium`) and ask it what it shows.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from helpers import ScriptedEngine, Toy

import report
from grouping import assign_advantages, group_samples, trajectory_key
from records.checkpoint import append_row
from records.metrics import groups_per_turn, rollout_metrics
from records.page import FIELDS, group_spreads, sections, thin
from records.trees import tree_rows
from rollout import rollout_chains, rollout_tree

TEMPLATE = Path(report.__file__).with_name("records") / "page.html"
HOSTILE = (
    "5</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><!-- \u2028 &lt;"
)
CONFIG = {
    "task": "toy", "workflow": "mas", "sampling": "tree", "num_candidates": 3, "max_turns": 2, "model": "tiny",
    "envs_per_step": 2, "steps": 2, "alpha": 1.0, "normalize": "std",
}  # fmt: skip


def digits(request, k):
    return "152"[k]


def play(run, step, script=digits, sample=rollout_tree, envs=2, **toy):
    """Play one step with scripted answers and log it as train.py does."""
    engine = ScriptedEngine(script)
    result = sample(
        [Toy(**toy) for _ in range(envs)], engine, encode=engine.encode, decode=engine.decode,
        num_candidates=3, max_turns=2,
    )  # fmt: skip
    groups = (
        group_samples(result.samples, trajectory_key) if sample is rollout_chains else group_samples(result.samples)
    )
    counts = assign_advantages(groups)
    trained = {"p/entropy": 0.5, "p/logprob_gap": 1e-7, "p/grad_norm": 0.3, "p/clip_fraction": 0.0}
    append_row(
        run / "metrics.jsonl", {"step": step, **rollout_metrics(result, counts | groups_per_turn(groups)), **trained}
    )
    append_row(run / "timing.jsonl", {"step": step, "sample_s": 1.5, "sync_s": 0.0, "peak_gb": 0.5})
    for row in tree_rows(result, step, engine.decode, 2):
        append_row(run / "trees.jsonl", row)


@pytest.fixture
def run(tmp_path):
    """A run of two steps with a held-out evaluation before and after it."""
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for step in (0, 1):
        play(folder, step)
    for step, success in ((0, 0.1), (2, 0.75)):
        append_row(folder / "evaluations.jsonl", {"step": step, "success": success, "se": 0.03, "n": 100})
    return folder


def embedded(page):
    """The text of the page's data block, as a browser cuts it out."""
    return page.split('<script type="application/json" id="data">')[1].split("</script>")[0]


def charts_of(folder):
    return {chart["title"]: chart for part in sections(report.read_run(folder)) for chart in part["charts"]}


def line(chart, name):
    return next(series for series in chart["series"] if series["name"] == name)


# --------------------------------------------------------------------------------------------------------------- data


def test_curves_are_the_numbers_of_the_files(run):
    charts = charts_of(run)
    assert line(charts["Success"], "held-out") == {
        "name": "held-out", "x": [0, 2], "y": [0.1, 0.75], "error": [0.03, 0.03],
    }  # fmt: skip
    assert line(charts["Reward"], "ann")["y"] == pytest.approx([0.8 / 3] * 2)  # digits 1, 5 and 2, / 10
    assert line(charts["Entropy"], "p")["y"] == [0.5, 0.5]
    assert line(charts["Log-prob gap"], "p")["y"] == [1e-7, 1e-7]
    assert line(charts["Groups a step"], "trained")["y"] == [8, 8]  # 2 environments, 2 turns, 2 agents
    assert line(charts["Groups by turn"], "turn 1")["y"] == [4, 4]
    assert line(charts["Response length"], "bob")["y"] == [2, 2]
    assert [part["name"] for part in charts["Seconds a step"]["series"]] == ["sample"]  # sync took no time
    assert line(charts["Seconds a step"], "sample")["y"] == [1.5, 1.5]
    assert line(charts["Peak memory"], "peak")["y"] == [0.5, 0.5]
    assert line(charts["Spread of reward"], "recorded groups")["y"] == pytest.approx([0.20817] * 2, abs=1e-4)
    assert [series["name"] for series in charts["Parts of the local reward"]["series"]] == [
        "ann format", "ann actions", "bob format", "bob actions",
    ]  # fmt: skip


def test_an_agent_that_spoke_in_some_steps_only_and_a_policy_of_its_name(run):
    append_row(run / "metrics.jsonl", {"step": 2, "solved": 1.0, "cat/reward": 0.7, "cat/entropy": 0.2})
    charts = charts_of(run)
    assert line(charts["Reward"], "cat") == {"name": "cat", "x": [2], "y": [0.7]}
    assert line(charts["Reward"], "ann")["x"] == [0, 1]
    assert line(charts["Entropy"], "cat")["y"] == [0.2]


def test_a_value_that_is_no_number_is_a_gap(run):
    append_row(run / "metrics.jsonl", {"step": 2, "p/entropy": float("nan")})
    assert line(charts_of(run)["Entropy"], "p")["y"] == [0.5, 0.5, None]
    append_row(run / "evaluations.jsonl", {"step": 3, "success": 1.0, "se": float("nan"), "n": 1})
    assert line(charts_of(run)["Success"], "held-out")["error"] == [0.03, 0.03, None]
    assert "NaN" not in embedded(report.page(report.read_run(run)))


def test_the_spread_of_chains_compares_whole_trajectories():
    """Three trajectories with returns 0, 0 and 1, whatever their lengths."""
    result = [
        {"trajectory": k, "stages": [{"candidates": [{"reward": value, "valid": True}]}] * length}
        for k, (value, length) in enumerate([(0.0, 4), (0.0, 4), (1.0, 1)])
    ]
    assert group_spreads([{"step": 3, "episodes": result}]) == [(3, pytest.approx(0.57735, abs=1e-4))]


def test_candidates_that_were_not_scored_have_no_part_in_the_spread():
    rewards = [{"reward": 0.0, "valid": False}, {"reward": 1.0, "valid": True}, {"reward": 3.0, "valid": True}]
    row = {"step": 0, "episodes": [{"trajectory": None, "stages": [{"candidates": rewards}]}]}
    assert group_spreads([row]) == [(0, pytest.approx(2**0.5))]


def test_many_recorded_steps_are_thinned_to_the_limit_with_the_first_and_the_last():
    rows = [{"step": step, "env": env, "text": "x" * 100} for step in range(100) for env in (0, 1)]
    assert thin(rows, 10**6) == rows
    thinned = thin(rows, 5000)
    steps = sorted({row["step"] for row in thinned})
    assert sum(len(json.dumps(row)) for row in thinned) <= 5000
    assert (steps[0], steps[-1]) == (0, 99)
    assert len({b - a for a, b in pairwise(steps[:-1])}) == 1  # evenly, but for the last
    assert [row["env"] for row in thinned] == [0, 1] * len(steps)
    assert thin([], 5000) == []


# ------------------------------------------------------------------------------------------------------------- safety


def test_what_a_model_wrote_cannot_leave_the_data_block(run):
    play(run, 2, lambda request, k: HOSTILE)
    page = report.page(report.read_run(run))
    template = TEMPLATE.read_text(encoding="utf-8")
    block = embedded(page)
    assert not set("<\u2028\u2029") & set(block)
    assert page.count("</script") == template.count("</script")
    candidate = json.loads(block)["trees"][-1]["episodes"][0]["stages"][0]["candidates"][0]
    assert candidate[FIELDS.index("text")] == HOSTILE


def test_the_name_of_the_folder_is_escaped(run):
    folder = run.rename(run.with_name("<b>&"))
    assert "<title>&lt;b&gt;&amp; · AT-GRPO</title>" in report.page(report.read_run(folder))


def test_the_page_never_parses_text_as_html_and_loads_nothing():
    template = TEMPLATE.read_text(encoding="utf-8")
    for call in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "@import",
        "url(",
    ):
        assert call not in template
    assert re.findall(r"https?://[^\"]*", template) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in template


# --------------------------------------------------------------------------------------------------------- bad folders


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "config.json").unlink(), "holds no run (no config.json)"),
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl has no finished step yet"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl has no finished step yet"),
        (lambda run: (run / "trees.jsonl").write_text('{"step": 0}\n{"step"\n'), "trees.jsonl, line 2: not JSON"),
        (lambda run: (run / "trees.jsonl").write_text('{"step": 0}\n'), "trees.jsonl, line 1: env is missing"),
        (lambda run: (run / "timing.jsonl").write_text("[1]\n"), "timing.jsonl, line 1: not a JSON object"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\n"), "metrics.jsonl: not UTF-8 text"),
        (lambda run: (run / "evaluations.jsonl").write_text('{"step": 0}\n'), "line 1: success is missing"),
        (lambda run: (run / "config.json").write_text('{"task": "to'), "config.json: not JSON"),
        (lambda run: (run / "config.json").write_text(""), "config.json: not JSON"),
        (lambda run: (run / "config.json").write_text("[]"), "config.json: not a JSON object"),
        (lambda run: (run / "config.json").write_text("{}"), "config.json: task is missing"),
    ],
)
def test_bad_folders_are_named(run, damage, message):
    damage(run)
    with pytest.raises(SystemExit, match=re.escape(message)):
        report.main([str(run)])
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("demmo", "demo"),
        ("DEMO", "demo"),
        ("sudoku-20260102", "runs/sudoku-20260101"),  # `runs/` may be left out
        ("rnus/sudoku-20260101", "runs/sudoku-20260101"),
        ("runs/sudoku-2026010", "runs/sudoku-20260101"),
        ("runs", "runs/sudoku-20260101"),
        ("demo/checkpoints", "demo"),
        ("demo/metrics.jsonl", "demo"),
        ("elsewhere/../demmo", "demo"),
    ],
)
def test_a_mistyped_run_names_the_nearest_one(run, monkeypatch, typed, meant):
    monkeypatch.chdir(run.parent)
    (run.parent / "runs" / "sudoku-20260101").mkdir(parents=True)
    (run.parent / "runs" / "sudoku-20260101" / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match=re.escape(f"{typed} holds no run (no config.json)")) as exit_:
        report.main([typed])
    assert str(exit_.value).endswith(f" (did you mean {meant}?)")


@pytest.mark.parametrize("typed", ["nothing-like-it", "/", "/nowhere/at/all/deep", ".", "a" * 300, ""])
def test_a_run_that_is_like_no_other_has_no_hint(tmp_path, monkeypatch, typed):
    (tmp_path / "alone" / "here").mkdir(parents=True)  # the folders beside tmp_path are those of other tests
    monkeypatch.chdir(tmp_path / "alone" / "here")
    with pytest.raises(SystemExit, match=r"report\.py: error: ") as exit_:
        report.main([typed])
    assert "did you mean" not in str(exit_.value)


def test_a_line_that_is_still_being_written_is_left_out(run):
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 2, "solv')
    assert [row["step"] for row in report.read_run(run).metrics] == [0, 1]


def test_runs_without_trees_evaluations_and_times_have_a_page(run, capsys):
    for name in ("trees", "evaluations", "timing"):
        (run / f"{name}.jsonl").unlink()
    report.main([str(run), "--output", str(run / "page.html")])
    assert "2 steps, 0 recorded trees" in capsys.readouterr().out
    data = json.loads(embedded((run / "page.html").read_text(encoding="utf-8")))
    titles = [chart["title"] for part in data["sections"] for chart in part["charts"]]
    assert data["trees"] == []
    assert "Reward" in titles
    assert not {"Seconds a step", "Peak memory", "Spread of reward"} & set(titles)
    assert "Held-out success" not in dict(data["summary"])


# ------------------------------------------------------------------------------------------------------------ browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")


def ask(folder, script, address=""):
    """Open the page of a run, let it draw itself, run `script` in it and return what that assigns to `answer`."""
    probe = f"<script>(() => {{ let answer; {script}; const out = document.createElement('pre'); out.id = 'answer';"
    probe += " out.textContent = JSON.stringify(answer); document.body.append(out); })()</script></body>"
    return ask_page(folder, report.page(report.read_run(folder)).replace("</body>", probe), address)


def ask_page(folder, page, address=""):
    """Open a page and return the JSON that it leaves in its element `answer`."""
    file = folder / "probed.html"
    file.write_text(page, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder / 'browser'}", "--window-size=1280,900", "--dump-dom", f"{file.as_uri()}{address}",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return json.loads(html.unescape(shown.split('<pre id="answer">')[1].split("</pre>")[0]))


KEYS = """
const press = (keys) => document.dispatchEvent(new KeyboardEvent("keydown",
  { key: keys.replace("Shift+", ""), shiftKey: keys.startsWith("Shift+"), bubbles: true }));
const status = () => document.getElementById("status").textContent;
"""


@browser
@pytest.mark.slow
def test_keys_walk_through_the_tree(run):
    keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "Shift+ArrowDown", "Shift+ArrowRight", "ArrowRight"]
    answer = ask(run, KEYS + f"""
        answer = [location.hash, status()];
        for (const keys of {[*keys, "Shift+ArrowLeft"]}) {{ press(keys); answer.push(location.hash, status()); }}
    """)  # fmt: skip
    assert answer[::2] == [
        "",
        "#step=0&env=0&stage=1",
        "#step=0&env=0&stage=2",
        "#step=0&env=0&stage=1",
        "#step=0&env=1&stage=0",
        "#step=1&env=1&stage=0",
        "#step=1&env=1&stage=1",
        "#step=0&env=1&stage=0",
    ]
    assert answer[1] == "Step 0, environment 0: out of turns (2 turns). Shown: turn 0, ann."
    assert answer[5] == "Step 0, environment 0: out of turns (2 turns). Shown: turn 1, ann."
    assert answer[13] == "Step 1, environment 1: out of turns (2 turns). Shown: turn 0, bob."


@browser
@pytest.mark.slow
def test_keys_outside_of_what_was_recorded_stay_inside(run):
    keys = ["ArrowLeft", "Shift+ArrowUp", "Shift+ArrowLeft", *["ArrowRight"] * 9]
    answer = ask(run, KEYS + f"{keys}.forEach(press); answer = status()", "#step=0&env=0&stage=0")
    assert answer == "Step 0, environment 0: out of turns (2 turns). Shown: turn 1, bob."


@browser
@pytest.mark.slow
def test_an_address_names_what_is_shown(run):
    answer = ask(run, """
        const text = (selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent);
        answer = ["#status", ".prompt pre", ".candidates tbody pre", ".candidates .committed pre",
          ".candidates td[data-name=advantage]", ".new", ".candidates caption"].map(text);
    """, "#step=1&env=1&stage=1")  # fmt: skip
    status, prompt, candidates, committed, advantages, new, captions = answer
    assert status == ["Step 1, environment 1: out of turns (2 turns). Shown: turn 0, bob."]
    assert prompt == ["toy bob sees ann:5"]
    assert candidates == ["1", "5", "2"]
    assert committed == ["5"]
    assert advantages == ["−0.801", "+1.12", "−0.320"]
    assert new == ["toy ann sees ann:5 bob:5"]  # what the next agent is asked
    assert "Mean reward 0.267, standard deviation 0.208." in captions[0]


@browser
@pytest.mark.slow
def test_chains_show_their_trajectories(run):
    for name in ("metrics", "trees"):
        (run / f"{name}.jsonl").unlink()
    config = {**CONFIG, "sampling": "chains"}
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")
    play(run, 0, lambda request, k: "9!" if request.seed % 3 == 2 else "1", sample=rollout_chains)
    answer = ask(run, KEYS + """
        press("]"); press("]");
        const rows = [...document.querySelectorAll(".trajectories tbody tr")];
        answer = [status(), location.hash, ...rows.map((row) => [...row.cells].map((cell) => cell.textContent))];
    """)  # fmt: skip
    assert answer == [
        "Step 0, environment 0, trajectory 2: solved (1 turn). Shown: turn 0, ann.",
        "#step=0&env=0&stage=0&trajectory=2",
        ["0", "4", "0", "−0.577", "out of turns"],
        ["1", "4", "0", "−0.577", "out of turns"],
        ["2", "1", "1.00", "+1.15", "solved"],
    ]


@browser
@pytest.mark.slow
def test_hostile_text_is_shown_and_does_nothing(run):
    play(run, 2, lambda request, k: HOSTILE, agents=("<b>ann</b>", "bob"))
    answer = ask(run, """
        const shown = document.querySelector(".candidates pre").textContent;
        answer = [document.title, document.querySelectorAll("img, b").length, shown];
    """, "#step=2&env=0&stage=0")  # fmt: skip
    assert answer == ["demo · AT-GRPO", 0, HOSTILE]


@browser
@pytest.mark.slow
def test_what_could_not_be_scored_is_said(run):
    play(run, 2, lambda request, k: "infra" if request.agent == "bob" else "infra" if k == 0 else "3")
    answer = ask(run, """
        const all = () => document.getElementById("walk").textContent;
        const first = all();
        location.hash = "#step=2&env=0&stage=1";
        dispatchEvent(new HashChangeEvent("hashchange"));
        answer = [first, all()];
    """, "#step=2&env=0&stage=0")  # fmt: skip
    assert "1 could not be scored (left out). All rewards are 0.300: advantage 0" in answer[0]
    assert "3 could not be scored (left out). Fewer than two rewards" in answer[1]
    assert "prompt, as the model read ittoy bob sees ann:3" in answer[1]
    assert "This is the last action: stopped: no candidate could be scored." in answer[1]


@browser
@pytest.mark.slow
@pytest.mark.parametrize("sample", [rollout_tree, rollout_chains])
def test_nothing_is_wider_than_a_phone(run, sample):
    """The window of headless Chromium is at least 500 wide, so the page is put into a frame of 360."""
    (run / "trees.jsonl").unlink()
    long = "7" + "x" * 3000 + " " + "word " * 800
    play(run, 2, lambda request, k: long, sample, agents=("an_agent_with_a_name_that_does_not_end", "bob"))
    frame = html.escape(report.page(report.read_run(run)), quote=True)
    answer = ask_page(
        run,
        f"""<body><iframe srcdoc="{frame}" style="width: 360px; height: 800px; border: 0"></iframe>
        <pre id="answer"></pre><script>onload = () => {{
          const inside = document.querySelector("iframe").contentDocument, sizes = [];
          for (let stage = 0; stage < 4; stage++) {{
            sizes.push([inside.documentElement.scrollWidth, inside.querySelectorAll(".candidates pre").length]);
            inside.getElementById("stage-next").click();
          }}
          document.getElementById("answer").textContent = JSON.stringify(sizes);
        }};</script></body>""",
    )
    assert answer == [[360, 3 if sample is rollout_tree else 1]] * 4


@browser
@pytest.mark.slow
def test_a_run_without_trees_says_so(run):
    (run / "trees.jsonl").unlink()
    answer = ask(run, """
        answer = ["no-trees", "walk"].map((id) => document.getElementById(id).checkVisibility());
        answer.push(document.querySelectorAll("figure svg path").length > 10);
    """)  # fmt: skip
    assert answer == [True, False, True]


@browser
@pytest.mark.slow
def test_two_hundred_steps_load_within_a_second_and_stay_small(run):
    """Rows of the size of a default run: K = 8, prompts of 700 characters, two environments a step, boards."""
    texts = {name: (run / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("metrics", "timing")}
    tree = json.loads((run / "trees.jsonl").read_text(encoding="utf-8").splitlines()[0])
    for stage in tree["episodes"][0]["stages"]:
        stage["candidates"] *= 5
        for candidate in stage["candidates"]:
            candidate["board"] = 0
    tree["messages"][0]["content"], tree["boards"] = "x" * 6000, ["b" * 1500]
    for name, lines in texts.items():
        (run / f"{name}.jsonl").unlink()
        for step in range(200):
            append_row(run / f"{name}.jsonl", {**json.loads(lines[0]), "step": step})
    for step in range(200):
        for env in (0, 1):
            append_row(run / "trees.jsonl", {**tree, "step": step + 2, "env": env})
    assert os.path.getsize(run / "trees.jsonl") > 4e6
    assert len(report.page(report.read_run(run)).encode()) < 8e6
    assert ask(run, "answer = performance.now()") < 1000
