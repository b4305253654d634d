"""Finding files by name: the user's own first, then those of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardware_profiles.profile import ProfileError, load_profile, save_profile
from hardware_profiles.store import (
    find_decisions,
    find_profile,
    find_trace,
    origin,
    shipped_profiles,
    shipped_traces,
    trace_name,
    user_decisions,
    user_directory,
    user_profile,
    user_trace,
)
from hardware_profiles.trace import TraceError, read_trace


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_are_valid_and_have_their_file_name(name: str) -> None:
    # A wider measurement of the same pair and place keeps its name, and so its traces and decisions.
    assert load_profile(find_profile(name)).name in {name, name.removesuffix("-wide")}


@pytest.mark.parametrize("name", shipped_traces())
def test_shipped_traces_are_valid(name: str) -> None:
    assert len(read_trace(find_trace(name))) > 0


def test_the_users_own_profile_comes_first() -> None:
    shipped = find_profile("textbook")
    save_profile(load_profile(shipped), user_profile("textbook"))
    assert find_profile("textbook") == user_profile("textbook") != shipped


def test_a_hidden_shipped_file_is_warned_about_once_and_reached_by_its_prefix(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for find, own, suffix in (
        (find_profile, user_profile, "json"),
        (find_trace, user_trace, "parquet"),
        (find_decisions, user_decisions, "parquet"),
    ):
        name = "cpu2-x5" if find is not find_decisions else "cpu2-x5-rasd"
        shipped = find(name)
        mine = own(name)
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_bytes(b"")
        assert caplog.messages == []
        assert find(name) == find(name) == mine and origin(mine) == str(mine)
        assert len(caplog.messages) == 1 and f"{mine} hides the shipped" in caplog.text
        assert caplog.messages[0].endswith(f"shipped:{name}") and shipped.suffix == f".{suffix}"
        caplog.clear()
        assert find(f"shipped:{name}") == shipped and origin(shipped) == f"shipped:{name}"
        assert caplog.messages == []
    save_profile(load_profile(find_profile("textbook")), user_profile("mine"))
    with pytest.raises(ProfileError, match="no profile 'shipped:mine'"):
        find_profile("shipped:mine")


def test_the_users_folder_follows_the_standard(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_directory() == home / ".local" / "share" / "spectwin"
    assert user_trace("t") == user_directory() / "traces" / "t.parquet"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert user_directory() == Path("/data/spectwin")
    # The standard says that a relative path is to be ignored.
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert user_directory() == home / ".local" / "share" / "spectwin"


def test_a_path_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    assert find_profile(path) == find_profile(str(path)) == path
    with pytest.raises(ProfileError, match=r"textbook\.json: no such profile file"):
        find_profile("textbook.json")
    with pytest.raises(TraceError, match="no such trace file"):
        find_trace(tmp_path / "t")


def test_an_unknown_name_lists_those_there_are() -> None:
    save_profile(load_profile(find_profile("textbook")), user_profile("mine"))
    with pytest.raises(
        ProfileError, match=r"no profile 'textbok'; did you mean 'textbook'\? \(shipped: .*; yours: mine"
    ):
        find_profile("textbok")
    with pytest.raises(TraceError, match=r"no trace 'zzz' \(shipped: "):
        find_trace("zzz")


def test_a_trace_is_named_after_its_profile_and_its_sampling() -> None:
    assert trace_name("cpu2-x5") == "cpu2-x5"
    assert trace_name("cpu2-x5", 1.0) == "cpu2-x5-t1"
    assert trace_name("cpu2-x5", 0.7, 0.9) == "cpu2-x5-t0.7-p0.9"
