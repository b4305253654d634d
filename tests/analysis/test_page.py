"""Pages to look at: one file without a network, every number with its source; sliders that are answered."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from simulate_command import answer

from analysis.page.__main__ import main
from analysis.page.answers import Page, PageRequest, answers, best, count, first_rounds
from analysis.page.explore import HOST, Explorer, server_of
from analysis.page.explore import main as explore
from analysis.page.figures import causes, winners
from analysis.page.html import page
from simulator.law import Stage

pytest.importorskip("plotly")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SMALL = PageRequest(
    policies=("ar", "sd"), batches=(1, 256), acceptances=(0.2, 0.9), lookaheads=(2,), batch=1, acceptance=0.8
)


@pytest.fixture(scope="module")
def found() -> Page:
    return answers(SMALL)


def test_a_page_has_what_was_asked(found: Page) -> None:
    # ar once and sd at one lookahead: two settings at 2 batches, and at 2 batches and 2 acceptances
    assert count(SMALL) == 2 * (2 + 4) == len(found.rows) + len(found.cells)
    assert [row["policy"] for row in best(found.rows)] == ["ar", "sd"] * 2
    assert found.detail.run.settings.policy == "sd"


def test_the_map_names_the_fastest(found: Page) -> None:
    picture = winners(found.cells).data[0]
    # Two thirds of the drafts rejected at batch 256: plain decoding; nine of ten accepted at batch 1: not.
    assert picture.y == ("0.2", "0.9") and picture.z[0][1] == 0 and picture.z[1][0] == 1


def test_rounds_begin_together_and_drafting_follows_verification(found: Page) -> None:
    spans = first_rounds(SMALL, found.rows[1])
    assert min(span.start_s for span in spans) == 0.0 and {span.device for span in spans} == {
        "target",
        "draft",
    }
    work = sorted(spans, key=lambda span: span.start_s)
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(work))


def test_a_waterfall_ends_where_its_stages_do() -> None:
    bars = causes([Stage("law", 3.0), Stage("a", 2.5), Stage("b", 2.75)], "x").data[0]
    assert sum(bars.y) == pytest.approx(2.75) and bars.measure[-1] == "total" and bars.text[-1] == "2.75x"


def test_the_page_is_one_file_without_a_network(tmp_path: Path) -> None:
    few = "--policies ar,sd --batches 1 --acceptances 0.8 --lookaheads 2 --batch 1"
    done = CliRunner().invoke(main, [*few.split(" "), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "r.html").read_text()
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(src|href)=.(https?:)?//", outside) and text.count("Plotly.newPlot") >= 4
    for source in ("aiconfigurator-core", "88 % of hits", "ratio of sums", "prefers-color-scheme"):
        assert source in text, source


def test_sliders_are_answered() -> None:
    explorer = Explorer(SMALL)
    with server_of(explorer, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://{HOST}:{server.server_port}"
        assert b'type="range"' in urlopen(base).read()
        said = json.loads(urlopen(f"{base}/answer?batch=1&context=128&acceptance=0.8&rate=0").read())
        for path in ("/answer?batch=3", "/answer", "/etc/passwd"):
            with pytest.raises(HTTPError):
                urlopen(base + path)
        server.shutdown()
    assert "sd K=2" in said["table"] and len(said["figure"]["data"][0]["x"]) == 2
    row = max(explorer.rows(1, 128, 0.8), key=lambda row: row["tokens_per_second"])
    assert f"{row['speedup_vs_ar']:.3f}x" in said["table"]


def test_the_load_is_what_simulate_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.page.explore.find_spec", lambda name: None)
    explorer = Explorer(SMALL)
    ar, sd = explorer.rows(1, 128, 0.8, 4.0)
    line = (
        "--policy sd --lookahead 2 --hw h100x4-llama-3.1-70b+llama-3.2-1b --acceptance 0.8 --rate 4 "
        "--prompt 128 --output 300 --requests 48"
    )
    said = answer(*shlex.split(line))
    assert sd["mean_e2el_ms"] == said["mean_e2el_ms"] and ar["mean_e2el_ms"] == said["ar"]["mean_e2el_ms"]
    assert sd["speedup_vs_ar"] == ar["mean_e2el_ms"] / sd["mean_e2el_ms"] > 1.0
    shown = explorer.answer("batch=64&context=128&acceptance=0.8&rate=4")
    assert f"{sd['p90_tpot_ms']:.1f}" in shown["table"] and "48 requests" in shown["table"]


def test_help_is_grouped() -> None:
    for command in (main, explore):
        assert "What is compared:\n" in CliRunner().invoke(command, ["--help"]).output


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="needs a browser, and pip install 'spectwin[browser]'")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_and_is_clicked(scheme: str, found: Page, tmp_path: Path) -> None:
    """Clicked: an entry of the legend, whose line goes; the batch's slider, after which the table is another;
    the load's, after which it is of requests that arrive, and the batch can no longer be moved.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    (tmp_path / "r.html").write_text(page(found, "today"))
    with sync_api.sync_playwright() as driver, server_of(Explorer(SMALL), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = browser.new_context(color_scheme=scheme).new_page()
        errors, asked = list[str](), list[str]()
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"file://{tmp_path / 'r.html'}")
        assert tab.locator(".plotly-graph-div .main-svg").count() >= 4 and len(asked) == 1
        ink = tab.evaluate("document.querySelector('.plotly-graph-div').layout.font.color")
        assert (ink == "rgb(230, 237, 243)") == (scheme == "dark")
        tab.locator(".legendtoggle").first.click()
        tab.wait_for_function("document.querySelector('.plotly-graph-div').data[0].visible === 'legendonly'")
        tab.goto(f"http://{HOST}:{server.server_port}")
        first = tab.wait_for_selector("#said table").inner_text()
        tab.locator("input[name=batch]").press("ArrowRight")
        tab.wait_for_function("text => document.querySelector('#said').innerText !== text", arg=first)
        tab.locator("input[name=rate]").press("End")
        tab.wait_for_function("document.querySelector('#said').innerText.includes('arrive at 32/s')")
        assert tab.locator("input[name=batch]").is_disabled()
        browser.close()
        server.shutdown()
    assert errors == []
