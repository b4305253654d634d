"""Settings: defaults, refusals, names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_worlds import run, tokens_by_hand

from policies import ssd
from policies.commandline import parse_setting
from policies.config import knobs_of
from policies.registry import KNOBS, POLICIES, SettingError, configure, find_policy
from policies.ssd import SaguaroConfig


def test_defaults_are_filled_in() -> None:
    settings = configure("saguaro")
    assert (settings.lookahead, settings.fanout, settings.backup) == (4, (3,) * 5, "primary")
    assert configure("ar").lookahead is None


@pytest.mark.parametrize(
    ("alias", "name"),
    [("ssd", "saguaro"), ("SSD", "saguaro"), ("Saguaro", "saguaro"), ("ngram", "pld"), ("draft_model", "sd")]
    + [(alias, "heads") for alias in ("eagle3", "mtp", "medusa")],
)
def test_aliases(alias: str, name: str) -> None:
    assert find_policy(alias).name == configure(alias).policy == name
    assert configure(parse_setting(alias)[0]).policy == name


def test_policies_are_found_by_what_their_sources_say() -> None:
    assert all(name == info.name for name, info in POLICIES.items())
    found = [
        file.stem for file in Path(ssd.__file__).parent.glob("*.py") if "PolicyInfo(" in file.read_text()
    ]
    assert len(POLICIES) == len(found) - 1  # `registry` looks for it


def test_no_alias_is_of_two_policies_nor_a_policys_name() -> None:
    names = [*POLICIES, *(alias for info in POLICIES.values() for alias in info.aliases)]
    assert len(set(names)) == len(names)
    assert all(set(info.implied) <= set(info.aliases) for info in POLICIES.values())


def test_an_alias_says_its_knobs_and_what_is_given_comes_first() -> None:
    assert configure("EAGLE3").knobs["heads"] == "eagle3" and configure("heads").knobs["heads"] == "eagle2"
    assert configure("mtp").knobs["tree_widths"] == (1, 1, 1)
    assert configure("mtp", tree_widths=(2,)).knobs["tree_widths"] == (2,)


def test_labels_tell_settings_apart() -> None:
    labels = [
        configure("sd", lookahead=2).label,
        configure("saguaro", lookahead=2, fanout=(1,)).label,
        configure("saguaro", lookahead=2, fanout=(1, 2, 3), backup="plain").label,
        configure("saguaro", fanout_backup=(9, 0, 0, 0, 0), stall="rows", draft_devices=2).label,
        configure("pearl", temperature=0.7, top_p=0.9, draft_sampling="greedy").label,
        configure("saguaro", lookahead=1, temperature=1.0, scale=0.5).label,
    ]
    assert labels == [
        "sd K=2",
        "saguaro K=2 F=1 primary",
        "saguaro K=2 F=1,2,3 plain",
        "saguaro K=4 F=3 Fb=9,0,0,0,0 primary stall=rows draft_devices=2",
        "pearl K=4 draft_sampling=greedy T=0.7 top-p=0.9",
        "saguaro K=1 F=3 primary scale=0.5 T=1",
    ]


VALUES = {
    "lookahead": 3,
    "fanout": (2,),
    "fanout_backup": (2,),
    "backup": "plain",
    "stall": "rows",
    "first": "backup",
    "cache_set": "top",
    "tree": "abort",
    "draft_devices": 2,
    "longest_suffix": 2,
    "draft_sampling": "greedy",
    "scale": 0.5,
}


@pytest.mark.parametrize("knob", VALUES)
def test_a_knob_that_would_be_ignored_is_refused(knob: str) -> None:
    value = VALUES[knob]
    for info in POLICIES.values():
        if knob not in info.knobs:
            with pytest.raises(SettingError, match=f"has no {knob}"):
                configure(info.name, temperature=1.0, **{knob: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("fanout", [(0,), (-1, 2, 2, 2, 2), (0, 0, 0, 0, 0), (1, 2)])
def test_bad_fanouts(fanout: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="fanout"):
        configure("saguaro", fanout=fanout)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"scale": 0.5}, "changes nothing at temperature 0"),
        ({"draft_sampling": "greedy"}, "changes nothing at temperature 0"),
        ({"top_p": 0.9}, "changes nothing at temperature 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p must be above 0"),
        ({"temperature": 1.0, "scale": 1.5}, "between 0 and 1"),
        ({"temperature": 1.0, "scale": 0.5, "draft_sampling": "greedy"}, "nothing with a greedy draft"),
        ({"stall": "rows", "backup": "plain"}, "makes no row wait"),
        ({"stall": "rows", "backup": "primary-all"}, "redrafts every row"),
        ({"backup": "primry"}, "unknown backup 'primry'; choices: primary"),
        ({"draft_devices": 0}, "draft_devices must be at least 1"),
        ({"fanout_backup": (1, 2)}, "fanout needs 1 number or"),
    ],
)
def test_settings_that_contradict_themselves(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        configure("saguaro", **knobs)  # type: ignore[arg-type]


def test_an_unresolved_backup_cannot_run() -> None:
    with pytest.raises(SettingError, match="resolved against a profile"):
        run(tokens_by_hand(("+", [0])), "saguaro", backup="auto")


def test_saguaro_rescales_only_where_its_scale_says_so() -> None:
    plain = configure("saguaro", lookahead=2, fanout=(3, 2, 5), temperature=1.0)
    rescaled = configure("saguaro", lookahead=2, fanout=(3, 2, 5), temperature=1.0, scale=0.5)
    assert isinstance(plain.config, SaguaroConfig) and isinstance(rescaled.config, SaguaroConfig)
    assert plain.config.shape(plain.sampling) is None
    assert rescaled.config.shape(rescaled.sampling) == (3, 2)  # the bonus position drafts nothing


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_knobs_make_a_setting_anew(name: str, temperature: float) -> None:
    settings = configure(name, temperature=temperature, seed=3)
    assert configure(name, temperature=temperature, seed=3, **settings.knobs) == settings


@pytest.mark.parametrize("name", POLICIES)
def test_a_knob_of_several_policies_is_the_same_in_all(name: str) -> None:
    for knob, about in knobs_of(POLICIES[name].config).items():
        assert about == KNOBS[knob]


@pytest.mark.parametrize("name", POLICIES)
def test_the_variants_of_a_policy_are_settings(name: str) -> None:
    for knobs in POLICIES[name].variants:
        assert configure(name, **knobs).policy == name


def test_a_single_fanout_is_written_out_or_refused() -> None:
    assert SaguaroConfig.of(lookahead=2, fanout=(4,)).fanout == (4, 4, 4)
    assert SaguaroConfig.of(lookahead=2, fanout=(4,)).deeper(3).fanout == (4, 4, 4, 4)
    with pytest.raises(SettingError, match="writes a single one out"):
        SaguaroConfig(lookahead=2)
