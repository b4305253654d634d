"""AMUSD (McDanel 2024): draft and verification run asynchronously, each on its own device.

The draft never waits; whenever the target is free, it verifies what has been drafted by then.  A row that
is rejected begins anew behind the correction, and what was drafted past it is dropped.  How much is
verified at once is up to the clock, so that a simulation takes events, and meets live runs in distribution
alone; what is accepted is the recorded path's.

Where it differs from the authors' code: rows of a batch share forwards and are rolled back one by one
(theirs is one sequence); a row's draft is at most K tokens ahead; a draft step that became useless runs to
its end.  The target adds no token of its own to a block that is accepted in full: the draft is past it
already.  Tokens are the draft's first choices at every temperature, drawn ones would each need their
distribution kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from policies.config import MAX_LOOKAHEAD, LawInputs, LawValue, LookaheadConfig, PolicyInfo
from policies.operation import Continue, Verify
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import NO_HANDLE, Slots, Speculation, Verdict, View


@dataclass(frozen=True, slots=True)
class AmusdConfig(LookaheadConfig):
    """Knobs of `amusd`; the draft is up to K tokens ahead."""

    policy: ClassVar[str] = "amusd"

    @property
    def longest_run(self) -> int:
        """Runs go on from block to block."""
        return MAX_LOOKAHEAD

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """None is given."""
        return LawValue("none", reason="the paper gives no law for AMUSD")


class _Ahead:
    """What is drafted past the text of each row.

    Attributes:
        tokens: By slot.
        texts: By slot, how often what was drafted turned out wrong, or the row changed.
    """

    def __init__(self, width: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(width)]
        self.texts = [0] * width

    def drop(self, slot: int) -> None:
        """Begin anew."""
        self.tokens[slot] = []
        self.texts[slot] += 1

    def chains(self, rows: Slots) -> Speculation:
        """Those of some rows."""
        return Speculation.drafted(len(self.tokens), {s: (self.tokens[s], NO_HANDLE) for s in rows})

    def drafted(self, view: View, texts: list[int], opening: Speculation) -> None:
        """Append a token to each row of a view whose text is that for which it was drafted."""
        for slot in view.slots:
            if texts[slot] == self.texts[slot]:
                self.tokens[slot] += opening.row(slot).tokens

    def judged(self, view: View, verdict: Verdict) -> None:
        """Go on behind what was accepted, or begin anew."""
        for slot in view.slots:
            accepted = verdict.accepted[slot]
            if verdict.emitted[slot] > accepted or slot in verdict.ended:
                self.drop(slot)
            else:
                del self.tokens[slot][:accepted]


def amusd(world: World, rows: Rows, config: AmusdConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify what there is whenever the target is free; draft on whenever the draft is."""
    sampling, ahead = replace(sampling, draft="greedy"), _Ahead(rows.width)
    verify: Any = None
    draft: Any = None
    while rows.active:
        for slot in (yield from admit(world, rows)):
            ahead.drop(slot)
        there = frozenset(slot for slot in rows.alive if ahead.tokens[slot])
        if verify is None and there:
            judged, chains = rows.view(there), ahead.chains(there)
            verify = world.target.submit(Verify(judged, chains, sampling, leave_open=True))
        rooms = zip(rows.view().slots, rows.view().rooms, strict=True)
        short = frozenset(s for s, room in rooms if len(ahead.tokens[s]) < min(room, config.lookahead))
        if draft is None and short:
            drafted, texts = rows.view(short), list(ahead.texts)
            draft = world.draft.submit(Continue(drafted, ahead.chains(short), 1, sampling))
        running = [each for each in (verify, draft) if each is not None]
        happened = yield running[0] | running[-1]
        if draft in happened:
            ahead.drafted(drafted, texts, draft.value.opening())
            draft = None
        if verify in happened:
            rows.commit(judged, chains, verify.value, now=world.now)
            ahead.judged(judged, verify.value)
            verify = None


INFO = PolicyInfo(
    config=AmusdConfig,
    run=amusd,
    paper="McDanel 2024 (AMUSD)",
    predicts='"all accepted"',
    drafts="autoregressive, as far as the clock lets it",
    on_miss="the rest is dropped",
    verifies="chain",
    order=5.4,
    clocked=True,
    colour="#c5a3e0",
    variants=({}, {"lookahead": 12}),
)
