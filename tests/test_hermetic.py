"""The suite finds shipped files, whatever the user keeps under the same names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.shipped import cache_folder
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, user_directory, user_profile

ROOT = Path(__file__).parents[1]
WHERE = "from hardware_profiles.store import user_directory; print(user_directory())"


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_users_folder_is_empty_at_the_start(name: str) -> None:
    """Also in the second test, after the first wrote to it; a subprocess has the same folder."""
    assert not user_directory().exists()
    assert find_profile("cpu2-x5").is_relative_to(ROOT)
    user_profile(name).parent.mkdir(parents=True)
    user_profile(name).touch()
    seen = subprocess.run([sys.executable, "-c", WHERE], capture_output=True, text=True, cwd=ROOT, check=True)
    assert seen.stdout.strip() == str(user_directory())


def test_home_and_cache_are_the_sessions_own() -> None:
    assert cache_folder("pairs").is_relative_to(Path.home())
    assert "spectwin-tests-" in str(Path.home())


def test_a_decoy_among_the_users_profiles_is_not_found(tmp_path: Path) -> None:
    """As `.ci/run` runs the whole suite: a profile of a shipped name, with absurd numbers."""
    data = tmp_path / "data"
    made = subprocess.run([sys.executable, ".ci/decoy.py", data], cwd=ROOT, check=False)
    assert made.returncode == 0
    decoy = load_profile(data / "spectwin" / "profiles" / "cpu2-x5.json")
    assert decoy.name == "cpu2-x5" and decoy.operations["target.forward"].seconds == 1e9  # type: ignore[union-attr]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "at_the_start"]
    seeing = {**os.environ, "XDG_DATA_HOME": str(data)}
    ran = subprocess.run(command, cwd=ROOT, env=seeing, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
