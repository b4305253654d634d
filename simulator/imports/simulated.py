"""The hook of `simulate --acceptance FILE`: its options as tokens, and a line that says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.registry import DEFAULT_LOOKAHEAD, find_policy
from simulator.imports.acceptance import load_acceptance, token_model
from simulator.tokens import TokenModel


def imported_tokens(options: Mapping[str, Any]) -> tuple[TokenModel, str]:
    """The token model of an acceptance file, and its provenance with everything that was assumed.

    Args:
        options: Those of `simulate`, with the path of a file as `acceptance`.

    Raises:
        ImportRefused: The file is none.
        SettingError: The policy needs what the file does not say.
    """
    acceptance = load_acceptance(options["acceptance"])
    curve = options["hit_curve"]
    model = token_model(
        acceptance,
        options["policy"],
        hit_curve=curve,
        requests=options["requests"] or max(48, 8 * options["batch"]),
        length=options["max_tokens"] or 128,
        prompt_length=options["prompt_length"] or 128,
        seed=options["seed"],
    )
    policy, assumed = find_policy(options["policy"]).name, list(acceptance.assumed)
    known, depth = len(acceptance.acceptance_at_position), options["lookahead"]
    if policy != "ar" and (depth == "auto" or policy == "pearl" or (depth or DEFAULT_LOOKAHEAD) > known):
        assumed.append(f"positions past {known} like that one")
    if curve is not None:
        assumed.append(f"hit curve 1 - {curve[1]:g} F^-{curve[0]:g}")
    words = acceptance.words
    return model, f"{words}; assumed: {'; '.join(assumed)}" if assumed else words
