"""The files of decision traces while they grow, one per policy: what is recorded is in its file at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from calibrate.deciding import Asked
from calibrate.hostfit import fit_pace, gains, told
from calibrate.live.placement import labelled_backend
from calibrate.traces import digest
from hardware_profiles.decisions import DecisionTrace, read_decisions, write_decisions
from hardware_profiles.optime import StepPace
from hardware_profiles.pace import costs_fingerprint, joined_pace
from hardware_profiles.store import decisions_name, user_decisions
from policies.config import Settings

SUFFIX = ".parquet"
MOST_CHANGE = 0.1
"""A machine whose speed changes by more around a run was not idle, or not steady."""


class DecisionFiles:
    """Where the settings of a recording go.

    Args:
        asked: What is recorded.
        out: File or folder; None: the user's own.

    Raises:
        ValueError: A file holds other prompts or models, or settings of several policies go into one.
    """

    def __init__(self, asked: Asked, out: Path | None) -> None:
        self.asked = asked
        self.out = out
        self._held: dict[Path, DecisionTrace] = {}
        if out is not None and self._is_file and len({s.policy for s in asked.settings}) > 1:
            raise ValueError(f"{out}: a file holds one policy; give --out a folder for several")
        for path in dict.fromkeys(map(self.path, asked.settings)):
            if path.is_file():
                self._held[path] = read_decisions(path)
                self._check(path)

    @property
    def _is_file(self) -> bool:
        return self.out is not None and not self.out.is_dir() and self.out.suffix == SUFFIX

    def path(self, settings: Settings) -> Path:
        """The file of a setting's policy."""
        name = decisions_name(self.asked.profile.name, settings.policy, settings.temperature, settings.top_p)
        if self.out is None:
            return user_decisions(name)
        return self.out if self._is_file else self.out / f"{name}{SUFFIX}"

    def holds(self, settings: Settings) -> bool:
        """Whether a setting is there as it is asked for: if it is to be timed, beside this profile."""
        held = self._held.get(self.path(settings))
        found = held.settings.get(settings.label) if held is not None else None
        if held is None or found is None or held.meta.sampling.get("seed") != settings.seed:
            return False
        if not self.asked.timed:
            return True
        timed = {each.batch for each in found.timings}
        return found.timed_beside == costs_fingerprint(self.asked.profile) and timed >= {*self.asked.batches}

    def keep(self, settings: Settings, trace: DecisionTrace) -> None:
        """Add a setting to its file, with the pace that follows from all that was timed."""
        path = self.path(settings)
        if path in self._held:
            trace = self._held[path].merged(trace)
        pace = fit_pace(self.asked.profile, trace.settings.values(), sampled=self._sampled)
        self._held[path] = replace(trace, pace=joined_pace(trace.pace, pace))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_decisions(self._held[path], path)

    def report(self, path: Path) -> Iterator[str]:
        """What the pace of a file is, and what it buys; nothing of a file that is not there."""
        trace = self._held.get(path)
        if trace is None:
            return
        known = trace.pace.policies if trace.pace is not None else {}
        for kind, pace in (each for found in known.values() for each in found.items()):
            steps = ", ".join(_shown(name, step) for name, step in pace.steps.items())
            yield f"pace of {kind}: {steps or 'no steps'}; beyond its steps {pace.host.extra_s * 1e6:+.0f} us"
        found = gains(self.asked.profile, list(trace.settings.values()), sampled=self._sampled)
        if found:
            yield told(found)
        if drifts := [each.drift for each in trace.settings.values() if each.drift]:
            yield _day(drifts)

    @property
    def _sampled(self) -> bool:
        return self.asked.settings[0].temperature > 0.0

    def _check(self, path: Path) -> None:
        """Refuse, before anything runs, what could not be added to a file in the end."""
        held, asked = self._held[path], self.asked
        models = (asked.profile.roles.target.model, asked.profile.roles.draft.model)
        first, meta = asked.settings[0], held.meta
        mine = (*models, digest(asked.prompts), asked.limit, first.temperature, first.top_p)
        sampling = (meta.sampling.get("temperature", 0.0), meta.sampling.get("top_p", 1.0))
        if mine != (meta.target_model, meta.draft_model, meta.prompt_set_hash, held.limit, *sampling):
            raise ValueError(
                f"{path} holds decisions of other models, prompts, limits or samplings, which cannot be "
                "joined; give another --out, or remove it"
            )
        ran = labelled_backend(meta.backend, meta.precision)
        if ran != asked.backend:
            raise ValueError(
                f"{path} holds decisions of a draft by {ran}, which cannot be joined with those of one by "
                f"{asked.backend}; give another --out, or remove it"
            )


def _day(drifts: Sequence[Sequence[float]]) -> str:
    """How fast the machine was while settings were timed, and whether that was steady."""
    every = [value for found in drifts for value in found]
    pairs = [pair for found in drifts for pair in zip(found[::2], found[1::2], strict=True)]
    line = (
        f"plain decoding meanwhile took {min(every):.2f} to {max(every):.2f} times what the profile says, "
        "divided out"
    )
    change = max(abs(after / before - 1.0) for before, after in pairs)
    if change > MOST_CHANGE:
        line += f"; it changed by {change:.0%} around a single run: was something else running?"
    return line


def _shown(name: str, step: StepPace) -> str:
    """A step's pace, for people; of a step that calls no model there is no factor."""
    factor = f"{step.factor:.2f} x profile " if step.factor != 1.0 else ""
    return f"{name} {factor}{step.extra_s * 1e6:+.0f} us"
