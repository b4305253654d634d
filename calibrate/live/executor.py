"""Executes messages on a `ModelRunner`: what each operation means in forwards.

Every step is one forward for all rows of the message, wherever each of them is.  Only worker processes
(and tests) import this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrate.live.accelerators import synchroniser
from calibrate.live.arena import LawReader, LawWriter
from calibrate.live.choice import law, top_tokens
from calibrate.live.drafting import Pen
from calibrate.live.errors import AuditError
from calibrate.live.handlers import handler_of
from calibrate.live.messages import (
    ContinueRows,
    Drafted,
    DraftRows,
    Echo,
    Message,
    Outcome,
    PrefillRows,
    Prepared,
    PrespeculateRows,
    Probe,
    ProbeResult,
    Reply,
    Row,
    RowwiseRows,
    SettleRows,
    Step,
    Tokens,
    Verified,
    VerifyRows,
)
from calibrate.live.outcomes import agreement, cut, judge, prepared_outcomes
from calibrate.live.runner import ModelRunner
from calibrate.live.tree import Tree
from calibrate.live.verification import Proposals, judge_chains


def never() -> bool:
    """A stop request that never comes."""
    return False


class Executor:
    """Runs one message at a time and stamps each of its model calls.

    Args:
        runner: The model.
        end_token_ids: Tokens that end a request; used by verifications.
        stopped: Polled between steps: whether the running message was asked to stop.
        writer: Where a draft keeps the laws of sampled tokens.
        reader: Where a target finds them.

    Attributes:
        steps: Model calls of the last message, in order.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        end_token_ids: Collection[int] = (),
        stopped: Callable[[], bool] = never,
        writer: LawWriter | None = None,
        reader: LawReader | None = None,
    ) -> None:
        self.runner = runner
        self.end_token_ids = frozenset(end_token_ids)
        self.stopped = stopped
        self.writer = writer
        self.reader = reader or LawReader()
        self.steps: list[Step] = []
        self.announce: Callable[[Reply], None] = lambda reply: None
        """Takes what an operation says on its way."""
        self.kept: dict[str, Any] = {}
        """What handlers keep between operations, by a name of theirs (a datastore, an adapter)."""
        self._open: dict[int, tuple[int, int, Tensor]] = {}
        self._probed: tuple[range, int] | None = None
        self._slots = 0
        self._synchronise = synchroniser(runner.device)

    @torch.inference_mode()
    def execute(self, message: Message) -> Reply:
        """Do what a message says.

        Raises:
            AuditError: The message does not fit what a slot holds, more was fed than it needs, or a law of
                sampled tokens is missing or is another's.
        """
        self.steps = []
        match message:
            case PrefillRows():
                self._prefill(message)
                return None
            case VerifyRows():
                return self._verify(message)
            case SettleRows():
                return self._settle(message)
            case DraftRows():
                return self._draft(message)
            case PrespeculateRows():
                return self._prespeculate(message)
            case ContinueRows():
                return self._continue(message)
            case RowwiseRows():
                return handler_of(message.kind)(self, message)
            case Probe():
                return self._probe(message)
            case Echo():
                return message.payload

    def _prefill(self, message: PrefillRows) -> None:
        for slot in message.slots:
            self.runner.reset(slot)
            self._open.pop(slot, None)
        self._slots = max(self._slots, 1 + max(message.slots))
        longer = [i for i, prompt in enumerate(message.prompts) if len(prompt) > 1]
        if longer:
            self._fill(
                "prefill", [message.slots[i] for i in longer], [message.prompts[i][:-1] for i in longer]
            )

    def _verify(self, message: VerifyRows) -> tuple[Verified, ...]:
        rows = message.rows
        for row in rows:
            self.rewind(row)
        chains = [(row.tail[-1], *row.tokens) for row in rows]
        start, fed = time.perf_counter(), self.runner.fed
        logits = self.runner.forward([row.slot for row in rows], chains)
        if message.sampling.greedy and not message.leave_open:
            best = logits.argmax(dim=-1).tolist()
            verified = [
                judge(row.tokens, judged[: len(row.tokens) + 1], row.room, self.end_token_ids)
                for row, judged in zip(rows, best, strict=True)
            ]
        else:
            verified = self._verify_sampled(message, law(logits, message.sampling))
        self.stamp("verify", start, fed, chains)
        self.audit_fed(sum(map(len, chains)), "Verify")
        return tuple(verified)

    def _verify_sampled(self, message: VerifyRows, p: Tensor) -> list[Verified]:
        """As `_verify`, from the target's laws [R, n, V]; keeps those of positions that stay open."""
        proposals = Proposals(message.rows, message.sampling, p.shape[-1], self.reader)
        leave_open = np.full(len(message.rows), message.leave_open)
        verified = []
        for i, (row, run, bonus) in enumerate(
            zip(message.rows, *judge_chains(p, proposals, leave_open), strict=True)
        ):
            verified.append(cut(row.tokens[:run], bonus, row.room, self.end_token_ids))
            if bonus is None and not verified[-1].ended:
                self._open[row.slot] = (row.request, row.position + run, p[i, run].clone())
        return verified

    def _settle(self, message: SettleRows) -> tuple[Verified, ...]:
        """No forward: the laws of open positions were kept."""
        rows = message.rows
        if not rows:
            return ()
        p = self.open_laws(rows)[:, None]
        proposals = Proposals(rows, message.sampling, p.shape[-1], self.reader)
        _, following = judge_chains(p, proposals, proposals.lengths > 0)
        return tuple(
            cut((), row.tokens[0] if bonus is None else bonus, row.room, self.end_token_ids)
            for row, bonus in zip(rows, following, strict=True)
        )

    def open_laws(self, rows: Sequence[Row]) -> Tensor:
        """[R, V] the target's laws at positions that a verification left open; they are given out once.

        Args:
            rows: `position` is the open one.

        Raises:
            AuditError: That position is not open.
        """
        laws = []
        for row in rows:
            request, position, p = self._open.pop(row.slot, (-1, -1, None))
            if p is None or (request, position) != (row.request, row.position):
                raise AuditError(
                    f"slot {row.slot} has no open position {row.position} of request {row.request}"
                )
            laws.append(p)
        return torch.stack(laws)

    def _draft(self, message: DraftRows) -> tuple[Drafted, ...]:
        rows = message.rows
        keeps = [agreement(self.runner.held(row.slot), row.context, row.tail) for row in rows]
        for row, keep, unseen in zip(rows, keeps, message.unseen, strict=True):
            if row.context - keep != unseen:
                raise AuditError(
                    f"Draft was told of {unseen} unseen tokens but has to feed {row.context - keep}"
                )
        if self.stopped():
            return tuple(Drafted(()) for _ in rows)
        for row, keep in zip(rows, keeps, strict=True):
            self.runner.rollback(row.slot, keep)
        feeds = [row.tail[-unseen:] for row, unseen in zip(rows, message.unseen, strict=True)]
        pen = self._pen(message, [(row.request, row.position) for row in rows])
        return self._extend(rows, feeds, pen, stoppable=True)

    def _continue(self, message: ContinueRows) -> tuple[Drafted, ...]:
        feeds: list[Tokens] = []
        for row in message.rows:
            keep = agreement(self.runner.held(row.slot), row.context, row.tail, row.tokens)
            feeds.append((*row.tail, *row.tokens)[keep - (row.context - len(row.tail)) :])
            if len(feeds[-1]) != 1:
                raise AuditError(
                    f"Continue has to feed {len(feeds[-1])} tokens; after a round it is always 1"
                )
            self.runner.rollback(row.slot, keep)
        pen = self._pen(message, [(row.request, row.position + len(row.tokens)) for row in message.rows])
        return self._extend(message.rows, feeds, pen, stoppable=False)

    def _extend(
        self, rows: Sequence[Row], feeds: Sequence[Tokens], pen: Pen, *, stoppable: bool
    ) -> tuple[Drafted, ...]:
        """Feed tokens, then draft; `pen.depth` tokens per row in all, fewer if stopped."""
        slots = [row.slot for row in rows]
        columns: list[list[int]] = []
        chains: Sequence[Sequence[int]] = feeds
        while len(columns) < pen.depth and not (columns and stoppable and self.stopped()):
            start, fed = time.perf_counter(), self.runner.fed
            logits = self.runner.forward(slots, chains, last_only=True)[:, 0]
            columns.append(pen.choose(logits).tolist())
            self.stamp("draft" if len(columns) > 1 else "feed", start, fed, chains)
            chains = [(token,) for token in columns[-1]]
        return _drafted(columns, pen)

    def _prespeculate(self, message: PrespeculateRows) -> tuple[Prepared, ...]:
        for row in message.rows:
            self.rewind(row)
        outcomes = self._glue("glue", message)
        if message.announce:
            self.announce(tuple(Prepared(tuple((o, Drafted(())) for o in found)) for found in outcomes))
        grown = [i for i, found in enumerate(outcomes) if found]
        speculations: dict[int, list[Drafted]] = {i: [] for i in range(len(outcomes))}
        if grown:
            drafted = iter(self.grow(message, grown, [outcomes[i] for i in grown]))
            for i in grown:
                speculations[i] = [next(drafted) for _ in outcomes[i]]
        branches = sum(map(len, outcomes))
        trunks = sum(1 + len(row.tokens) for row in message.rows)
        steps = message.lookahead
        if message.announce:  # then it may have been stopped
            steps = sum(step.name == "tree" for step in self.steps)
        self.audit_fed(trunks + steps * branches, "Prespeculate")
        return tuple(
            Prepared(tuple(zip(found, speculations[i], strict=True))) for i, found in enumerate(outcomes)
        )

    def grow(
        self, message: PrespeculateRows, grown: Sequence[int], outcomes: Sequence[Sequence[Outcome]]
    ) -> tuple[Drafted, ...]:
        """Continue every outcome of the rows `grown` by `lookahead` tokens, all at once.

        Returns:
            The speculation of each outcome, row after row.
        """
        rows = [message.rows[i] for i in grown]
        # After k accepted tokens the last trunk token seen is the k-th drafted one.
        forks = [[row.context - 1 + k for k, _ in found] for row, found in zip(rows, outcomes, strict=True)]
        tree = self.runner.open_tree([row.slot for row in rows], forks, message.lookahead)
        tokens, real = self._branches([[bonus for _, bonus in found] for found in outcomes])
        # The verified token of an outcome has the position after its k accepted ones; this is the next one.
        keys = [
            (row.request, row.position + k + 1)
            for row, found in zip(rows, outcomes, strict=True)
            for k, _ in found
        ]
        pen = self._pen(message, keys)
        columns: list[list[int]] = []
        while len(columns) < message.lookahead and not (message.announce and self.stopped()):
            columns.append(self._tree_step("tree", tree, tokens, real, pen))
        self.runner.close_tree(tree)
        if len(columns) < message.lookahead:  # nobody will ask for these
            return (Drafted(()),) * len(keys)
        return _drafted(columns, pen)

    def _branches(self, tokens: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """[R, N] tokens, and which of them are real; None if all are."""
        width = max(map(len, tokens))
        padded = [[*row, *[0] * (width - len(row))] for row in tokens]
        table = torch.tensor(padded, dtype=torch.long, device=self.runner.device)
        if min(map(len, tokens)) == width:
            return table, None
        counts = torch.tensor([len(row) for row in tokens], device=self.runner.device)
        return table, torch.arange(width, device=self.runner.device) < counts[:, None]

    def _tree_step(self, name: str, tree: Tree, tokens: Tensor, real: Tensor | None, pen: Pen) -> list[int]:
        """One stamped step of every branch; overwrites `tokens` [R, N] by the next ones.

        Returns:
            The next token of every real branch, row after row.
        """
        start, fed = time.perf_counter(), self.runner.fed
        logits = self.runner.tree_forward(tree, tokens)
        chosen = pen.choose(logits.flatten(0, 1) if real is None else logits[real])
        if real is None:
            tokens.copy_(chosen.view(tokens.shape))
        else:
            tokens[real] = chosen
        # The stamp below is of done work, also where kernels run asynchronously.
        column: list[int] = chosen.tolist()
        self.stamp(name, start, fed, [range(count) for count in tree.counts])
        return column

    def _glue(self, name: str, message: PrespeculateRows) -> list[list[Outcome]]:
        """One stamped step: feed the last committed token and the drafted ones, choose the outcomes."""
        rows = message.rows
        chains = [(row.tail[-1], *row.tokens) for row in rows]
        counts = [len(chain) for chain in chains]
        start, fed = time.perf_counter(), self.runner.fed
        logits = self.runner.forward([row.slot for row in rows], chains)
        flat = torch.cat([logits[i, :count] for i, count in enumerate(counts)])
        # One more than the fan-out, since the rejected token is left out.
        most = 1 + max(max(fanout[:n]) for fanout, n in zip(message.fanouts, counts, strict=True))
        ranked = iter(top_tokens(flat, most))
        outcomes = [
            prepared_outcomes(
                [next(ranked) for _ in range(count)],
                row.tokens,
                fanout,
                keep_rejected=message.keep_rejected,
                part=message.part,
            )
            for row, count, fanout in zip(rows, counts, message.fanouts, strict=True)
        ]
        self.stamp(name, start, fed, chains)
        return outcomes

    def _pen(
        self, message: DraftRows | ContinueRows | PrespeculateRows, keys: Sequence[tuple[int, int]]
    ) -> Pen:
        """What chooses tokens from the positions `keys` (request, position) on."""
        return Pen(
            [request for request, _ in keys],
            [position for _, position in keys],
            message.lookahead,
            message.sampling,
            shape=None if isinstance(message, ContinueRows) else message.shape,
            writer=self.writer,
        )

    def _probe(self, probe: Probe) -> ProbeResult:
        if self._probed is None or self._probed[0].start < self._slots:
            self._probed = None  # a request was given one of these slots since
        slots = range(self._slots, self._slots + probe.batch)
        if self._probed != (slots, probe.context):
            self.runner.install_synthetic(slots, probe.context)
            self._probed = (slots, probe.context)
        for _ in range(probe.warmup + probe.repeats):
            if self.stopped():
                break
            self._probe_once(probe, slots)
            for slot in slots:
                self.runner.rollback(slot, probe.context)
        return ProbeResult(tuple(step.end - step.start for step in self.steps[probe.warmup :]))

    def _probe_once(self, probe: Probe, slots: Sequence[int]) -> None:
        """One stamped step, by the very code of the real operations."""
        chain = (0,) * probe.new_tokens
        rows = [Row(slot, 0, 0, probe.context + 1, (0,), tokens=chain[1:]) for slot in slots]
        if probe.kind == "tree":
            # One step whose cache is as long as the trunk and the branches' tokens so far together.
            forks = [[probe.context - 1] * probe.branches] * probe.batch
            tree = self.runner.open_tree(slots, forks, 1)
            tokens, real = self._branches([[0] * probe.branches] * probe.batch)
            keys = [0] * (probe.batch * probe.branches)
            self._tree_step("probe", tree, tokens, real, Pen(keys, keys, 1))
            self.runner.close_tree(tree)
        elif probe.kind == "prefill":
            self._fill("probe", slots, [chain] * probe.batch)
        elif probe.top:
            fanouts = ((probe.top,) * probe.new_tokens,) * probe.batch
            self._glue("probe", PrespeculateRows(tuple(rows), 1, fanouts))
        else:
            start, fed = time.perf_counter(), self.runner.fed
            self.runner.forward(slots, [chain] * probe.batch).argmax(dim=-1).tolist()
            self.stamp("probe", start, fed, [chain] * probe.batch)

    def _fill(self, name: str, slots: Sequence[int], chains: Sequence[Sequence[int]]) -> None:
        """One stamped step that fills the cache and selects nothing."""
        start, fed = time.perf_counter(), self.runner.fed
        logits = self.runner.forward(slots, chains, last_only=True)
        logits[0, 0, 0].item()  # as in `_tree_step`: the stamp is of done work
        self.stamp(name, start, fed, chains)

    def rewind(self, row: Row) -> None:
        """Roll back to the committed text but its last token."""
        keep = agreement(self.runner.held(row.slot), row.context, row.tail)
        if keep != row.context - 1:
            raise AuditError(
                f"slot {row.slot} holds {keep} tokens of a text of {row.context}; {row.context - 1} expected"
            )
        self.runner.rollback(row.slot, keep)

    def stamp(self, name: str, start: float, fed_before: int, new: Sequence[Sequence[int]]) -> None:
        """Note a step that fed the tokens (or the branches) `new` of each row; waits until it is done."""
        self._synchronise()
        end, fed = time.perf_counter(), self.runner.fed - fed_before
        self.steps.append(Step(name, start, end, fed, len(new), max(map(len, new))))

    def audit_fed(self, expected: int, name: str) -> None:
        """A verification that recomputed its prefix would answer the same, only slower: count instead."""
        fed = sum(step.tokens for step in self.steps)
        if fed != expected:
            raise AuditError(f"{name} fed {fed} tokens to the model instead of {expected}")


def _drafted(columns: Sequence[Sequence[int]], pen: Pen) -> tuple[Drafted, ...]:
    """The tokens of each text, from those of each step."""
    return tuple(
        Drafted(tokens, handle) for tokens, handle in zip(zip(*columns, strict=True), pen.seal(), strict=True)
    )
