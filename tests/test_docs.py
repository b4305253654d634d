"""Links of the documentation: every file and heading that a page names is there; the site has every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "calibrate").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Headings, as links name them."""
    heads = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead(page: Path, text: str) -> list[str]:
    """Links of a text that lead nowhere."""
    found = []
    for link in LINK.findall(FENCED.sub("", text)):
        name, _, anchor = link.partition("#")
        if re.match(r"\w+:", name):
            continue
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page, page.read_text(encoding="utf-8")) == []


def test_dead_links_are_found() -> None:
    text = "[a](nothing.md) [b](tutorial.md#nowhere) [c](tutorial.md) [d](https://example.org)"
    assert dead(ROOT / "docs" / "README.md", text) == ["nothing.md", "tutorial.md#nowhere"]


def test_the_site_has_every_page() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    generated = {f"reference/{name}.md" for name in ("all-options", "studies", "statements", "python")}
    assert named == there | generated
