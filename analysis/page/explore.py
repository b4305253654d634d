"""The `explore` command: a page with sliders, served on this machine and answered by the compiled replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import click

from analysis.page.__main__ import DRAWN_BY
from analysis.page.answers import HEADINGS, PageRequest, best, lookaheads, request_of, requests
from analysis.page.figures import bars
from analysis.page.html import tabled, whole
from hardware_profiles.files import to_json
from hardware_profiles.tables import Row
from policies.commandline import (
    BAD_INPUT,
    HELP,
    checked_command,
    click_options,
    refusals,
    typed,
    with_options,
)
from policies.registry import SettingError
from serving.metrics import metrics
from serving.scheduler import EngineOptions
from serving.traffic import arrival_times, generated
from simulator import flat_traffic
from simulator.request import DEFAULT_PROFILE, build_scenario
from simulator.sweep import Sweeper
from simulator.traffic import STEPPED
from simulator.traffic_report import COIN_TEXTS, COIN_TOKENS

HOST = "127.0.0.1"
MOVED = (
    *("batch", "batches", "prompt_length", "acceptance", "acceptances", "run_length"),
    "acceptance_by_context",
)
"""What sliders say here, and options of `report`."""
EXAMPLES = """
\b
Examples:
  explore
  explore --hw h200x1-llama-3.1-8b+eagle3-llama-3.1-8b --policy ar,sd --lookahead 1,2,3,5,7
"""
RATES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SLIDERS: dict[str, tuple[str, tuple[float, ...], int]] = {
    "batch": ("batch", tuple(2**i for i in range(10)), 4),
    "context": ("prompt tokens", (64, 128, 512, 2048, 8192, 32_768), 1),
    "acceptance": ("acceptance", tuple(round(0.05 * i, 2) for i in range(4, 20)), 12),
    "rate": ("requests/s (0: a full batch)", RATES, 0),
}
"""Label, values, and where it stands at first."""
KEPT = 512
"""Answers that are kept."""
REPLY = 300
"""Tokens of a reply under load."""
SERVED, FEW = 500, 48
"""Requests under load: with numba, and without."""
NOTE = (
    "<p>{count} requests of {tokens} tokens arrive at {rate:g}/s; sooner: by mean latency of a request. "
    "Policies with rounds of their own are served by <code>simulate --rate</code>.</p>"
)
SCRIPT = """
const at = () => [...document.querySelectorAll('input')].map(
  each => each.name + '=' + each.dataset.values.split(',')[each.value]).join('&');
let wanted = 0;
async function ask() {
  for (const each of document.querySelectorAll('input'))
    each.nextElementSibling.value = each.dataset.values.split(',')[each.value];
  const loaded = document.querySelector('input[name=rate]').value !== '0';
  document.querySelector('input[name=batch]').disabled = loaded;  // rows are as many as are under way
  const mine = ++wanted, answer = await (await fetch('/answer?' + at())).json();
  if (mine !== wanted) return;
  document.getElementById('said').innerHTML = answer.table;
  if (answer.figure) { await Plotly.react('bars', answer.figure.data, answer.figure.layout); paint(); }
}
for (const each of document.querySelectorAll('input')) each.addEventListener('input', ask);
addEventListener('load', ask);
"""


@dataclass
class Explorer:
    """Answers of one pair; one at a time, since they share what was laid out."""

    asked: PageRequest
    sweeper: Sweeper = field(default_factory=Sweeper)
    known: dict[tuple[float, ...], list[Row]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def rows(self, batch: int, context: int, acceptance: float, rate: float = 0.0) -> list[Row]:
        """The settings of each policy; where none can run, why.  At a rate above 0 batch says nothing."""
        key = (0 if rate else batch, context, acceptance, rate)
        with self.lock:
            if key not in self.known:
                if len(self.known) >= KEPT:
                    self.known.pop(next(iter(self.known)))
                asked = replace(self.asked, prompt_length=context)
                self.known[key] = (
                    self._loaded(context, acceptance, rate)
                    if rate
                    else self.sweeper.rows(requests(asked, [batch], acceptance))
                )
        return self.known[key]

    @cached_property
    def served(self) -> int:
        """Requests under load, as many as are answered within a second."""
        if find_spec("numba") is None:
            return FEW
        flat_traffic.expect(flat_traffic.WORTH)
        return SERVED

    def _loaded(self, context: int, acceptance: float, rate: float) -> list[Row]:
        """Requests that arrive at `rate`, served step by step with each setting that steps serve."""
        traffic = generated(self.served, context, REPLY, arrival_times(self.served, rate, seed=0))
        rows = list[Row]()
        for policy in ("ar", *(each for each in self.asked.policies if each in STEPPED and each != "ar")):
            for depth in lookaheads(self.asked, policy):
                request = request_of(replace(self.asked, prompt_length=None), policy, depth, 1, acceptance)
                request = replace(request, requests=COIN_TEXTS, max_tokens=COIN_TOKENS)
                settings = request.query.settings
                row: Row = {"setting": settings.label, "policy": policy, "batch": None, "refused": None}
                try:
                    scenario, _ = build_scenario(request, self.sweeper.kept)
                    served, _ = flat_traffic.serve_traffic(scenario, settings, traffic, EngineOptions())
                except SettingError as error:
                    rows.append({**row, "refused": str(error)})
                    continue
                found = metrics(served)
                sooner = (rows[0]["mean_e2el_ms"] if rows else found["mean_e2el_ms"]) / found["mean_e2el_ms"]
                rows.append({**row, **found, "speedup_vs_ar": sooner, "tokens_per_second": sooner})
        return rows

    def answer(self, query: str) -> dict[str, Any]:
        """What a page shows of a query such as `batch=16&context=128&acceptance=0.8&rate=0`.

        Raises:
            ValueError: It is none, or of values that no slider has.
        """
        given = {name: float(value) for name, value in parse_qsl(query)}
        if any(given.get(name) not in values for name, (_, values, _) in SLIDERS.items()):
            raise ValueError(f"expected a value of each slider: {', '.join(SLIDERS)}")
        rate = given["rate"]
        rows = self.rows(int(given["batch"]), int(given["context"]), given["acceptance"], rate)
        found = sorted(best(rows), key=lambda row: -row["tokens_per_second"])
        if not found:
            return {"table": tabled(("cannot run",), [[rows[0]["refused"]]]), "figure": None}
        if rate:
            note = NOTE.format(count=self.served, rate=rate, tokens=REPLY)
            table, says = tabled(*_under_load(found)) + note, "sooner than plain decoding"
        else:
            table, says = tabled(*_in_a_batch(found)), "speedup over plain decoding"
        return {"table": table, "figure": bars(found, says).to_plotly_json()}

    @property
    def page(self) -> str:
        """The page with its sliders."""
        from plotly.offline import get_plotlyjs

        sliders = "".join(
            f'<label>{label} <input type="range" name="{name}" min="0" max="{len(values) - 1}" '
            f'value="{first}" data-values="{",".join(f"{v:g}" for v in values)}"><output></output></label>'
            for name, (label, values, first) in SLIDERS.items()
        )
        pair = f"{self.asked.target} with {self.asked.draft} on " if self.asked.target else ""
        head = f"<h1>{escape(pair + (self.asked.hw or DEFAULT_PROFILE))}</h1>{sliders}"
        body = '<div id="bars" class="plotly-graph-div"></div><div id="said"></div>'
        return whole(f"{head}{body}<script>{get_plotlyjs()}</script>").replace(
            "</body>", f"<script>{SCRIPT}</script></body>"
        )


def _in_a_batch(rows: Sequence[Row]) -> tuple[Sequence[str], list[Sequence[str]]]:
    heads = ("setting", "tokens/s", "vs AR", "vs AR, per device", "tokens/round")
    return heads, [
        (
            row["setting"],
            f"{row['tokens_per_second']:.4g}",
            f"{row['speedup_vs_ar']:.3f}x",
            "-" if row["speedup_vs_ar_per_device"] is None else f"{row['speedup_vs_ar_per_device']:.3f}x",
            f"{row['tokens_per_round']:.2f}",
        )
        for row in rows
    ]


def _under_load(rows: Sequence[Row]) -> tuple[Sequence[str], list[Sequence[str]]]:
    heads = (
        "setting",
        "sooner than AR",
        "first token ms, p90",
        "each further ms, p90",
        "rows at once",
        "tokens/s",
    )
    return heads, [
        (
            row["setting"],
            f"{row['speedup_vs_ar']:.3f}x",
            f"{row['p90_ttft_ms']:.0f}",
            f"{row['p90_tpot_ms']:.1f}",
            f"{row['mean_running']:.1f}",
            f"{row['output_throughput']:.0f}",
        )
        for row in rows
    ]


def server_of(explorer: Explorer, port: int) -> ThreadingHTTPServer:
    """A server of an explorer on this machine alone; port 0 takes a free one."""
    page = explorer.page.encode()

    class Answer(BaseHTTPRequestHandler):
        """The page, and answers to it."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            kind, status, content = "text/html; charset=utf-8", HTTPStatus.OK, page
            if parts.path == "/answer":
                kind = "application/json"
                try:
                    content = to_json(explorer.answer(parts.query)).encode()
                except ValueError as error:
                    status, content = HTTPStatus.BAD_REQUEST, to_json({"error": str(error)}).encode()
            elif parts.path != "/":
                status, content = HTTPStatus.NOT_FOUND, b"not found"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing: every move of a slider is a request."""

    return ThreadingHTTPServer((HOST, port), Answer)


@checked_command("explore", epilog=EXAMPLES, context_settings=HELP, headings=lambda: HEADINGS)
@with_options(click_options(PageRequest, without=MOVED))
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8642, show_default=True, help="On this machine."
)
def main(*, port: int, **options: Any) -> None:
    """Serve a page with sliders over batch, context, acceptance and load, answered live; until interrupted.

    It is served on this machine alone.
    """
    with refusals(DRAWN_BY, BAD_INPUT):
        asked = typed(PageRequest, options)
        # Compiles what serves, if it has to be, before the first move of that slider.
        Thread(target=Explorer(asked).rows, args=(1, 128, 0.8, 4.0), daemon=True).start()
        with server_of(Explorer(asked), port) as server:
            click.echo(f"http://{HOST}:{server.server_port}")
            server.serve_forever()


if __name__ == "__main__":
    main()
