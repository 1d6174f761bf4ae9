"""The page of a run: every number comes from the files, hostile text stays text, odd files are named.

Tests marked slow open the page in headless Chromium (Debian package `chromium`) and ask it what it shows.
"""

import html
import json
import re
import shutil
import subprocess
from dataclasses import asdict

import pytest
from helpers import refuses
from test_show import a_run, read
from test_trees import record

import report
from options import parse
from records.run_folder import append_row
from tasks.plan_path import PlanPath

HOSTILE = (
    "5</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><!-- \u2028 &lt;"
)
OPTIONS = "--num-candidates 3 --max-turns 2 --envs-per-step 2 --steps 2 --lr 0.002 --device cpu"
CONFIG = asdict(parse(OPTIONS.split()))


@pytest.fixture
def run(tmp_path):
    return a_run(tmp_path / "demo", CONFIG)


def page_of(*folders):
    return report.page([report.read_run(folder) for folder in folders])


def block_of(page):
    """The data block, as a browser cuts it out."""
    return page.split('<script type="application/json" id="data">')[1].split("</script>")[0]


def test_curves_and_facts_are_the_numbers_of_the_files_with_steps_from_1(run):
    append_row(run / "metrics.jsonl", {"step": 2, "solved": 1.0, "cat/reward": 0.7, "p/entropy": float("nan")})
    data = json.loads(block_of(page_of(run)))
    charts = {chart["title"]: {line.pop("name"): line for line in chart["series"]} for chart in data["charts"]}
    assert charts["Success"]["held-out"] == {"x": [0, 2], "y": [0.0, 1.0], "error": [0.0, 0.0]}
    assert charts["Success"]["solved"] == {"x": [1, 2, 3], "y": [0.0, 0.0, 1.0]}
    assert charts["Reward"]["ann"]["y"][0] == pytest.approx(0.4)
    assert charts["Reward"]["cat"] == {"x": [3], "y": [0.7]}
    assert charts["Groups without a signal"]["groups"] == {"x": [1, 2], "y": [1.0, 0.0]}
    assert charts["Entropy"] == {"p": {"x": [1, 2, 3], "y": [0.5, 0.25, None]}}, "NaN is a gap"
    assert charts["Response length"]["bob"]["y"] == [2, 2]
    assert charts["Held-out format"] == {name: {"x": [0, 2], "y": [1.0, 1.0]} for name in ("ann", "bob")}
    assert charts["Turns"] == {"turns": {"x": [1, 2], "y": [2, 2]}}
    assert set(charts["Seconds a step"]) == {"step_s", "sample_s", "update_s"}
    facts = dict(data["facts"])
    assert facts["Training"] == "3 of 2 steps, 2 environments each"
    assert facts["Held-out success"] == "0.000 → 1.000 (n = 6, se 0.000)"


def test_several_runs_share_the_charts_and_the_options_that_differ_are_named(run, capsys):
    other = a_run(run.with_name("other"), {**CONFIG, "alpha": 0.5, "lr": 1e-3})
    capsys.readouterr()
    report.main([str(run), str(other)])
    output = run.with_name("comparison.html")
    assert capsys.readouterr().out.startswith(f"{output}: 2 of 2 steps, 2 of 2 steps, ")
    data = json.loads(block_of(output.read_text(encoding="utf-8")))
    assert data["facts"] == [
        *([str(folder), "plan_path (mas), 2 of 2 steps"] for folder in (run, other)),
        ["alpha", "1.0 | 0.5"],
        ["lr", "0.002 | 0.001"],
    ]
    names = [line["name"] for line in data["charts"][1]["series"]]
    assert names == [f"{name} {agent}" for name in (run, other) for agent in ("ann", "bob")]
    assert data["sets"] == {}


def with_text(run, text):
    """Step 3: everybody answers `text`."""
    for row in record([PlanPath(rows=2, cols=2, blocks=0).reset(seed=1)], lambda request, k: text):
        append_row(run / "trees.jsonl", {**row, "step": 2})


def test_what_a_model_wrote_cannot_leave_the_data_block(run):
    with_text(run, HOSTILE)
    page, template = page_of(run.rename(run.with_name("<b>&"))), report.TEMPLATE.read_text(encoding="utf-8")
    assert not set("<\u2028\u2029") & set(block_of(page))
    assert page.count("</script") == template.count("</script")
    stage = json.loads(block_of(page))["sets"]["training"][-1]["episodes"][0]["stages"][0]
    assert stage["candidates"][0]["text"] == HOSTILE
    assert "<title>&lt;b&gt;&amp; · AT-GRPO</title>" in page


def test_the_page_never_parses_text_as_html_and_loads_nothing():
    template = report.TEMPLATE.read_text(encoding="utf-8")
    calls = "innerHTML outerHTML insertAdjacentHTML document.write eval( fetch( @import url("
    assert [call for call in calls.split() if call in template] == []
    assert re.findall(r"https?://[^\"]*", template) == ["http://www.w3.org/2000/svg"]
    assert "default-src 'none'" in template


def test_a_link_of_the_name_is_replaced_and_what_it_leads_to_stays(run):
    (run / "precious.txt").write_text("mine")
    (run / "report.html").symlink_to(run / "precious.txt")
    report.main([str(run)])
    assert (run / "precious.txt").read_text() == "mine"
    assert not (run / "report.html").is_symlink()


def spoil(folder, name, path, value):
    """Another value at one place of the first row of a file."""
    lines = [json.dumps(row) for row in read(folder, name)] if name.endswith("l") else [(folder / name).read_text()]
    row = inner = json.loads(lines[0])
    *parents, last = path.split()
    for key in parents:
        inner = inner[int(key) if key.isdigit() else key]
    inner[last] = value
    (folder / name).write_text("\n".join([json.dumps(row), *lines[1:], ""]), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("config.json", "model", 7, "config.json: model: int is not"),
        ("config.json", "sampling", "best", "config.json: sampling: str is not any of"),
        ("config.json", "sha256", "1f", "config.json: another version wrote it; commit 2d69621"),
        ("metrics.jsonl", "step", None, "metrics.jsonl, row 1"),
        ("metrics.jsonl", "solved", "all", "metrics.jsonl, row 1"),
        ("timing.jsonl", "step_s", {}, "timing.jsonl, row 1"),
        ("evaluations.jsonl", "success", float("nan"), "evaluations.jsonl, row 1"),
        ("evaluations.jsonl", "formats", 3, "evaluations.jsonl, row 1"),
        ("run.json", "sessions", {"a": 1}, "run.json, row 1"),
        ("trees.jsonl", "episodes 0 stages 0 prompt", ["x"], "trees.jsonl, row 1"),
        ("trees.jsonl", "episodes 0 stages 0 candidates 0 reward", float("inf"), "trees.jsonl, row 1"),
        ("boards.jsonl", "episodes", [[]], "boards.jsonl, row 1"),
        ("config.json", "", None, "holds no run (no config.json)"),  # here and below: the whole file
        ("metrics.jsonl", "", None, "metrics.jsonl has no finished step yet"),
        ("metrics.jsonl", "", b"\xff\n", "metrics.jsonl, line 1"),
        ("trees.jsonl", "", b'{"step": 0}\n{"step"\n', "trees.jsonl, line 2"),
        ("trees.jsonl", "", b'{"step": 0}\n', "trees.jsonl, row 1"),
    ],
)
def test_odd_files_are_named_in_one_line(run, name, path, value, message):
    if path:
        spoil(run, name, path, value)
    else:
        (run / name).unlink()
        if value:
            (run / name).write_bytes(value)
    assert message in refuses(report.main, run)
    assert not (run / "report.html").exists()


def test_a_run_at_its_first_step_has_a_page(run):
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 2, "solv')  # a line that is still being written
    for name in ("trees.jsonl", "boards.jsonl", "evaluations.jsonl", "timing.jsonl", "run.json"):
        (run / name).unlink()
    report.main([str(run), "--output", str(run / "page.html")])
    data = json.loads(block_of((run / "page.html").read_text(encoding="utf-8")))
    assert data["sets"] == {}
    assert "Held-out success" not in dict(data["facts"])


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = """
const press = (keys) => document.dispatchEvent(new KeyboardEvent("keydown",
  { key: keys.replace("Shift+", ""), shiftKey: keys.startsWith("Shift+"), bubbles: true }));
const text = (selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent);
const shown = () => text("select option:checked, #spine [aria-current]").join(" ");
let answer;
"""


@pytest.fixture
def ask(tmp_path):
    """Open a page, let it draw itself, run a script in it and return what that assigns to `answer`."""
    if not CHROMIUM:
        pytest.skip("needs Chromium (apt-get install chromium)")

    def ask(page, script):
        done = "const out = document.createElement('pre'); out.id = 'answer'; out.textContent = JSON.stringify(answer);"
        probe = f"<script>(() => {{ {KEYS} {script}; {done} document.body.append(out); }})()</script></body>"
        file = tmp_path / "probed.html"
        file.write_text(page.replace("</body>", probe), encoding="utf-8")
        command = f"{CHROMIUM} --headless --no-sandbox --disable-gpu --window-size=1280,900 --dump-dom".split()
        command += [f"--user-data-dir={tmp_path / 'browser'}", file.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return json.loads(html.unescape(dom.split('<pre id="answer">')[1].split("</pre>")[0]))

    return ask


@pytest.mark.slow
def test_keys_walk_through_the_tree_and_stay_inside(run, ask):
    keys = ["ArrowLeft", "ArrowRight", "ArrowRight", "Shift+ArrowDown", "Shift+ArrowRight", "Shift+ArrowRight"]
    answer = ask(page_of(run), f"answer = {keys}.map((key) => {{ press(key); return shown(); }})")
    stages = ["1 1 annturn 1", "1 1 bobturn 1", "1 1 annturn 2", "1 2 annturn 1", "2 2 annturn 1", "2 2 annturn 1"]
    assert answer == [f"training {stage}" for stage in stages], "and there is no third step"


@pytest.mark.slow
def test_a_stage_shows_prompt_boards_candidates_and_what_comes_next(run, ask):
    answer = ask(page_of(run), """
        press("Shift+ArrowRight"); press("ArrowRight");
        const boards = () => text("#stage .row pre");
        answer = [text("#stage .message pre"), text("tbody pre"), text(".committed pre"), text(".new"),
          text("td:nth-child(6)"), text("caption")[0], boards()];
        document.getElementById("candidate-1").click(); answer.push(boards());
        const sets = document.getElementById("choose-set"); sets.value = 1; sets.dispatchEvent(new Event("change"));
        answer.push(shown() + text("#spine > span"));
    """)  # fmt: skip
    prompts, candidates, committed, new, advantages, caption, *boards, held_out = answer
    best = max(candidates)
    assert committed == [best]
    assert prompts[0].startswith("toy bob sees ann:")
    ann = prompts[0].split()[-1]
    assert new == [f"{ann}|bob:{best}", prompts[0]]  # on the board after it, and what bob is asked after ann
    assert "Mean reward" in caption
    assert float(advantages[candidates.index(best)]) > 0
    assert boards == [[ann, f"{ann}|bob:{text}"] for text in (best, candidates[1])]
    assert held_out == "held-out after 0 1 annturn 1out of turns"


@pytest.mark.slow
def test_hostile_text_is_shown_and_does_nothing(run, ask):
    with_text(run, HOSTILE)
    script = "press('Shift+ArrowRight'); press('Shift+ArrowRight'); press('ArrowRight')"
    answer = ask(page_of(run), f"{script}; answer = [document.title, text('img, b'), text('tbody pre')[0]]")
    assert answer == ["demo · AT-GRPO", [], HOSTILE]
