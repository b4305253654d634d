"""The public Python API: what a notebook or a script may rely on between versions.

>>> import spectwin
>>> report = spectwin.simulate("ssd", batch=1, hw="cpu2-x5", requests=8, max_tokens=32)
>>> round(report.speedup_vs_ar, 1) > 0.0
True

Every option of the command of the same name is a keyword: `simulate --batch 16 --acceptance 0.8` is
`simulate("sd", batch=16, acceptance=0.8)`.  Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.diagnose.report import Diagnosis as Diagnosis
    from analysis.recommend.answer import Recommendation as Recommendation
    from analysis.results import Results as Results
    from analysis.study import Study as Study
    from hardware_profiles.profile import Profile as Profile
    from hardware_profiles.trace import Trace as Trace
    from policies.config import Settings as Settings
    from policies.registry import SettingError as SettingError
    from simulator.report import Report as Report

_TYPES = {
    "Diagnosis": "analysis.diagnose.report",
    "Profile": "hardware_profiles.profile",
    "Recommendation": "analysis.recommend.answer",
    "Report": "simulator.report",
    "Results": "analysis.results",
    "SettingError": "policies.registry",
    "Settings": "policies.config",
    "Study": "analysis.study",
    "Trace": "hardware_profiles.trace",
}
"""Types, by the modules that define them."""
__all__ = [
    "Diagnosis",
    "Profile",
    "Recommendation",
    "Report",
    "Results",
    "SettingError",
    "Settings",
    "Study",
    "Trace",
    "diagnose",
    "load_profile",
    "load_trace",
    "recommend",
    "simulate",
    "study",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _TYPES:
        return getattr(import_module(_TYPES[name]), name)
    raise AttributeError(f"module 'spectwin' has no attribute {name!r}")


def simulate(policy: str = "saguaro", **options: Any) -> Report:
    """What `simulate` answers for one setting, e.g. its `speedup_vs_ar`, `run.summary` and `as_dict()`.

    Args:
        policy: Of `simulate --list-policies`, or an engine's name for it.
        **options: Knobs of the policy, and the fields of `simulator.request.SimulationRequest`.

    Raises:
        SettingError: No such option, or options that contradict each other.
        ValueError: A file or name that is not found or not sound.
    """
    from policies.registry import KNOBS
    from simulator.auto import settings_query
    from simulator.report import report_of
    from simulator.request import SimulationRequest

    asked = {*KNOBS, "temperature", "top_p", "seed", "shape", "budget", "find_switch"}
    query = settings_query(policy, **{name: options.pop(name) for name in asked & set(options)})
    acceptance = options.get("acceptance")
    if isinstance(acceptance, str):
        from hardware_profiles.store import find_acceptance

        options["acceptance"] = find_acceptance(acceptance)
    return report_of(_made(SimulationRequest, options, query=query))


def recommend(**options: Any) -> Recommendation:
    """What `recommend` answers; `options` are the fields of `analysis.recommend.answer.Query`.

    Raises:
        SettingError: As `simulate`.
        ValueError: As `simulate`.
    """
    from analysis.recommend.answer import Query
    from analysis.recommend.answer import recommend as answer

    query = _made(Query, options)
    return answer(query.sources(), query)


def diagnose(source: str | Path, **options: Any) -> Diagnosis:
    """What `diagnose` answers of a file; `options` are the fields of `analysis.diagnose.__main__.Question`.

    Raises:
        ValueError: The file holds no speculation, or options that contradict it.
    """
    from analysis.diagnose.__main__ import Question
    from analysis.diagnose.__main__ import diagnose as answer
    from analysis.diagnose.server import read_source

    asked = _made(Question, options)
    return answer(read_source(Path(source), asked.before, asked.select), asked)


def study(name: str) -> Study[Any]:
    """A study of `spectwin studies list`; `run_study` of `analysis.execute` answers it.

    Raises:
        SettingError: There is none of that name.
    """
    from analysis.__main__ import STUDIES, load_study
    from policies.registry import SettingError

    if name not in STUDIES:
        raise SettingError(f"there is no study {name!r}; there are {', '.join(STUDIES)}")
    return load_study(name)


def validate(**options: Any) -> Results:
    """What `validate` answers: live runs beside their predictions; needs `spectwin[live]`.

    Raises:
        SettingError: No such option.
    """
    from analysis.execute import run_study
    from calibrate.options import quiet

    validation = study("validation")
    return run_study(validation, _made(validation.plan, options), quiet)


def load_profile(name_or_path: str | Path) -> Profile:
    """A hardware profile: a name, `shipped:NAME` or a file.

    Raises:
        ValueError: There is none, or it is not sound.
    """
    from hardware_profiles.profile import load_profile as load
    from hardware_profiles.store import find_profile

    return load(find_profile(name_or_path))


def load_trace(name_or_path: str | Path) -> Trace:
    """A recording of plain decoding: a name, `shipped:NAME` or a file.

    Raises:
        ValueError: There is none, or it is not sound.
    """
    from hardware_profiles.store import find_trace
    from hardware_profiles.trace import read_trace

    return read_trace(find_trace(name_or_path))


def _made(kind: Any, options: dict[str, Any], **more: Any) -> Any:
    """A request of these options."""
    from dataclasses import fields

    from policies.registry import SettingError

    names = {each.name for each in fields(kind)}
    if strange := sorted(set(options) - names):
        raise SettingError(f"there is no option {strange[0]!r}; options: {', '.join(sorted(names))}")
    return kind(**options, **more)
