"""The `explore` command: a page with sliders, served on this machine and answered by the compiled replay."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import click

from analysis.page.__main__ import DRAWN_BY
from analysis.page.answers import PageRequest, best, requests
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
from simulator.sweep import Sweeper

HOST = "127.0.0.1"
SLIDERS: dict[str, tuple[str, tuple[float, ...], int]] = {
    "batch": ("batch", tuple(2**i for i in range(10)), 4),
    "context": ("prompt tokens", (64, 128, 512, 2048, 8192, 32_768), 1),
    "acceptance": ("acceptance", tuple(round(0.05 * i, 2) for i in range(4, 20)), 12),
}
"""Label, values, and where it stands at first."""
KEPT = 512
"""Answers that are kept."""
SCRIPT = """
const at = () => [...document.querySelectorAll('input')].map(
  each => each.name + '=' + each.dataset.values.split(',')[each.value]).join('&');
let wanted = 0;
async function ask() {
  for (const each of document.querySelectorAll('input'))
    each.nextElementSibling.value = each.dataset.values.split(',')[each.value];
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
    known: dict[tuple[int, int, float], list[Row]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def rows(self, batch: int, context: int, acceptance: float) -> list[Row]:
        """The fastest setting of each policy; where none can run, why."""
        key = (batch, context, acceptance)
        with self.lock:
            if key not in self.known:
                if len(self.known) >= KEPT:
                    self.known.pop(next(iter(self.known)))
                asked = replace(self.asked, prompt_length=context)
                self.known[key] = self.sweeper.rows(requests(asked, [batch], acceptance))
        return self.known[key]

    def answer(self, query: str) -> dict[str, Any]:
        """What a page shows of a query such as `batch=16&context=128&acceptance=0.8`.

        Raises:
            ValueError: It is none, or of values that no slider has.
        """
        given = {name: float(value) for name, value in parse_qsl(query)}
        if any(given.get(name) not in values for name, (_, values, _) in SLIDERS.items()):
            raise ValueError(f"expected a value of each slider: {', '.join(SLIDERS)}")
        rows = self.rows(int(given["batch"]), int(given["context"]), given["acceptance"])
        found = sorted(best(rows), key=lambda row: -row["tokens_per_second"])
        if not found:
            return {"table": tabled(("cannot run",), [[rows[0]["refused"]]]), "figure": None}
        heads = ("setting", "tokens/s", "vs AR", "vs AR, per device", "tokens/round")
        cells = [
            (
                row["setting"],
                f"{row['tokens_per_second']:.4g}",
                f"{row['speedup_vs_ar']:.3f}x",
                "-" if row["speedup_vs_ar_per_device"] is None else f"{row['speedup_vs_ar_per_device']:.3f}x",
                f"{row['tokens_per_round']:.2f}",
            )
            for row in found
        ]
        return {"table": tabled(heads, cells), "figure": bars(found).to_plotly_json()}

    @property
    def page(self) -> str:
        """The page with its sliders."""
        from plotly.offline import get_plotlyjs

        sliders = "".join(
            f'<label>{label} <input type="range" name="{name}" min="0" max="{len(values) - 1}" '
            f'value="{first}" data-values="{",".join(f"{v:g}" for v in values)}"><output></output></label>'
            for name, (label, values, first) in SLIDERS.items()
        )
        head = f"<h1>spectwin: {self.asked.hw or 'the default pair'}</h1>{sliders}"
        body = '<div id="bars" class="plotly-graph-div"></div><div id="said"></div>'
        return whole(f"{head}{body}<script>{get_plotlyjs()}</script>").replace(
            "</body>", f"<script>{SCRIPT}</script></body>"
        )


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


@checked_command("explore", context_settings=HELP)
@with_options(click_options(PageRequest))
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8642, show_default=True, help="On this machine."
)
def main(*, port: int, **options: Any) -> None:
    """Serve a page with sliders over batch, context and acceptance, answered live; until interrupted.

    It is served on this machine alone.
    """
    with refusals(DRAWN_BY, BAD_INPUT):
        explorer = Explorer(typed(PageRequest, options))
        with server_of(explorer, port) as server:
            click.echo(f"http://{HOST}:{server.server_port}")
            server.serve_forever()


if __name__ == "__main__":
    main()
