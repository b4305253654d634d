"""Eager against compiled forwards: what a row of the table says."""

from __future__ import annotations

import pytest

from analysis.studies.forwards import summarise


def test_ratios_are_of_one_repetition() -> None:
    # Medians 2 and 4 against 1 and 4: ratios 2 and 1.
    row = summarise("x", {"eager": [[1.0, 2.0, 9.0], [4.0]], "compiled": [[1.0], [4.0]]})
    assert (row["eager_s"], row["compiled_s"]) == (3.0, 2.5)
    assert row["eager_over_compiled"] == pytest.approx([1.0, 1.5, 2.0])


def test_both_modes_need_the_same_repetitions() -> None:
    with pytest.raises(ValueError, match="zip"):
        summarise("x", {"eager": [[1.0]], "compiled": [[1.0], [2.0]]})
