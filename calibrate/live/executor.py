"""Executes messages on a `ModelRunner`: what each operation means in forwards.

Only worker processes (and tests) import this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from calibrate.live.errors import AuditError
from calibrate.live.messages import (
    ContinueRow,
    DraftRow,
    Echo,
    Message,
    Outcome,
    PrefillRow,
    Prepared,
    PrespeculateRow,
    Probe,
    ProbeResult,
    Reply,
    Step,
    Tokens,
    Verified,
    VerifyRow,
)
from calibrate.live.outcomes import agreement, judge, prepared_outcomes
from calibrate.live.runner import ModelRunner, Tree, best_tokens, top_tokens

PROBE_SLOT = -1


def never() -> bool:
    """A stop request that never comes."""
    return False


class Executor:
    """Runs one message at a time and stamps each of its model calls.

    Args:
        runner: The model.
        end_token_ids: Tokens that end a request; used by verifications.
        stopped: Polled between steps: whether the running message was asked to stop.

    Attributes:
        steps: Model calls of the last message, in order.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        end_token_ids: Collection[int] = (),
        stopped: Callable[[], bool] = never,
    ) -> None:
        self.runner = runner
        self.end_token_ids = frozenset(end_token_ids)
        self.stopped = stopped
        self.steps: list[Step] = []
        self._synthetic: tuple[int, int] | None = None

    def execute(self, message: Message) -> Reply:
        """Do what a message says.

        Raises:
            AuditError: The message does not fit what the slot holds, or more was fed than it needs.
        """
        self.steps = []
        match message:
            case PrefillRow():
                self._prefill(message)
                return None
            case VerifyRow():
                return self._verify(message)
            case DraftRow():
                return self._draft(message)
            case PrespeculateRow():
                return self._prespeculate(message)
            case ContinueRow():
                return self._continue(message)
            case Probe():
                return self._probe(message)
            case Echo():
                return message.payload

    def _prefill(self, row: PrefillRow) -> None:
        self.runner.reset(row.slot)
        if len(row.prompt) > 1:
            self._fill("prefill", row.slot, row.prompt[:-1])

    def _verify(self, row: VerifyRow) -> Verified:
        self._rewind(row.slot, row.context, row.tail)
        best = self._choose("verify", row.slot, (row.tail[-1], *row.tokens))
        self._audit_fed(1 + len(row.tokens), "Verify")
        return judge(row.tokens, best, row.room, self.end_token_ids)

    def _draft(self, row: DraftRow) -> Tokens:
        keep = agreement(self.runner.held(row.slot), row.context, row.tail)
        feed = row.context - keep
        if feed != row.unseen:
            raise AuditError(f"Draft was told of {row.unseen} unseen tokens but has to feed {feed}")
        if self.stopped():
            return ()
        self.runner.rollback(row.slot, keep)
        return self._extend(row.slot, row.tail[-row.unseen :], row.lookahead, stoppable=True)

    def _continue(self, row: ContinueRow) -> Prepared:
        keep = agreement(self.runner.held(row.slot), row.context, row.tail, row.tokens)
        feed = (*row.tail, *row.tokens)[keep - (row.context - len(row.tail)) :]
        if len(feed) != 1:
            raise AuditError(f"Continue has to feed {len(feed)} tokens; after a round it is always 1")
        self.runner.rollback(row.slot, keep)
        first, *rest = self._extend(row.slot, feed, row.lookahead, stoppable=False)
        return Prepared((((len(row.tokens), first), tuple(rest)),))

    def _extend(self, slot: int, feed: Sequence[int], lookahead: int, *, stoppable: bool) -> Tokens:
        """Feed tokens, then draft greedily; `lookahead` tokens in all, fewer if stopped."""
        drafted = [self._choose("feed", slot, feed)[-1]]
        while len(drafted) < lookahead and not (stoppable and self.stopped()):
            drafted += self._choose("draft", slot, drafted[-1:])
        return tuple(drafted)

    def _prespeculate(self, row: PrespeculateRow) -> Prepared:
        self._rewind(row.slot, row.context, row.tail)
        outcomes = self._glue("glue", row.slot, (row.tail[-1], *row.tokens), row.fanout)
        if not outcomes:
            return Prepared(())
        speculations = self._grow(row, outcomes)
        self._audit_fed(1 + len(row.tokens) + row.lookahead * len(outcomes), "Prespeculate")
        return Prepared(tuple(zip(outcomes, speculations, strict=True)))

    def _grow(self, row: PrespeculateRow, outcomes: list[Outcome]) -> list[Tokens]:
        """Continue every outcome by `lookahead` tokens, all at once."""
        # After k accepted tokens the last trunk token seen is the k-th drafted one.
        forks = [row.context - 1 + k for k, _ in outcomes]
        tree = self.runner.open_tree(row.slot, forks, row.lookahead)
        tokens = torch.tensor([bonus for _, bonus in outcomes], device=self.runner.device)
        steps: list[list[int]] = []
        for _ in range(row.lookahead):
            tokens = self._tree_step(tree, tokens, "tree")
            steps.append(tokens.tolist())
        self.runner.close_tree(tree)
        return list(zip(*steps, strict=True))

    def _tree_step(self, tree: Tree, tokens: Tensor, name: str) -> Tensor:
        """One stamped step of every branch; returns the best token after each."""
        start, fed = time.perf_counter(), self.runner.fed
        best = self.runner.tree_forward(tree, tokens).argmax(dim=-1)
        best[0].item()  # the stamp below is of done work, also where kernels run asynchronously
        self._stamp(name, start, fed)
        return best

    def _probe(self, probe: Probe) -> ProbeResult:
        if self._synthetic != (probe.batch, probe.context):
            self.runner.install_synthetic(PROBE_SLOT, probe.batch, probe.context)
            self._synthetic = (probe.batch, probe.context)
        for _ in range(probe.warmup + probe.repeats):
            if self.stopped():
                break
            self._probe_once(probe)
            self.runner.rollback(PROBE_SLOT, probe.context)
        return ProbeResult(tuple(step.end - step.start for step in self.steps[probe.warmup :]))

    def _probe_once(self, probe: Probe) -> None:
        """One stamped step, by the very code of the real operations."""
        chain = [0] * probe.new_tokens
        if probe.kind == "tree":
            # One step whose cache is as long as the trunk and the branches' tokens so far together.
            tree = self.runner.open_tree(PROBE_SLOT, [probe.context - 1] * probe.branches, 1)
            tokens = torch.zeros(probe.branches, dtype=torch.long, device=self.runner.device)
            self._tree_step(tree, tokens, "probe")
            self.runner.close_tree(tree)
        elif probe.kind == "prefill":
            self._fill("probe", PROBE_SLOT, chain)
        elif probe.top:
            self._glue("probe", PROBE_SLOT, chain, (probe.top,) * probe.new_tokens)
        else:
            self._choose("probe", PROBE_SLOT, chain)

    def _fill(self, name: str, slot: int, tokens: Sequence[int]) -> None:
        """One stamped step that fills the cache and selects nothing."""
        start, fed = time.perf_counter(), self.runner.fed
        self.runner.forward(slot, tokens, last_only=True)
        self._stamp(name, start, fed)

    def _glue(self, name: str, slot: int, tokens: Sequence[int], fanout: tuple[int, ...]) -> list[Outcome]:
        """One stamped step: feed the last committed token and the drafted ones, choose the outcomes."""
        start, fed = time.perf_counter(), self.runner.fed
        logits = self.runner.forward(slot, tokens)
        # One more than the fan-out, since the rejected token is left out.
        ranked = top_tokens(logits, max(fanout[: len(tokens)]) + 1)[: len(tokens)]
        outcomes = prepared_outcomes(ranked, tokens[1:], fanout)
        self._stamp(name, start, fed)
        return outcomes

    def _choose(self, name: str, slot: int, tokens: Sequence[int]) -> list[int]:
        """One stamped step: feed `tokens` and take the best token after each."""
        start, fed = time.perf_counter(), self.runner.fed
        best = best_tokens(self.runner.forward(slot, tokens))
        self._stamp(name, start, fed)
        return best

    def _rewind(self, slot: int, context: int, tail: Tokens) -> None:
        """Roll back to the committed text but its last token."""
        keep = agreement(self.runner.held(slot), context, tail)
        if keep != context - 1:
            raise AuditError(
                f"slot {slot} holds {keep} tokens of a text of {context}; {context - 1} expected"
            )
        self.runner.rollback(slot, keep)

    def _stamp(self, name: str, start: float, fed_before: int) -> None:
        self.steps.append(Step(name, start, time.perf_counter(), self.runner.fed - fed_before))

    def _audit_fed(self, expected: int, name: str) -> None:
        """A verification that recomputed its prefix would answer the same, only slower: count instead."""
        fed = sum(step.tokens for step in self.steps)
        if fed != expected:
            raise AuditError(f"{name} fed {fed} tokens to the model instead of {expected}")
