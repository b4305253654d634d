"""Finding profiles and traces by name, and telling whether the two are of the same pair of models.

The user's own come first, then those of the package.  A file of the user's own that hides a shipped one is
warned about, once; `shipped:NAME` reaches what it hides.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from hardware_profiles.files import check_name
from hardware_profiles.profile import Profile, ProfileError
from hardware_profiles.trace import TraceError, TraceMeta

_DATA = Path(__file__).parent / "data"
_LOG = logging.getLogger(__name__)
SHIPPED = "shipped:"
"""Before a name: only what comes with the package."""
_LONGEST_PATH, _LONGEST_FILE = 4000, 240  # what file systems take


@dataclass(frozen=True)
class _Kind:
    """One kind of file: its name in messages, its folder, its suffix and the error if it is not found."""

    noun: str
    folder: str
    suffix: str
    error: type[ValueError]


_PROFILE = _Kind("profile", "profiles", ".json", ProfileError)
_TRACE = _Kind("trace", "traces", ".parquet", TraceError)
_DECISIONS = _Kind("decision trace", "decisions", ".parquet", TraceError)


def user_directory() -> Path:
    """Folder of the user's own profiles and traces, in its subfolders `profiles`, `traces`, `decisions`.

    `$XDG_DATA_HOME/spectwin`, or `~/.local/share/spectwin` where that is not set to an absolute path.
    It need not exist.
    """
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "spectwin"


def user_profile(name: str) -> Path:
    """Path at which the user's own profile of that name is looked for, and is to be written."""
    return _own_path(_PROFILE, name)


def user_trace(name: str) -> Path:
    """Path at which the user's own trace of that name is looked for, and is to be written."""
    return _own_path(_TRACE, name)


def user_decisions(name: str) -> Path:
    """Path at which the user's own decision trace of that name is looked for, and is to be written."""
    return _own_path(_DECISIONS, name)


def find_decisions(name_or_path: str | os.PathLike[str]) -> Path:
    """Path of a decision trace; like `find_profile`, with `.parquet`.

    Raises:
        TraceError: There is none; the message lists the names there are.
    """
    return _find(_DECISIONS, os.fspath(name_or_path))


def decisions_name(profile: str, policy: str, temperature: float = 0.0, top_p: float = 1.0) -> str:
    """Name of the decision trace of a policy that belongs to a profile, e.g. `cpu2-x5-t1-rasd`."""
    return f"{trace_name(profile, temperature, top_p)}-{policy}"


def trace_name(profile: str, temperature: float = 0.0, top_p: float = 1.0) -> str:
    """Name of the trace that belongs to a profile: its own at temperature 0, else e.g. `cpu2-x5-t1`.

    Args:
        profile: Name of the profile.
        temperature: Of the target.
        top_p: Mass of the target's law that is kept; `-p0.9` is added below 1.
    """
    name = profile if temperature == 0.0 else f"{profile}-t{temperature:g}"
    return name if top_p == 1.0 else f"{name}-p{top_p:g}"


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    return _names(_PROFILE, _DATA)


def shipped_traces() -> list[str]:
    """Names of the traces that come with the package, sorted."""
    return _names(_TRACE, _DATA)


def find_profile(name_or_path: str | os.PathLike[str]) -> Path:
    """Path of a profile.

    Args:
        name_or_path: A name (`textbook`), looked for among the user's own profiles and then among the
            shipped ones; `shipped:textbook` among those alone; or the path of a file, which has a separator
            or ends in `.json`.

    Raises:
        ProfileError: There is none; the message lists the names there are.
    """
    return _find(_PROFILE, os.fspath(name_or_path))


def find_trace(name_or_path: str | os.PathLike[str]) -> Path:
    """Path of a trace; like `find_profile`, with `.parquet`.

    Raises:
        TraceError: There is none; the message lists the names there are.
    """
    return _find(_TRACE, os.fspath(name_or_path))


def name_beside(hw: str | None, name: str) -> str:
    """Name under which what belongs to a profile is looked for: among the shipped ones if the profile was.

    Args:
        hw: How the profile was asked for.
        name: That the profile bears.
    """
    return SHIPPED + name if hw is not None and hw.startswith(SHIPPED) else name


def origin(path: Path) -> str:
    """Which file answered, for people: `shipped:NAME`, or its path."""
    return SHIPPED + path.stem if path.is_relative_to(_DATA) else str(path)


def _own_path(kind: _Kind, name: str) -> Path:
    """`_user_path` of a name that may come from a file or a command line: no way out of the folder."""
    try:
        return _user_path(kind, check_name(name))
    except ValueError as error:
        raise kind.error(str(error)) from error


def _user_path(kind: _Kind, name: str) -> Path:
    return user_directory() / kind.folder / f"{name}{kind.suffix}"


def _names(kind: _Kind, root: Path) -> list[str]:
    return sorted(path.stem for path in (root / kind.folder).glob(f"*{kind.suffix}"))


def _find(kind: _Kind, wanted: str) -> Path:
    if len(wanted) > _LONGEST_PATH or len(Path(wanted).name) > _LONGEST_FILE or "\0" in wanted:
        raise kind.error(f"{wanted[:60]!r}...: no such {kind.noun}: too long for the name of a file")
    if Path(wanted).name != wanted or wanted.endswith(kind.suffix):
        if not Path(wanted).is_file():
            raise kind.error(f"{wanted}: no such {kind.noun} file")
        return Path(wanted)
    own, shipped = _user_path(kind, wanted), _shipped_path(kind, wanted)
    if not wanted.startswith(SHIPPED) and own.is_file():
        if shipped.is_file():
            _warn_of_shadow(kind.noun, own, shipped)
        return own
    if shipped.is_file():
        return shipped
    raise kind.error(_explain_unknown(kind, wanted))


def _shipped_path(kind: _Kind, name: str) -> Path:
    return _DATA / kind.folder / f"{name.removeprefix(SHIPPED)}{kind.suffix}"


@cache
def _warn_of_shadow(noun: str, own: Path, shipped: Path) -> None:
    """Say once that a shipped file is hidden: by the logger, which without handlers prints on stderr."""
    _LOG.warning("warning: %s %s hides the shipped one of that name: %s", noun, own, origin(shipped))


def _explain_unknown(kind: _Kind, wanted: str) -> str:
    shipped, own = _names(kind, _DATA), _names(kind, user_directory())
    close = difflib.get_close_matches(wanted, [*own, *shipped], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    mine = f"; yours: {', '.join(own)}" if own else ""
    return f"no {kind.noun} {wanted!r}{hint} (shipped: {', '.join(shipped) or 'none'}{mine})"


ANY = "any"
"""The model of a profile that stands for none in particular."""
_DIGEST = re.compile(r"-[0-9a-f]{16}$")


def model_name(name: str) -> str:
    """A model's name without where it lies: `pair:x5`, `x5-5bbfbf7d161d94ac` and `models/x5/` are `x5`."""
    path = PurePath(name.removeprefix("pair:"))
    last = path.parent.name if path.suffix in {".gguf", ".xml"} else path.name
    return _DIGEST.sub("", last).lower()


def other_pair(profile: Profile, meta: TraceMeta) -> str | None:
    """That a recording is of other models than a profile, in words; None where it is not.

    Args:
        profile: Says what each role's model is; `any` is no other model than any.
        meta: Of a trace or of a decision trace.
    """
    mine = (profile.roles.target.model, profile.roles.draft.model)
    theirs = (meta.target_model, meta.draft_model)
    if all(a == ANY or model_name(a) == model_name(b) for a, b in zip(mine, theirs, strict=True)):
        return None
    return (
        f"profile {profile.name!r} is of {mine[0]} with {mine[1]}, the recording of {theirs[0]} with "
        f"{theirs[1]}: times of one pair, acceptance of another"
    )
