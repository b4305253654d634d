"""The table of backends: what names there are, and that files give them back."""

from __future__ import annotations

from importlib import import_module

import pytest

from calibrate.live.errors import PlacementError
from calibrate.live.placement import (
    BACKENDS,
    TORCH,
    BackendKind,
    backend_label,
    check_backend,
    labelled_backend,
    own_precision,
)

EXAMPLES = [name for kind in BACKENDS.values() for name in kind.examples]


@pytest.mark.parametrize("backend", EXAMPLES)
def test_a_profile_names_the_backend_that_it_was_measured_with(backend: str) -> None:
    check_backend(backend)
    assert labelled_backend(backend_label(backend), own_precision(backend)) == backend


@pytest.mark.parametrize(
    "name", ["", "tensorrt", "torch:", "torch:CPU", "openvino", "openvino:cpu", "llamacpp:q2"]
)
def test_other_names_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(PlacementError, match=r"unknown backend .*; backends: torch, .*openvino:CPU"):
        check_backend(name)


def test_a_line_makes_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variant may be anything that its expression takes; labels write it in lower case."""
    monkeypatch.setitem(BACKENDS, "slowed", BackendKind(("slowed:20",), r"\d+", runs_torch=True))  # type: ignore[arg-type]
    check_backend("slowed:7")
    assert backend_label("slowed:7") == "slowed-7" and labelled_backend("slowed-7") == "slowed:7"
    with pytest.raises(PlacementError, match="slowed:20"):
        check_backend("slowed")


@pytest.mark.parametrize("label", [None, "torch-eager", "torch-compile", "of another program"])
def test_all_other_labels_are_torchs(label: str | None) -> None:
    assert labelled_backend(label) == TORCH


@pytest.mark.parametrize("kind", BACKENDS)
def test_each_has_a_module_that_opens_it(kind: str) -> None:
    """Whose package need not be installed for that."""
    assert callable(import_module(f"calibrate.live.backends.{kind}").open_runner)
