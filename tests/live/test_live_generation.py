"""The yardstick: what transformers generates, by itself and assisted."""

from __future__ import annotations

import pytest
from plain_decoding import plain_decode
from transformers import PreTrainedModel

from calibrate.live.reference import Method, Place, generate_once


@pytest.mark.parametrize("method", ["plain", "assisted", "assisted-default"])
def test_generation_emits_what_plain_decoding_emits(
    pair: tuple[str, str], target_model: PreTrainedModel, method: Method
) -> None:
    for prompt in ((3, 1, 4, 1, 5), (9, 2, 6)):
        found = generate_once(Place(*pair), method, prompt, 12, 3)
        assert list(found.tokens) == plain_decode(target_model, prompt, 12)
        assert found.seconds > 0


def test_pinned_assistance_drafts_as_many_tokens_as_it_is_told(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    from calibrate.live import reference

    drafted: list[int] = []
    original = AssistedCandidateGenerator.get_candidates

    def counted(self: AssistedCandidateGenerator, input_ids, **options):  # type: ignore[no-untyped-def]
        candidates, logits = original(self, input_ids, **options)
        drafted.append(candidates.shape[1] - input_ids.shape[1])
        return candidates, logits

    monkeypatch.setattr(AssistedCandidateGenerator, "get_candidates", counted)
    for lookahead in (2, 5):
        drafted.clear()
        generate_once(Place(*pair), "assisted", (3, 1, 4), 24, lookahead)
        assert max(drafted) == lookahead
        # The rest were cut short by the limit.
        assert drafted[0] == lookahead
    reference._models.cache_clear()
