"""Which settings stand for a policy where its output is compared with plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from policies.registry import POLICIES, SettingError, Settings, configure, find_policy


def identity_settings(names: Sequence[str] = (), *, datastore: str | None = None) -> list[Settings]:
    """Greedy settings whose output has to be plain decoding's.

    Args:
        names: Policies, by name or alias; none: all that run live.
        datastore: One more setting of each policy that retrieves, from this one; None: none.

    Raises:
        SettingError: An unknown policy, or one that runs no models.
    """
    chosen = [find_policy(name) for name in names] or [p for p in POLICIES.values() if "live" in p.worlds]
    for info in chosen:
        if "live" not in info.worlds:
            raise SettingError(f"policy {info.name!r} runs in the simulated world only, without models")
    found = []
    for info in chosen:
        variants = info.variants
        if datastore and "datastore" in info.knobs:
            variants = (*variants, {"datastore": datastore})
        found += [configure(info.name, **knobs) for knobs in variants]
    return list(dict.fromkeys(found))
