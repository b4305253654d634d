"""Models are loaded without other libraries' bars and remarks: standard error is ours."""

from __future__ import annotations

import pytest
from transformers.utils import logging

from calibrate.live.loading import load_model
from calibrate.pair.embed import DATA


def test_loading_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    logging.enable_progress_bar()  # an earlier test may have loaded something already
    load_model(DATA / "draft")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
