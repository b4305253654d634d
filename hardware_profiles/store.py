"""Finding profiles and traces by name, and telling whether the two are of the same pair of models.

The user's own come first, then those of the package.  A file of the user's own that hides a shipped one is
warned about, once; `shipped:NAME` reaches what it hides.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from hardware_profiles.files import check_name
from hardware_profiles.profile import Profile, ProfileError
from hardware_profiles.trace import TraceError, TraceMeta

_DATA = Path(__file__).parent / "data"
SHIPPED = "shipped:"
"""Before a name: only what comes with the package."""
_LONGEST_PATH, _LONGEST_FILE = 4000, 240  # what file systems take


@dataclass(frozen=True)
class Shelf:
    """Where files of one kind lie.

    Attributes:
        noun: What one is called in messages.
        folder: Its folder, in that of the user and in that of the package.
        suffix: Of its files.
        error: Raised where one is not found.
    """

    noun: str
    folder: str
    suffix: str
    error: type[ValueError]

    def own(self, name: str) -> Path:
        """Path at which the user's own file of that name is looked for, and is to be written.

        Raises:
            ValueError: The name, which may come from a file or a command line, is a way out of the folder.
        """
        try:
            return self._path(user_directory(), check_name(name))
        except ValueError as error:
            raise self.error(str(error)) from error

    def shipped(self) -> list[str]:
        """Names of the files that come with the package, sorted."""
        return self._names(_DATA)

    def find(self, name_or_path: str | os.PathLike[str]) -> Path:
        """Path of a file.

        Args:
            name_or_path: A name (`textbook`), looked for among the user's own files and then among the
                shipped ones; `shipped:textbook` among those alone; or the path of a file, which has a
                separator or ends in the suffix.

        Raises:
            ValueError: There is none; the message lists the names there are.
        """
        wanted = os.fspath(name_or_path)
        if len(wanted) > _LONGEST_PATH or len(Path(wanted).name) > _LONGEST_FILE or "\0" in wanted:
            raise self.error(f"{wanted[:60]!r}...: no such {self.noun}: too long for the name of a file")
        if Path(wanted).name != wanted or wanted.endswith(self.suffix):
            if not Path(wanted).is_file():
                raise self.error(f"{wanted}: no such {self.noun} file")
            return Path(wanted)
        own = self._path(user_directory(), wanted)
        shipped = self._path(_DATA, wanted.removeprefix(SHIPPED))
        if not wanted.startswith(SHIPPED) and own.is_file():
            if shipped.is_file():
                _warn_of_shadow(self.noun, own, shipped)
            return own
        if shipped.is_file():
            return shipped
        raise self.error(self._explain_unknown(wanted))

    def _path(self, root: Path, name: str) -> Path:
        return root / self.folder / f"{name}{self.suffix}"

    def _names(self, root: Path) -> list[str]:
        return sorted(path.stem for path in (root / self.folder).glob(f"*{self.suffix}"))

    def _explain_unknown(self, wanted: str) -> str:
        shipped, own = self._names(_DATA), self._names(user_directory())
        import difflib

        close = difflib.get_close_matches(wanted, [*own, *shipped], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        mine = f"; yours: {', '.join(own)}" if own else ""
        return f"no {self.noun} {wanted!r}{hint} (shipped: {', '.join(shipped) or 'none'}{mine})"


def user_directory() -> Path:
    """Folder of the user's own profiles and traces, in its subfolders `profiles`, `traces`, `decisions`.

    `$XDG_DATA_HOME/spectwin`, or `~/.local/share/spectwin` where that is not set to an absolute path.
    It need not exist.
    """
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "spectwin"


@cache
def _warn_of_shadow(noun: str, own: Path, shipped: Path) -> None:
    """Say once that a shipped file is hidden: by the logger, which without handlers prints on stderr."""
    import logging

    logging.getLogger(__name__).warning(
        "warning: %s %s hides the shipped one of that name: %s", noun, own, origin(shipped)
    )


_PROFILES = Shelf("profile", "profiles", ".json", ProfileError)
_TRACES = Shelf("trace", "traces", ".parquet", TraceError)
_DECISIONS = Shelf("decision trace", "decisions", ".parquet", TraceError)
user_profile, find_profile, shipped_profiles = _PROFILES.own, _PROFILES.find, _PROFILES.shipped
user_trace, find_trace, shipped_traces = _TRACES.own, _TRACES.find, _TRACES.shipped
user_decisions, find_decisions = _DECISIONS.own, _DECISIONS.find
_ACCEPTANCES = Shelf("acceptance", "acceptances", ".json", ProfileError)
find_acceptance, shipped_acceptances = _ACCEPTANCES.find, _ACCEPTANCES.shipped


def decisions_name(profile: str, policy: str, temperature: float = 0.0, top_p: float = 1.0) -> str:
    """Name of the decision trace of a policy that belongs to a profile, e.g. `cpu2-x5-t1-rasd`."""
    return f"{trace_name(profile, temperature, top_p)}-{policy}"


def trace_name(profile: str, temperature: float = 0.0, top_p: float = 1.0) -> str:
    """Name of the trace that belongs to a profile: its own at temperature 0, else e.g. `cpu2-x5-t1`.

    Args:
        profile: Name of the profile.
        temperature: Of the target.
        top_p: Mass of the target's distribution that is kept; `-p0.9` is added below 1.
    """
    name = profile if temperature == 0.0 else f"{profile}-t{temperature:g}"
    return name if top_p == 1.0 else f"{name}-p{top_p:g}"


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
