"""DOUBLE in a world of coins: an iid acceptance, and retrievals that match a geometric number of tokens.

The papers' world: a drafted token is right with probability a, however it was drafted, and a retrieval
forward yields AMT matched tokens on average (`double.eq2`), less where the retrieval length or the end of the
request cuts it.  Tokens have no ids there; RIGHT and WRONG stand for what the target would emit and for
anything else, which is all that `policies.double` compares.
"""

from __future__ import annotations

import math

from policies.config import SettingError
from policies.double import (
    Ask,
    Guide,
    Retrieval,
    RetrievalDrafted,
    RetrievingDraft,
    RetrievingVerify,
    Tokens,
    Verified,
)
from policies.operation import VerdictReply
from policies.sampling import keyed_uniforms
from policies.values import NO_HANDLE, UNKNOWN, RowVerdict
from simulator.synthetic import rows_of, synthesises
from simulator.tokens.model import TokenModel

RIGHT, WRONG = 1, 0


@synthesises(RetrievingDraft)
def draft(operation: RetrievingDraft, tokens: TokenModel) -> list[RetrievalDrafted]:
    """Replies of `RetrievingDraft`."""
    how, seed, replies = operation.retrieval, operation.sampling.seed, []
    for _, request, position, room, ask in rows_of(operation):
        ahead, most = len(ask.pending), room - len(ask.pending)
        matched: list[int] = []
        found: list[int] = []
        done = 0
        while len(matched) < operation.lookahead and done < most:
            span = min(how.span, most - done - 1)
            matched.append(_matched(how, "draft", (seed, request, position + ahead + done), span))
            found.append(span)
            done += matched[-1] + 1
        work = tuple(("draft", (1 if i else _unfed(ask, position)) + span) for i, span in enumerate(found))
        drafted = _coins(tokens, request, position + ahead, done)
        replies.append(RetrievalDrafted(drafted, NO_HANDLE, tuple(matched), tuple(found), work))
    return replies


@synthesises(RetrievingVerify)
def verify(operation: RetrievingVerify, tokens: TokenModel) -> list[Verified]:
    """Replies of `RetrievingVerify`."""
    replies = []
    for _, request, position, room, ask in rows_of(operation):
        right, count = _right(ask.pending), len(ask.pending)
        span = max(0, min(operation.retrieval.span, room - count - 1))
        work = (("verify", 1 + count + span),)
        whole = right == count
        if whole and operation.leave_open and count < room:
            replies.append(Verified(_verdict(count, count, room), span, True, work))
            continue
        matched = _confirmed(operation, request, position + count, room - count) if whole else 0
        replies.append(Verified(_verdict(right, right + matched + 1, room), span, False, work))
    return replies


@synthesises(Guide)
def guide(operation: Guide, tokens: TokenModel) -> list[VerdictReply]:
    """Replies of `Guide`: X_q is judged as far as the retrieved tokens are right, and one token more."""
    replies = []
    for _, request, position, whole_room, question in rows_of(operation):
        drafted, room = question.tokens, whole_room - question.behind
        matched = _confirmed(operation, request, position + question.behind, room)
        right = min(_right(drafted), matched + 1)
        if right == len(drafted) <= matched:  # it ends on the retrieved tokens: the rest of the guidance
            verdict = _verdict(right, matched + 1, room)
        elif right == matched + 1:  # beyond them nothing is known
            verdict = _verdict(right, right, room)
        else:
            verdict = _verdict(right, right + 1, room)
        replies.append(VerdictReply(verdict, (("guide", 0),)))
    return replies


def _unfed(ask: Ask, position: int) -> int:
    """Tokens that the draft has not processed: its own last one, or what the target put in its place."""
    if position == 0:
        return 1
    extended = bool(ask.agreed) and not ask.rejected and not ask.pending
    return max(1, len(ask.news) - ask.agreed) + extended


def _coins(tokens: TokenModel, request: int, position: int, count: int) -> Tokens:
    """Drafted tokens; behind a wrong one all are."""
    run = int(tokens.run[tokens.starts[request] + position]) if count else 0
    return tuple(RIGHT if i < run else WRONG for i in range(count))


def _right(drafted: Tokens) -> int:
    """Drafted tokens before the first wrong one."""
    return drafted.index(WRONG) if WRONG in drafted else len(drafted)


def _confirmed(operation: RetrievingVerify | Guide, request: int, position: int, room: int) -> int:
    """Retrieved tokens that the target confirms, where `room` tokens may still be emitted."""
    how = operation.retrieval
    key = (operation.sampling.seed, request, position)
    return _matched(how, "target", key, min(how.span, room - 1))


def _matched(how: Retrieval, who: str, key: tuple[int, int, int], most: int) -> int:
    """Matched tokens of a retrieval: P(at least s) = (AMT / (1 + AMT))^s, cut at `most`.

    Raises:
        SettingError: Coins were not told how many match.
    """
    if how.span and how.matched is None:
        raise SettingError(
            "coin tosses do not tell how long a retrieval matches: give --matched-length, the mean number of "
            "matched tokens (AMT), or a decision trace (`calibrate decide`, then --decisions)"
        )
    if most < 1 or not how.matched:
        return 0
    level = float(keyed_uniforms(key[0], f"matched-{who}", *key[1:]))
    return min(most, int(math.log1p(-level) / math.log(how.matched / (1.0 + how.matched))))


def _verdict(right: int, emitted: int, room: int) -> RowVerdict:
    """`emitted` right tokens, of which `right` were drafted, cut at the limit."""
    kept = min(emitted, room)
    bonus = RIGHT if right < emitted <= room else UNKNOWN
    return RowVerdict(min(right, kept), (RIGHT,) * kept, kept == room, bonus)
