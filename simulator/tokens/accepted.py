"""A real pair's accepted lengths, position by position (SpecDecode-Bench's JSONL), as a token model.

`acc_eagle.acc_len[p]` is what a round emits that starts right after output token p is known, bonus counted:
an exact replay at any lookahead.  Token 0 comes from the prefill, so that a text of n entries is n - 1 tokens
to decode.  What is looked up in the text (`pld`) is looked up anew, in the tokens of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hardware_profiles.files import FileRefused, parse_json, read_text
from policies.registry import SettingError, Settings, find_policy
from policies.values import IntArray, Request
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import NEVER

SUFFIX = ".jsonl"
LONGEST_ID = 2**31
"""Of token ids."""


def accepted_tokens(path: Path, settings: Settings, *, limit: int | None = None) -> tuple[TokenModel, str]:
    """The token model of a file, and where it comes from.

    Args:
        path: Of the file.
        settings: What is to run.
        limit: Most tokens of a text; None: all.

    Raises:
        FileRefused: It is no such file; the message has the line.
        SettingError: The policy needs the hits of a speculation cache, which the file does not say.
    """
    if "fanout" in find_policy(settings.policy).knobs:
        raise SettingError(
            f"policy {settings.policy!r} needs hits of a speculation cache, which {path} does not say"
        )
    rows = [
        _row(path, number, line)
        for number, line in enumerate(read_text(path).splitlines(), 1)
        if line.strip()
    ]
    texts = [row for row in rows if len(row[2]) > 1 and len(row[1])]  # a single token is the prefill's
    if not texts:
        raise FileRefused(f"{path}: no text has a token to decode")
    runs, tokens, requests = [], [], []
    for index, (prompt, text, lengths) in enumerate(texts):
        count = min(len(lengths) - 1, limit or len(lengths))
        left = np.arange(count, 0, -1)
        runs.append(np.minimum(lengths[:count] - 1, left))
        # Lengths and text may come from two runs: there are as many tokens as lengths.
        tokens.append(np.pad(text[1 : count + 1], (0, max(0, count + 1 - len(text)))))
        shown = tuple(map(int, (*prompt, text[0])))
        requests.append(Request(index, len(shown), count, prompt=shown))
    everything = np.concatenate(tokens)
    most = max(int(everything.max()), *(max(request.prompt or (0,)) for request in requests))
    never = np.full(len(everything), NEVER)
    model = TokenModel.of(
        requests,
        [len(run) for run in runs],
        tokens=everything,
        vocabulary=most + 1,
        run=np.concatenate(runs),
        need_rejected=never,
        need_free=never,
        max_fanout=1,
    )
    return model, f"accepted lengths of {len(texts)} recorded texts ({path}), by output position"


def _row(path: Path, number: int, line: str) -> tuple[IntArray, IntArray, IntArray]:
    """Prompt, text and accepted lengths of a line."""
    try:
        content = parse_json(line)
        parts = (content["prompt_token_ids"], content["generated_token_ids"], content["acc_eagle"]["acc_len"])
    except FileRefused as error:
        raise FileRefused(f"{path}:{number}: {error}", number) from error
    except (KeyError, TypeError, IndexError) as error:
        raise FileRefused(
            f"{path}:{number}: expected a line of SpecDecode-Bench: {error!r}", number
        ) from error
    prompt, text, lengths = (_numbers(path, number, part) for part in parts)
    if np.any(lengths < 1):
        raise FileRefused(f"{path}:{number}: acc_len: expected numbers from 1 on", number)
    return prompt, text, lengths


def _numbers(path: Path, number: int, values: Any) -> IntArray:
    if not isinstance(values, list) or any(type(v) is not int or not 0 <= v < LONGEST_ID for v in values):
        raise FileRefused(f"{path}:{number}: expected a list of whole numbers, got {values!r:.60}", number)
    return np.array(values, dtype=np.int64)
