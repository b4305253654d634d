"""Choosing tokens: distributions, draws by inverse distribution function, acceptance, residuals; and the
sampler of drafted tokens, whose distributions are kept for the verification.

All but the sampler are pure functions of tensors and of uniforms.  The target's distributions are float64: a
residual is a difference of nearly equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import Block, ProbsWriter
from policies.sampling import GREEDY, FloatArray, Sampling, keyed_uniforms
from policies.values import NO_HANDLE, BoolArray, IntArray

# Streams of `policies.sampling.keyed_uniforms`, keyed by request and position.  Whatever decides a position
# draws from each stream once, and nothing of a draw is seen before its position is reached.
DRAFTED = "draft-token"
ACCEPTED = "acceptance"
BONUS = "bonus-token"

FIRST_LOOK = 256
"""Most likely tokens among which top-p is looked for first."""
GROUP = 64
"""Tokens whose weights are summed up first when one is drawn."""


def token_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """[..., V] float64: softmax(logits / temperature), cut by top-p and renormalised; one-hot if greedy."""
    if sampling.greedy:
        return one_hot(logits.argmax(dim=-1), logits.shape[-1])
    return cut_top_p(torch.softmax(logits.double() / sampling.temperature, dim=-1), sampling.top_p)


def drafted_weights(logits: Tensor, sampling: Sampling, top: int = 0) -> Tensor:
    """[n, V] float32 weights, not normalised, that a draft draws its next tokens by.

    What is kept is what is drawn from, to the last bit, so that single precision is as lossless as any other;
    it halves the memory that every branch of every step goes through.  `top` is F_k of Saguaro sampling.
    """
    if sampling.top_p < 1.0:
        return rescale(token_probs(logits, sampling), logits, top, sampling.scale).float()
    shifted = logits.float() - logits.amax(dim=-1, keepdim=True).float()
    weights = shifted.div_(sampling.temperature).exp_()
    return rescale(weights, logits, top, sampling.scale)


def cut_top_p(probs: Tensor, top_p: float) -> Tensor:
    """[..., V] renormalised over the smallest set of most likely tokens whose mass reaches `top_p`.

    Of equally likely tokens those with the lower ids come first.
    """
    if top_p >= 1.0:
        return probs
    size = probs.shape[-1]
    # A few hundred tokens usually hold the mass; sorting all of a large vocabulary would cost more than the
    # model's own forward.
    masses = probs.topk(min(FIRST_LOOK, size), dim=-1).values
    if masses.shape[-1] < size and not bool((masses.sum(dim=-1) >= top_p).all()):
        masses = probs.sort(dim=-1, descending=True).values
    before = masses.cumsum(dim=-1) - masses
    count = (before < top_p).sum(dim=-1, keepdim=True).clamp_(min=1)
    kept = torch.where(_best(probs, masses.gather(-1, count - 1), count), probs, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def rescale(weights: Tensor, logits: Tensor, top: int, scale: float) -> Tensor:
    """[n, V] Saguaro's weights: those of the `top` best tokens of the draft's ranking times `scale`.

    Where that leaves nothing (scale 0, and all weight within the best), they stay as they are.  `logits`
    [n, V] rank the tokens, the lower id first among equals.  Every branch of every step goes through here:
    few numbers are touched, and the vocabulary only once.
    """
    if top == 0 or scale == 1.0:
        return weights
    size = logits.shape[-1]
    values, ids = logits.topk(min(top + 1, size), dim=-1)
    if top < size and bool((values[:, top - 1] == values[:, top]).any()):
        scaled = torch.where(best_mask(logits, top), weights * scale, weights)
    else:
        best = ids[:, :top]
        scaled = weights.scatter(-1, best, weights.gather(-1, best) * scale)
    if scale > 0.0:
        return scaled
    return torch.where(scaled.sum(dim=-1, keepdim=True) > 0.0, scaled, weights)


def top_tokens(logits: Tensor, count: int) -> list[list[int]]:
    """[n][count] the most likely tokens by logits [n, V], best first; lower ids first among equals.

    There are no more than V.
    """
    size = logits.shape[-1]
    count = min(count, size)
    with torch.inference_mode():
        values, ids = logits.topk(min(count + 1, size), dim=-1)
        # torch.topk breaks ties arbitrarily; only a strictly falling prefix, including the first value
        # left out, is sure to be in order.  Else fall back to a stable sort of the whole row.
        if not bool((values[:, 1:] < values[:, :-1]).all()):
            ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices
        ranked: list[list[int]] = ids[:, :count].tolist()
        return ranked


def best_mask(logits: Tensor, top: int) -> Tensor:
    """[n, V] whether each token is among the `top` best, the lower id first among equals.

    Without sorting the vocabulary, which would cost more than the rest of a draw.
    """
    last = logits.topk(min(top, logits.shape[-1]), dim=-1).values[..., -1:]
    return _best(logits, last, top)


def _best(scores: Tensor, last: Tensor, count: Tensor | int) -> Tensor:
    """[..., V] the `count` best of `scores`, of which the worst has the score `last` [..., 1]."""
    above, level = scores > last, scores == last
    room = count - above.sum(dim=-1, keepdim=True)
    if bool((level.sum(dim=-1, keepdim=True) <= room).all()):
        return above | level
    return above | (level & (level.cumsum(dim=-1) <= room))


def draw(weights: Tensor, uniforms: FloatArray) -> Tensor:
    """[n] tokens of the distributions proportional to `weights`, by inverse distribution function.

    A token of weight 0 is never drawn.  Sums are float64; first over groups of tokens, then within the one
    that was hit, since a running sum over a whole vocabulary costs more than all else here.

    Args:
        weights: [n, V], non-negative; need not sum to 1.
        uniforms: [n] in [0, 1).
    """
    count, size = weights.shape
    width = GROUP if size % GROUP == 0 else size
    groups = weights.view(count, size // width, width)
    masses = groups.sum(dim=-1, dtype=torch.float64)
    heights = masses.cumsum(dim=-1)
    levels = torch.as_tensor(uniforms, device=weights.device)[:, None] * heights[:, -1:]
    # The first group, then token, whose height exceeds the level, strictly: weight 0 adds no height.
    hit = torch.searchsorted(heights, levels, right=True).clamp_(max=masses.shape[1] - 1)
    rest = levels - (heights - masses).gather(1, hit)
    inside = groups[torch.arange(count, device=weights.device), hit[:, 0]].double()
    offset = torch.searchsorted(inside.cumsum(dim=-1), rest, right=True)
    # Both sums round differently: a level just below a group's end may lie above its last token's height.
    last = width - 1 - (inside > 0.0).flip(-1).to(torch.uint8).argmax(dim=-1, keepdim=True)
    tokens: Tensor = (hit * width + torch.minimum(offset, last))[:, 0]
    return tokens


def accepted_run(p: FloatArray, sigma: FloatArray, uniforms: FloatArray, lengths: IntArray) -> IntArray:
    """[R] drafted tokens accepted: each with probability min(1, p / sigma), up to the first rejection.

    Strictly: a token that the target cannot emit is not accepted, whatever the uniform.

    Args:
        p: [R, m] the target's probability of each drafted token.
        sigma: [R, m] its probability under the distribution that it was drawn from.
        uniforms: [R, m] in [0, 1).
        lengths: [R] drafted tokens of each row.
    """
    within: BoolArray = np.arange(p.shape[1]) < lengths[:, None]
    passed = within & (uniforms * sigma < p)
    run: IntArray = np.cumprod(passed, axis=1, dtype=np.int64).sum(axis=1)
    return run


def residual(p: Tensor, sigma: Tensor) -> Tensor:
    """[n, V] weights of the token after a rejection: (p - sigma)+, not normalised (`draw` does).

    Where sigma = p nothing is ever rejected but by a rounding error; then p itself.
    """
    left = (p - sigma).clamp_(min=0.0)
    return torch.where(left.sum(dim=-1, keepdim=True) > 0.0, left, p)


def one_hot(tokens: Tensor, vocabulary: int) -> Tensor:
    """[..., V] float64 distributions that are sure of their token."""
    hot = torch.zeros((*tokens.shape, vocabulary), dtype=torch.float64, device=tokens.device)
    return hot.scatter_(-1, tokens[..., None], 1.0)


class DraftSampler:
    """Chooses the tokens of N texts, and keeps the distributions they were drawn from for the verification.

    A draw is keyed by request and position.  Branches of one request share it, as they share nothing else:
    at most one of them is what the target continues.

    Args:
        requests: [N] request of each text.
        positions: [N] position of the first token to be chosen.
        depth: Most tokens per text.
        sampling: How tokens are chosen.
        shape: F_0, F_1, ... for Saguaro sampling; None to draw from q itself.
        writer: Where distributions are kept; needed where tokens are drawn.
    """

    def __init__(
        self,
        requests: Sequence[int] | IntArray,
        positions: Sequence[int] | IntArray,
        depth: int,
        sampling: Sampling = GREEDY,
        *,
        shape: tuple[int, ...] | None = None,
        writer: ProbsWriter | None = None,
    ) -> None:
        if sampling.draft_sampled and writer is None:
            raise AuditError("this worker drafts at random but was given no memory for its distributions")
        self.requests = np.array(requests, dtype=np.int64)
        self.positions = np.array(positions, dtype=np.int64)
        self.depth = depth
        self.sampling = sampling
        self.shape = shape
        self.steps = 0
        self._writer = writer
        self._block: Block | None = None

    def choose(self, logits: Tensor) -> Tensor:
        """[N] the next token of every text, from its logits [N, V]."""
        step, self.steps = self.steps, self.steps + 1
        if not self.sampling.draft_sampled:
            return logits.argmax(dim=-1)
        weights = drafted_weights(logits, self.sampling, 0 if self.shape is None else self.shape[step])
        keys = self.requests, self.positions + step
        return self._drawn(weights, step, self._uniforms(*keys), *keys)

    def choose_at(
        self, logits: Tensor, texts: IntArray, offsets: IntArray, rounds: IntArray | None = None
    ) -> Tensor:
        """[n] the tokens `offsets` [n] of the texts `texts` [n], from their logits [n, V].

        Chosen again, a token takes the place of what was there; it has the same luck but where the `rounds`
        [n] in which it is chosen key that, too.
        """
        if not self.sampling.draft_sampled:
            return logits.argmax(dim=-1)
        weights = drafted_weights(logits, self.sampling)
        keys = (self.requests[texts], self.positions[texts] + offsets)
        uniforms = self._uniforms(*keys, *(() if rounds is None else (rounds,)))
        return self._drawn(weights, (texts, offsets), uniforms, *keys)

    def choose_siblings(self, logits: Tensor, texts: IntArray, width: int) -> Tensor:
        """[n * width] texts of one token each: `width` draws from each of the logits [n, V].

        The first one meets the luck that a chain's token would meet.
        """
        weights = drafted_weights(logits, self.sampling).repeat_interleave(width, dim=0)
        keys, later = (self.requests[texts], self.positions[texts]), np.arange(len(texts)) % width
        uniforms = np.where(later > 0, self._uniforms(*keys, later), self._uniforms(*keys))
        return self._drawn(weights, (texts, np.zeros_like(texts)), uniforms, *keys)

    def seal(self) -> list[int]:
        """[N] handle of each text's distributions; NO_HANDLE where nothing was drawn."""
        return [NO_HANDLE] * len(self.requests) if self._block is None else self._block.seal()

    def _uniforms(self, *keys: IntArray) -> FloatArray:
        return keyed_uniforms(self.sampling.seed, DRAFTED, *keys)

    def _drawn(
        self,
        weights: Tensor,
        places: int | tuple[IntArray, IntArray],
        uniforms: FloatArray,
        requests: IntArray,
        positions: IntArray,
    ) -> Tensor:
        tokens = draw(weights, uniforms)
        if self._block is None:
            assert self._writer is not None, "checked at the start"
            self._block = self._writer.reserve(len(self.requests), self.depth, weights.shape[-1])
        totals = weights.sum(dim=-1, dtype=torch.float64).cpu().numpy()
        owners = requests, positions, tokens.cpu().numpy()
        self._block.write(places, weights.cpu().numpy(), totals, owners)
        return tokens
