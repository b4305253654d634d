"""Pure rules: verdicts, outcomes, agreement, ties, placements, conversions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from live_support import LIMIT, InlineWorld, new_rows, prefilled, serve, texts_of, view_of
from plain_decoding import plain_decode, plain_decode_many
from transformers import PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.executor import Executor
from calibrate.live.engine.rows import Row
from calibrate.live.engine.sampling import top_tokens
from calibrate.live.engine.verification import agreement, cut, judge, prepared_outcomes
from calibrate.live.errors import AuditError, ModelError, PlacementError
from calibrate.live.placement import available_cores, is_local_model, parse_placement
from calibrate.live.wire import Probe, ProbeResult, pack_operation
from policies.operation import Draft, Verify
from policies.registry import Settings, configure
from policies.values import Drafted, OutcomeCache, RowVerdict, Speculation, Verdict


@pytest.mark.parametrize(
    ("drafted", "best", "room", "expected"),
    [
        ([], [7], 9, RowVerdict(0, (7,), False, 7)),
        ([1, 2], [1, 2, 3], 9, RowVerdict(2, (1, 2, 3), False, 3)),
        ([1, 2], [1, 5, 2], 9, RowVerdict(1, (1, 5), False, 5)),
        ([4, 2], [1, 2, 3], 9, RowVerdict(0, (1,), False, 1)),
        # the limit: exactly reached, and before the bonus token, and before an accepted one
        ([1, 2], [1, 2, 3], 3, RowVerdict(2, (1, 2, 3), True, 3)),
        ([1, 2], [1, 2, 3], 2, RowVerdict(2, (1, 2), True, -1)),
        ([1, 2], [1, 2, 3], 1, RowVerdict(1, (1,), True, -1)),
        # the end token 0: accepted, as the bonus, and rejected
        ([1, 0, 2], [1, 0, 2, 3], 9, RowVerdict(2, (1, 0), True, -1)),
        ([1, 2], [1, 0, 3], 9, RowVerdict(1, (1, 0), True, 0)),
        ([0, 2], [1, 2, 3], 9, RowVerdict(0, (1,), False, 1)),
    ],
)
def test_verdicts(drafted: list[int], best: list[int], room: int, expected: RowVerdict) -> None:
    assert judge(drafted, best, room, {0}) == expected


ONES = (1,) * 8


def test_an_open_end_emits_no_bonus() -> None:
    assert cut((1, 2), None, 9, {0}) == RowVerdict(2, (1, 2), False, -1)
    assert cut((), None, 1, {0}) == RowVerdict(0, (), False, -1)
    assert cut((1, 2), None, 2, {0}) == RowVerdict(2, (1, 2), True, -1)
    assert cut((1, 0, 2), None, 9, {0}) == RowVerdict(2, (1, 0), True, -1)
    with pytest.raises(AuditError, match="without room"):
        cut((), 3, 0, {0})


def test_outcomes_leave_out_the_rejected_token_only() -> None:
    ranked = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert prepared_outcomes(ranked, [2, 6], (2, 2, 1)) == [(0, 1), (0, 3), (1, 4), (1, 5), (2, 7)]
    assert prepared_outcomes(ranked[:1], [], (2, 9)) == [(0, 1), (0, 2)]
    assert prepared_outcomes(ranked[:1], [], (0, 9)) == []
    top = prepared_outcomes(ranked, [2, 6], (2, 2, 1), keep_rejected=True)
    assert top == [(0, 1), (0, 2), (1, 4), (1, 5), (2, 7)]
    parts = [prepared_outcomes(ranked, [2, 6], (2, 2, 1), part=(i, 2)) for i in (0, 1)]
    assert parts == [[(0, 1), (1, 4), (2, 7)], [(0, 3), (1, 5)]]


def test_agreement() -> None:
    held = [1, 2, 3, 4, 5]
    assert agreement(held, 6, (5, 9)) == 5
    assert agreement(held, 5, (4, 7)) == 4
    assert agreement(held, 5, (8, 7)) == 3
    assert agreement(held, 7, (8, 9)) == 5
    assert agreement(held, 3, (2, 3), (4, 5)) == 4
    assert agreement([], 1, (4,)) == 0
    with pytest.raises(AuditError):
        agreement(held, 8, (8, 9))


def test_ties_rank_by_token_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert top_tokens(logits, 2) == [[1, 2], [0, 1]]
    assert top_tokens(logits, 9) == [[1, 2, 4, 3, 0], [0, 1, 2, 3, 4]]
    assert logits.argmax(dim=-1).tolist() == [row[0] for row in top_tokens(logits, 1)]
    many = torch.randint(0, 4, (20, 50), generator=torch.Generator().manual_seed(0)).float()
    for row, ranked in zip(many.tolist(), top_tokens(many, 7), strict=True):
        assert ranked == sorted(range(50), key=lambda token, row=row: (-row[token], token))[:7]


def test_cache_answers_only_for_live_rows() -> None:
    cache = OutcomeCache(2, {0: {(1, 5): Drafted((6, 7), 40)}, 1: {(0, 3): Drafted(())}})
    verdict = Verdict((1, 0), (2, 1), frozenset({1}), (5, 3))
    hits = cache.lookup(verdict)
    assert hits == {0}
    taken = cache.take(verdict, hits)
    assert taken.lengths == (2, 0)
    assert taken.sources == (1, 0)
    assert taken.tokens == ((6, 7), ())
    assert taken.handles == (40, -1)
    assert cache.take(verdict, frozenset()).handles is None
    with pytest.raises(ValueError, match="opening"):
        cache.opening()


def test_what_a_live_run_cannot_do_is_refused() -> None:
    rows = new_rows([(1, 2)])
    rows.admit()
    view = rows.view()
    with pytest.raises(ValueError, match="at least one row"):
        pack_operation(Verify(rows.view(frozenset()), Speculation.empty(1)))
    with pytest.raises(ValueError, match="token ids"):
        pack_operation(Draft(msgspec.structs.replace(view, tails=None), 3, (1,)))
    unknown = Speculation((1,), (1,), ((-1,),))
    with pytest.raises(ValueError, match="unknown id"):
        pack_operation(Verify(view, unknown))


def test_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrate.live.placement.available_cores", lambda: (0, 1))
    split = parse_placement("split")
    assert (split.target_cores, split.draft_cores) == ((0,), (1,))
    shared = parse_placement("shared:0,1")
    assert (shared.target_cores, shared.draft_cores) == ((0, 1), (0, 1))
    for bad in ("shared:7", "shared:", "shared:0,0", "beside"):
        with pytest.raises(PlacementError, match=bad):
            parse_placement(bad)
    assert available_cores()


def test_models_that_are_not_there(tmp_path: Path) -> None:
    assert not is_local_model("some-organisation/some-model")
    for missing in ("model", str(tmp_path / "model"), "./model"):
        with pytest.raises(ModelError, match="does not exist"):
            is_local_model(missing)
    with pytest.raises(ModelError, match=r"config\.json"):
        is_local_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="safetensors"):
        is_local_model(str(tmp_path))


def test_a_draft_stops_at_a_step_boundary(draft_model: PreTrainedModel) -> None:
    prompt = (3, 1, 4)
    for polls in (0, 1, 3):
        answers = iter([False] * polls + [True])
        executor = Executor(ModelRunner(draft_model), stopped=lambda answers=answers: next(answers))
        prefilled(executor, {0: prompt})
        drafted = executor.execute(Draft(view_of(Row(0, 0, 0, 3, prompt[-2:])), 8, ONES))
        assert drafted == (Drafted(tuple(plain_decode(draft_model, prompt, 8)[:polls])),)


def test_slots_do_not_mix(draft_model: PreTrainedModel) -> None:
    """Any slots, in any order, each for itself or together."""
    executor = Executor(ModelRunner(draft_model))
    prompts = {0: (3, 1, 4), 5: (9, 2, 6, 5), 2: (7,)}
    for slot in (5, 0, 2):
        prefilled(executor, {slot: prompts[slot]})
    for slots in ((0,), (5,), (2, 5), (5, 0, 2)):
        rows = [Row(slot, 0, 0, len(prompts[slot]), prompts[slot][-2:]) for slot in slots]
        drafted = executor.execute(Draft(view_of(*rows), 4, ONES))
        assert drafted == tuple(Drafted(tuple(plain_decode(draft_model, prompts[s], 4))) for s in slots)


@pytest.mark.parametrize(
    "probe",
    [
        Probe(batch=3, new_tokens=4, context=20, repeats=2),
        Probe("tree", context=20, branches=6, repeats=2),
        Probe("tree", batch=3, branches=2, repeats=2, warmup=0),
        Probe("prefill", batch=2, new_tokens=16, repeats=2),
    ],
    ids=repr,
)
def test_probes_feed_what_they_say(draft_model: PreTrainedModel, probe: Probe) -> None:
    """And leave alone what the requests' slots hold."""
    executor = Executor(ModelRunner(draft_model))
    prefilled(executor, {1: (1, 2, 3)})
    for _ in range(2):
        (result,) = executor.execute(probe)
        assert isinstance(result, ProbeResult)
        assert len(result.durations_s) == 2
        width = probe.branches if probe.step == "tree" else probe.new_tokens
        fed = {(step.rows, step.width, step.tokens) for step in executor.steps}
        assert fed == {(probe.batch, width, probe.batch * width)}
        assert executor.runner.held(1) == [1, 2]
        assert all(len(executor.runner.held(2 + i)) == probe.context for i in range(probe.batch))


def test_a_probe_moves_away_from_slots_that_requests_take(draft_model: PreTrainedModel) -> None:
    executor = Executor(ModelRunner(draft_model))
    probe = Probe(batch=2, context=7)
    executor.execute(probe)
    prefilled(executor, {1: (1, 2, 3)})
    executor.execute(probe)
    assert executor.runner.held(1) == [1, 2]
    assert len(executor.runner.held(3)) == 7


@pytest.mark.parametrize(
    "settings",
    [configure("ar"), configure("sd"), configure("pearl"), configure("saguaro", backup="random")],
    ids=lambda settings: settings.label,
)
def test_requests_stop_at_the_end_token(
    settings: Settings,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    plain_texts: list[list[int]],
) -> None:
    ends = {plain_texts[2][20], plain_texts[3][9]}
    world = InlineWorld(ModelRunner(target_model), ModelRunner(draft_model), end_token_ids=tuple(ends))
    rows = serve(world, settings, prompts, batch=3)
    expected = plain_decode_many(target_model, prompts, LIMIT, ends)
    assert texts_of(rows) == expected
    assert {text[-1] in ends for text in expected} == {True, False}
