"""A page as one file: pictures with their script, tables, and where every number comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from analysis.page.answers import Page, best
from analysis.page.figures import causes, speedups, timelines, winners
from simulator.report import METHOD

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.said td { text-align: left; vertical-align: top; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
label { display: inline-block; margin-right: 2rem; } output { font-weight: 600; }
"""
SCRIPT = """
const scheme = matchMedia('(prefers-color-scheme: dark)');
function paint() {
  const ink = getComputedStyle(document.body).color;
  const line = getComputedStyle(document.documentElement).getPropertyValue('--line');
  for (const each of document.querySelectorAll('.plotly-graph-div')) {
    if (!each.layout) continue;  // not drawn yet
    const change = {'font.color': ink};
    for (const axis of ['xaxis', 'yaxis']) {
      change[axis + '.gridcolor'] = line; change[axis + '.zerolinecolor'] = line;
    }
    Plotly.relayout(each, change);
  }
}
scheme.addEventListener('change', paint); addEventListener('load', paint);
"""


def page(found: Page, when: str) -> str:
    """The whole page; `when` it was made."""
    detail = found.detail
    setting = detail.run.settings.label
    pictures = [speedups(found.rows), winners(found.cells)]
    if len(detail.waterfall) > 1:
        pictures.append(causes(detail.waterfall, f"{setting}, batch {found.asked.batch}"))
    pictures.append(timelines({name: spans for name, spans in found.rounds.items() if spans}))
    parts = [f"<section>{drawn(figure, first=not i)}</section>" for i, figure in enumerate(pictures)]
    profile = detail.scenario.profile
    head = f"<h1>{escape('spectwin' if profile is None else profile.name)}</h1>"
    if profile is not None:
        head += f"<p>{escape(profile.description)}</p>"
    said = [(kind, text) for kind, text in detail.sources.items()]
    said += [("how speed is counted", METHOD), ("made", when)]
    provenance = f"<h2>Where the numbers come from</h2>{listed(said)}"
    return whole(head + "".join(parts) + table(found) + provenance)


def whole(body: str) -> str:
    """A document of a body."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>spectwin</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body>{body}<script>{SCRIPT}</script></body></html>\n"
    )


def drawn(figure: Any, *, first: bool) -> str:
    """A picture; the first one brings plotly's script, so that no network is needed."""
    text: str = figure.to_html(
        full_html=False, include_plotlyjs=first, config={"displaylogo": False, "responsive": True}
    )
    return text


def table(found: Page) -> str:
    """The fastest setting of each policy and batch."""
    heads = ("setting", "batch", "tokens/s", "vs AR", "vs AR, per device", "tokens/round", "hit rate")
    rows = [
        (
            row["setting"],
            row["batch"],
            f"{row['tokens_per_second']:.4g}",
            f"{row['speedup_vs_ar']:.3f}x",
            "-" if row["speedup_vs_ar_per_device"] is None else f"{row['speedup_vs_ar_per_device']:.3f}x",
            f"{row['tokens_per_round']:.2f}",
            "-" if row["cache_hit_rate"] is None else f"{row['cache_hit_rate']:.1%}",
        )
        for row in sorted(best(found.rows), key=lambda row: row["batch"])
    ]
    return f"<h2>Numbers</h2>{tabled(heads, rows)}"


def tabled(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    head = "".join(f"<th>{escape(title)}</th>" for title in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def listed(pairs: Iterable[tuple[str, str]]) -> str:
    """What is said, by what it is of."""
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in pairs)
    return f'<table class="said">{rows}</table>'
