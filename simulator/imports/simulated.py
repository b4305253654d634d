"""The hook of `simulate --acceptance FILE`: its options as tokens, and a line that says what they are."""

from __future__ import annotations

from pathlib import Path

from policies.registry import MAX_LOOKAHEAD, Settings
from simulator.imports.acceptance import load_acceptance, token_model
from simulator.tokens import TokenModel


def imported_tokens(
    path: Path,
    settings: Settings,
    *,
    open_lookahead: bool,
    hit_curve: tuple[float, float] | None,
    requests: int,
    length: int,
    prompt_length: int,
) -> tuple[TokenModel, str]:
    """The token model of an acceptance file, and its provenance with everything that was assumed.

    Args:
        path: Of the file.
        settings: What is to run.
        open_lookahead: Whether any lookahead may.
        hit_curve: r and c of a hit curve to assume; None: none.
        requests: How many.
        length: Tokens of each.
        prompt_length: Tokens of its prompt.

    Raises:
        ImportRefused: The file is none.
        SettingError: The policy needs what the file does not say.
    """
    acceptance = load_acceptance(path)
    model = token_model(
        acceptance,
        settings.policy,
        hit_curve=hit_curve,
        requests=requests,
        length=length,
        prompt_length=prompt_length,
        seed=settings.seed,
    )
    assumed = list(acceptance.assumed)
    known = len(acceptance.acceptance_at_position)
    longest = MAX_LOOKAHEAD if open_lookahead else settings.config.longest_run
    if longest > known:
        assumed.append(f"positions past {known} like that one")
    if hit_curve is not None:
        assumed.append(f"hit curve 1 - {hit_curve[1]:g} F^-{hit_curve[0]:g}")
    words = acceptance.words
    return model, f"{words}; assumed: {'; '.join(assumed)}" if assumed else words
