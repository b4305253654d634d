"""Profiles name the shipped pair's models by their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.pair import embed
from calibrate.shipped import DATA, profiled_model


def test_a_profiles_models_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "ensure_embedded", lambda name: Path("/cache") / f"{name}-0123")
    assert profiled_model("draft") == DATA / "draft"
    assert profiled_model("x5-0123") == Path("/cache/x5-0123")
    assert profiled_model("some/model-8b") == "some/model-8b"
    with pytest.raises(ValueError, match="calibrate anew"):
        profiled_model("x5-4567")
