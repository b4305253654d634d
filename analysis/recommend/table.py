"""Every setting that a recommendation tried, with an interval: a row each."""

from __future__ import annotations

import numpy as np

from analysis.recommend.answer import Recommendation
from analysis.recommend.search import resampled
from analysis.results import Row, describe

SHORT = 1_000
"""Settings whose replicates are in memory at once."""


def every_setting(answer: Recommendation) -> list[Row]:
    """All settings tried, best over plain decoding first, on what each met before it was rejected.

    Intervals are of prompts drawn anew, the same for all settings, and of the model's error; those of the
    answer's own rows also have what a machine does for minutes.
    """
    search, query = answer.search, answer.query
    boot = query.bootstrap(search, answer.sources.model_error)
    tried = search.tried
    levels = [(1 - query.level) / 2, 0.5, (1 + query.level) / 2]
    plain = {each.requests: resampled(each, boot) for each in search.plain}
    rows: list[Row] = []
    for first in range(0, len(tried), SHORT):
        some = tried[first : first + SHORT]
        speeds = np.array([resampled(each, boot) * boot.error_factors(each.settings) for each in some])
        over = speeds / np.array([plain[search.plainly(each).requests] for each in some])
        low, _, high = np.quantile(speeds, levels, axis=1)
        ratio_low, ratio, ratio_high = np.quantile(over, levels, axis=1)
        rows += [
            {
                **describe(each.settings),
                "deployment": each.words,
                "requests": each.requests,
                "tokens_per_second": each.tokens_per_second,
                "tokens_per_second_low": float(low[i]),
                "tokens_per_second_high": float(high[i]),
                "speedup_vs_ar": float(ratio[i]),
                "speedup_vs_ar_low": float(ratio_low[i]),
                "speedup_vs_ar_high": float(ratio_high[i]),
                "level": query.level,
                "extrapolated": "; ".join(each.extrapolated),
            }
            for i, each in enumerate(some)
        ]
    return sorted(rows, key=lambda row: -row["speedup_vs_ar"])
