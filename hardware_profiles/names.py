"""Names of profiles, traces and datastores: files and folders are called by them."""

from __future__ import annotations

import re

LONGEST_NAME = 100
"""Characters of a name: what is put together of several still is a file's name."""
_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")


def check_name(name: str) -> str:
    """A name as it is, if it can be no path: letters, digits, dot, dash, underscore and plus, no leading dot.

    The plus stands in shipped names of two machines (`h100x4+1`).

    Raises:
        ValueError: It is none.
    """
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        shown = name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "..."
        raise ValueError(
            f"{shown!r} is no name: at most {LONGEST_NAME} letters, digits, dots, dashes, underscores and "
            "pluses, the first no dot"
        )
    return name
