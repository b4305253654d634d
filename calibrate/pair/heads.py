"""Small heads of the pair's frozen models: one way to train, to measure and to keep them.

Heads learn from the pair's corpus while the weights of their model stay as they are.  What they are worth is
measured on what the model itself writes after held-out prompts, greedily and sampled.

*Early exits* of the target (Mirror-SD, appendix E.2) learn together; the loss is the mean over them of the
cross entropy of the next token (eq. 15).  Their worth is Omega_kappa of `mirror.eq9`, the mass that the
target puts on the exit's kappa likeliest tokens.

*Lookahead streams* of the draft (section 3.2) have the objective of speculative streaming: after every token
of a text, stream j predicts the token j places after the next one, by the cross entropy with the draft's own
distribution there.

*Drafting heads* of the target (`policies.heads`) learn its distributions too: Medusa head j that of the token
j places after the next one, and an EAGLE head, unrolled as it drafts (the training-time test of EAGLE-3),
those of its next `UNROLLED` ones.  EAGLE's own loss also pulls estimated states to the target's; here the
distributions alone do.  A *block draft* (`policies.block`) is the pair's draft, trained on for the same loss:
masks behind a text say its next tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from calibrate.pair.train import BATCH, WINDOW, Plan, Report, Streams, fit
from calibrate.pair.writing import written
from hardware_profiles.files import to_json

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance

    from calibrate.live.engine.additions import ExitHeads
    from calibrate.live.engine.heads import EagleHead, HydraHeads, MedusaHeads
    from calibrate.live.engine.streams import StreamHeads


OUTPUT = 96
"""Tokens that a model writes after a prompt, for the measures."""
_GROUP = 8

Heads = TypeVar("Heads")
"""The module that is trained."""
HeadReport = TypeVar("HeadReport", bound="DataclassInstance")
"""What is reported of one of the heads."""


@dataclass(frozen=True)
class HeadKind(Generic[Heads, HeadReport]):
    """A kind of heads.

    Attributes:
        name: Plural; of the checkpoint `<name>.pt` and of the report `<name>.json`.
        learning_rate: At its highest.
        first: Step of the corpus that the first batch is; the stages of a pair's build read lower ones.
        window: Tokens of each row of a batch.
        make: New heads of a model.
        loss: Of (model, heads, tokens [rows, window]), in nats.
        save: Writes heads of a model of so many layers into its folder.
        measure: A report per head from (model, heads, prompts) on texts `sampled` at temperature 1 or greedy.
    """

    name: str
    learning_rate: float
    first: int
    window: int
    make: Callable[[Any], Heads]
    loss: Callable[[Any, Heads, torch.Tensor], torch.Tensor]
    save: Callable[[Heads, int, Path], Path]
    measure: Callable[..., list[HeadReport]]


@dataclass(frozen=True)
class Training:
    """How long heads learn: at most so many steps of `rows` windows, and minutes.

    Without a limit in minutes the training repeats exactly.  The seed is that of the initial weights.
    """

    steps: int
    minutes: float | None = None
    rows: int = BATCH
    seed: int = 0


def train_heads(
    kind: HeadKind[Heads, HeadReport],
    model: Any,
    texts: Streams,
    checkpoint: Path,
    training: Training,
    *,
    report: Report,
) -> Heads:
    """Heads of `model` in single precision, whose own weights stay as they are; see `fit`."""
    import torch

    torch.manual_seed(training.seed)
    model.requires_grad_(False)
    heads = kind.make(model)

    def loss(step: int) -> torch.Tensor:
        return kind.loss(model, heads, texts.batch(kind.first + step, rows=training.rows, window=kind.window))

    plan = Plan(training.steps, kind.learning_rate, training.minutes, weight_decay=0.0)
    fit(heads, loss, plan, checkpoint, report)
    return heads


def build_heads(
    kind: HeadKind[Heads, HeadReport],
    folder: Path,
    work: Path,
    training: Training,
) -> list[HeadReport]:
    """Train heads of the model in `folder` on the corpus, and write them and their report beside it.

    The checkpoint is in `work`; a second call with it goes on.
    """
    from calibrate.corpus import collect, of_split
    from calibrate.live.loading import load_model, load_tokenizer
    from calibrate.pair.build import SEED, stage_bars
    from calibrate.pair.corpus import encode
    from calibrate.pair.train import encode_streams
    from calibrate.prompts import load_prompts
    from calibrate.shipped import PROMPTS

    work.mkdir(parents=True, exist_ok=True)
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    texts = encode_streams(tokenizer, of_split(collect(), "train"), seed=SEED)
    with stage_bars() as bars, bars(kind.name) as report:
        heads = train_heads(kind, model, texts, work / f"{kind.name}.pt", training, report=report)
    kind.save(heads, int(model.config.num_hidden_layers), folder)
    prompts = [encode(tokenizer, prompt.text) for prompt in load_prompts(PROMPTS["heldout"])]
    reports = [r for sampled in (False, True) for r in kind.measure(model, heads, prompts, sampled=sampled)]
    text = to_json([asdict(r) for r in reports], indent=2) + "\n"
    (folder / f"{kind.name}.json").write_text(text, encoding="utf-8")
    return reports


WIDTHS = (1, 2, 4, 8, 16)
"""Numbers kappa of candidates that the report is made for."""


@dataclass(frozen=True)
class ExitReport:
    """One exit, after `layer` of `layers`, on held-out prompts over what the target itself writes.

    Attributes:
        sampled: Whether the texts were sampled at temperature 1, else decoded greedily.
        positions: Positions measured.
        agreement: Share at which the exit's first choice is the target's.
        overlap: Omega_kappa, the target's mass on the exit's kappa likeliest tokens, by kappa: with greedy
            decoding the share of positions whose token is among them.
        ceiling: The same of a perfect exit: the target's mass on its own kappa likeliest (`mirror.prop2`).
    """

    layer: int
    layers: int
    sampled: bool
    positions: int
    agreement: float
    overlap: dict[int, float]
    ceiling: dict[int, float]

    @property
    def line(self) -> str:
        """For people."""
        how = "sampled" if self.sampled else "greedy"
        overlap = ", ".join(f"{kappa}: {mass:.3f}" for kappa, mass in self.overlap.items())
        return f"exit after {self.layer} of {self.layers} layers, {how}: Omega by kappa {overlap}"


def exit_states(target: Any, tokens: torch.Tensor, layers: Sequence[int]) -> list[torch.Tensor]:
    """[rows, window, H] what leaves each of the layers, from one forward of the frozen target."""
    import torch

    with torch.no_grad():
        states = target(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
    return [states[layer] for layer in layers]


def exit_losses(target: Any, heads: ExitHeads, batch: torch.Tensor) -> torch.Tensor:
    """Mean over the exits of the cross entropy of the next token, in nats (`mirror.eq15`)."""
    import torch

    from calibrate.pair.train import cross_entropy

    states = exit_states(target, batch, heads.layers)
    losses = [
        cross_entropy(target.lm_head(heads.adapted(layer, state)), batch)
        for layer, state in zip(heads.layers, states, strict=True)
    ]
    return torch.stack(losses).mean()


def exit_kind() -> HeadKind[ExitHeads, ExitReport]:
    """How exits are trained, measured and kept: adapters of all exits of a target."""
    from calibrate.live.engine.additions import ExitHeads, exit_layers, save_exits

    def make(target: Any) -> ExitHeads:
        return ExitHeads(int(target.config.hidden_size), exit_layers(int(target.config.num_hidden_layers)))

    return HeadKind("exits", 2e-3, 5_000_000, WINDOW, make, exit_losses, save_exits, measure_exits)


def measure_exits(
    target: Any, heads: ExitHeads, prompts: Sequence[Sequence[int]], *, sampled: bool, output: int = OUTPUT
) -> list[ExitReport]:
    """What each exit knows of the target's next token, along what the target writes after prompts."""
    import torch
    from torch.nn import functional

    at = [width - 1 for width in WIDTHS]
    sums = torch.zeros(len(heads.layers), 1 + 2 * len(WIDTHS), dtype=torch.float64)
    positions = 0
    for tokens, start, live in written(target, prompts, output, sampled=sampled, group=_GROUP):
        with torch.no_grad():
            logits = target(input_ids=tokens, use_cache=False).logits[:, start - 1 : -1]
            # [n, V] the target's distribution, one-hot where it decodes greedily.
            choice = functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
            probs = (logits.double().softmax(-1) if sampled else choice)[live]
            positions += len(probs)
            for row, (layer, state) in enumerate(
                zip(heads.layers, exit_states(target, tokens, heads.layers), strict=True)
            ):
                proxy = target.lm_head(heads.adapted(layer, state[:, start - 1 : -1]))[live]
                # Sums over positions: agreement, then Omega and its ceiling for each width.
                ranked = probs.gather(-1, proxy.topk(WIDTHS[-1], dim=-1).indices).cumsum(-1).sum(0)
                best = probs.topk(WIDTHS[-1], dim=-1).values.cumsum(-1).sum(0)
                agreed = (proxy.argmax(-1) == probs.argmax(-1)).sum().double()[None]
                sums[row] += torch.cat([agreed, ranked[at], best[at]])
    reports, layers = [], int(target.config.num_hidden_layers)
    for layer, row in zip(heads.layers, sums, strict=True):
        agreement, *means = (round(mean, 4) for mean in (row / positions).tolist())
        overlap = dict(zip(WIDTHS, means, strict=False))
        ceiling = dict(zip(WIDTHS, means[len(WIDTHS) :], strict=True))
        reports.append(ExitReport(layer, layers, sampled, positions, agreement, overlap, ceiling))
    return reports


@dataclass(frozen=True)
class StreamReport:
    """One stream on held-out prompts, over what the draft itself writes; `sampled` as in `ExitReport`.

    Attributes:
        stream: j; it predicts the token j places after the next one.
        agreement: Share at which its first choice is the token that the draft wrote there.
        run: Share at which those of all streams up to this one are: of the steps whose streams all get a
            token, the share that emits more than j of them.
        mass: Mean mass that it puts on that token.
    """

    stream: int
    sampled: bool
    positions: int
    agreement: float
    run: float
    mass: float

    @property
    def line(self) -> str:
        """For people."""
        how = "sampled" if self.sampled else "greedy"
        right = f"right {self.agreement:.3f}, with all before it {self.run:.3f}"
        return f"stream {self.stream}, {how}: {right}"


def stream_logits(draft: Any, heads: StreamHeads, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, n, V] and [rows, n, S, V] of the frozen draft and its streams on texts [rows, n]."""
    import torch

    from calibrate.live.engine.streams import stream_part, stream_positions, stream_sight

    rows, count = batch.shape
    places = np.arange(count)
    causal = (places > places[:, None])[None]
    sight = torch.from_numpy(stream_sight(causal, np.array([count]), heads.streams))
    mask = torch.zeros(sight.shape).masked_fill_(sight, torch.finfo(torch.float32).min)[:, None]
    with torch.no_grad():
        out = draft(input_ids=batch, use_cache=True, output_hidden_states=True)
    states = heads.entering(out.hidden_states[-2], heads.streams)
    logits = stream_part(draft, heads)(
        input_ids=states,
        attention_mask=mask.expand(rows, -1, -1, -1),
        position_ids=torch.from_numpy(stream_positions(places[None], heads.streams)).expand(rows, -1),
        past_key_values=out.past_key_values,
        use_cache=True,
    ).logits
    return out.logits, logits.view(rows, count, heads.streams, -1)


def stream_loss(draft: Any, heads: StreamHeads, batch: torch.Tensor) -> torch.Tensor:
    """Mean over streams of the cross entropy with the draft's distribution where each predicts, in nats."""
    import torch

    own, streamed = stream_logits(draft, heads, batch)
    losses = []
    for j in range(1, heads.streams + 1):
        probs = own[:, j:].softmax(-1)
        guess = streamed[:, : own.shape[1] - j, j - 1].log_softmax(-1)
        losses.append(-(probs * guess).sum(-1).mean())
    return torch.stack(losses).mean()


def stream_kind(streams: int) -> HeadKind[StreamHeads, StreamReport]:
    """How S streams are trained, measured and kept; 3 is the most that the paper names (Figure 6b).

    A window is shorter than a target's: each of its tokens is fed once more per stream.
    """
    from calibrate.live.engine.streams import StreamHeads, save_streams

    def make(draft: Any) -> StreamHeads:
        return StreamHeads(draft, streams)

    return HeadKind("streams", 1e-3, 7_000_000, 160, make, stream_loss, save_streams, measure_streams)


def measure_streams(
    draft: Any, heads: StreamHeads, prompts: Sequence[Sequence[int]], *, sampled: bool, output: int = OUTPUT
) -> list[StreamReport]:
    """How often each stream says what the draft writes after prompts."""
    import torch

    streams, positions = heads.streams, 0
    sums = torch.zeros(3, streams, dtype=torch.float64)
    for tokens, start, live in written(draft, prompts, output, sampled=sampled, group=_GROUP):
        with torch.no_grad():
            _, streamed = stream_logits(draft, heads, tokens)
        places = torch.arange(start - 1, tokens.shape[1] - 1 - streams)
        ahead = places[:, None] + 2 + torch.arange(streams)  # what stream j of a place predicts
        kept = live[:, ahead[:, -1] - start]
        logits, right = streamed[:, places][kept], tokens[:, ahead][kept]
        met = logits.argmax(-1) == right
        mass = logits.softmax(-1).gather(-1, right[..., None])[..., 0]
        sums += torch.stack([met.double().sum(0), met.double().cumprod(-1).sum(0), mass.double().sum(0)])
        positions += len(met)
    means = (sums / positions).tolist()
    return [
        StreamReport(j + 1, sampled, positions, *(round(row[j], 4) for row in means)) for j in range(streams)
    ]


UNROLLED = 4
"""Tokens ahead that an EAGLE head is trained for, and the number of Medusa heads."""
_DECAY = 0.8
"""Weight of a prediction against the one a token before (Medusa, section 2.2.1)."""


@dataclass(frozen=True)
class DraftingReport:
    """What drafting heads say of the token `ahead` places after the next one, after held-out prompts.

    Attributes:
        ahead: Position in a drafted chain, from 1.
        acceptance: Share at which the first choice is what the target wrote, where those before it were
            (`acceptance_at_position`).
        acceptance_any: The same of its four likeliest.
        right: Share at which it is what the target wrote, whatever those before it were.  What an EAGLE head
            on its own states knows behind `UNROLLED` tokens is what SSD's cache would hold.
        sampled: As in `ExitReport`.
    """

    ahead: int
    sampled: bool
    positions: int
    acceptance: float
    acceptance_any: float
    right: float

    @property
    def line(self) -> str:
        """For people."""
        how = "sampled" if self.sampled else "greedy"
        accepted = f"accepted {self.acceptance:.3f}, of four {self.acceptance_any:.3f}"
        return f"position {self.ahead}, {how}: {accepted}; right {self.right:.3f}"


def medusa_logits(target: Any, heads: MedusaHeads, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, n, V] of the target and [rows, n, J, V] of its Medusa heads on texts [rows, n]."""
    import torch

    with torch.no_grad():
        out = target(input_ids=batch, use_cache=False, output_hidden_states=True)
    return out.logits, target.lm_head(heads.states(out.hidden_states[-1]))


def hydra_logits(target: Any, heads: HydraHeads, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `medusa_logits`; a head reads the text's next tokens as those drafted before its own."""
    import torch

    with torch.no_grad():
        out = target(input_ids=batch, use_cache=False, output_hidden_states=True)
        ahead = torch.nn.functional.pad(batch, (0, len(heads.blocks)))
        embedded = target.model.embed_tokens(ahead.unfold(1, len(heads.blocks) + 1, 1)[..., 1:])
    hidden = out.hidden_states[-1]
    states = [heads.state(hidden, embedded[..., : j + 1, :]) for j in range(len(heads.blocks))]
    return out.logits, target.lm_head(torch.stack(states, dim=-2))


def eagle_logits(
    target: Any, head: EagleHead, batch: torch.Tensor, unrolled: int = UNROLLED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, n, V] of the target and [rows, n, `unrolled`, V] of its EAGLE head on texts [rows, n].

    From every token on, the head goes on from its own estimates for so many steps and reads the text's next
    tokens as those that it drafted.  A step sees the true pairs up to its token and the estimated ones of its
    own drafting.
    """
    import torch

    from calibrate.live.engine.heads import eagle_part

    with torch.no_grad():
        out = target(input_ids=batch, use_cache=False, output_hidden_states=True)
    part, pairs = eagle_part(target, head)
    ids, states = torch.arange(batch.numel()).view(batch.shape), out.hidden_states[-1]

    def enter(step: int, before: torch.Tensor | None) -> torch.Tensor:
        following = torch.nn.functional.pad(batch[:, 1 + step :], (0, min(batch.shape[1], 1 + step)))
        pairs.load(following.flatten(), (states if before is None else before).flatten(0, 1))
        return ids

    steps = [target.lm_head(said) for said in _unrolled(part, batch, unrolled, enter)]
    return out.logits, torch.stack(steps, dim=2)


def _unrolled(
    part: Any,
    batch: torch.Tensor,
    steps: int,
    enter: Callable[[int, torch.Tensor | None], torch.Tensor],
) -> Iterator[torch.Tensor]:
    """What leaves a model at every token of texts [rows, n], and at `steps` - 1 further places behind each.

    A further place sees the text up to its token and those before it behind the same one.  `enter` says the
    ids of a step, from its number and what left the one before.
    """
    import torch
    from transformers import DynamicCache

    rows, count = batch.shape
    cache, said = DynamicCache(config=part.config), None
    places = torch.arange(count)
    hidden = places > places[:, None]
    for step in range(steps):
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, torch.finfo(torch.float32).min)[None, None]
        said = part(
            input_ids=enter(step, said),
            attention_mask=mask.expand(rows, -1, -1, -1),
            position_ids=(places + step)[None],
            past_key_values=cache,
            use_cache=True,
        ).logits
        yield said
        hidden = torch.cat([hidden, places != places[:, None]], dim=-1)


def block_logits(
    target: Any, block: Any, batch: torch.Tensor, unrolled: int = UNROLLED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, n, V] of the target and [rows, n, `unrolled`, V] of its block draft on texts [rows, n].

    As an EAGLE head's they are those of the tokens behind the next one, which the draft has read.
    """
    import torch

    def enter(step: int, _: torch.Tensor | None) -> torch.Tensor:
        return batch if step == 0 else torch.full_like(batch, block.config.block_mask)

    with torch.no_grad():
        own = target(input_ids=batch, use_cache=False).logits
    said = torch.stack(list(_unrolled(block, batch, unrolled, enter)), dim=2)
    return own, torch.nn.functional.pad(said[:, 1:], (0, 0, 0, 0, 0, 1))


def drafting_loss(own: torch.Tensor, drafted: torch.Tensor) -> torch.Tensor:
    """Weighted mean of the cross entropies with the target's distributions that each prediction is of.

    `own` [rows, n, V] are the target's logits, `drafted` [rows, n, J, V] at a token t those of t + 1 + j.
    """
    losses = []
    for j in range(1, drafted.shape[2] + 1):
        probs = own[:, j:].softmax(-1)
        guess = drafted[:, : own.shape[1] - j, j - 1].log_softmax(-1)
        losses.append(-(probs * guess).sum(-1).mean() * _DECAY ** (j - 1))
    return sum(losses[1:], losses[0]) / sum(_DECAY**j for j in range(len(losses)))


def _measure_drafting(
    logits: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    target: Any,
    heads: Any,
    prompts: Sequence[Sequence[int]],
    *,
    sampled: bool,
    output: int = OUTPUT,
    ahead_of: int = UNROLLED,
) -> list[DraftingReport]:
    """What is accepted of chains drafted along what the target writes after prompts."""
    import torch

    sums = torch.zeros(5, ahead_of, dtype=torch.float64)
    for tokens, start, live in written(target, prompts, output, sampled=sampled, group=_GROUP):
        with torch.no_grad():
            _, drafted = logits(target, heads, tokens)
        places = torch.arange(start - 1, tokens.shape[1] - 1 - ahead_of)
        ahead = places[:, None] + 2 + torch.arange(ahead_of)
        kept = live[:, ahead[:, -1] - start]
        guesses, right = drafted[:, places][kept], tokens[:, ahead][kept]
        met = guesses.argmax(-1) == right
        near = (guesses.topk(4, dim=-1).indices == right[..., None]).any(-1)
        before = torch.cat([torch.ones_like(met[:, :1]), met.cumprod(-1).bool()[:, :-1]], dim=-1)
        counts = (before, before & met, before & near, torch.ones_like(met), met)
        sums += torch.stack([each.sum(0) for each in counts]).double()
    shares = zip(*(sums[at] / sums[of].clamp_min(1) for at, of in ((1, 0), (2, 0), (4, 3))), strict=True)
    return [
        DraftingReport(j + 1, sampled, int(sums[0, j]), *(round(float(share), 4) for share in own))
        for j, own in enumerate(shares)
    ]


def medusa_kind(count: int = UNROLLED) -> HeadKind[MedusaHeads, DraftingReport]:
    """How Medusa heads are trained, measured and kept."""
    from calibrate.live.engine.heads import MedusaHeads

    return _chained("medusa", MedusaHeads, medusa_logits, count, first=8_000_000, window=WINDOW)


def hydra_kind(count: int = UNROLLED) -> HeadKind[HydraHeads, DraftingReport]:
    """How Hydra heads are trained, measured and kept."""
    from calibrate.live.engine.heads import HydraHeads

    return _chained("hydra", HydraHeads, hydra_logits, count, first=11_000_000, window=160)


def _chained(
    name: str, heads: Callable[..., Any], logits: Callable[..., Any], count: int, *, first: int, window: int
) -> HeadKind[Any, DraftingReport]:
    """Of `count` heads, each of which says one token of a chain."""
    from calibrate.live.engine.heads import save_heads

    def make(target: Any) -> Any:
        return heads(target, count)

    def loss(target: Any, own: Any, batch: torch.Tensor) -> torch.Tensor:
        return drafting_loss(*logits(target, own, batch))

    measure = partial(_measure_drafting, logits, ahead_of=count)
    return HeadKind(name, 3e-3, first, window, make, loss, save_heads, measure)


def eagle_kind() -> HeadKind[EagleHead, DraftingReport]:
    """How an EAGLE head is trained, measured and kept; its windows are short, for each token is fed often."""
    from calibrate.live.engine.heads import EagleHead, save_heads

    def loss(target: Any, head: EagleHead, batch: torch.Tensor) -> torch.Tensor:
        return drafting_loss(*eagle_logits(target, head, batch))

    measure = partial(_measure_drafting, partial(eagle_logits, unrolled=2 * UNROLLED), ahead_of=2 * UNROLLED)
    return HeadKind("eagle", 1e-3, 9_000_000, 192, EagleHead, loss, save_heads, measure)


MASK = "\u00ff"
"""Stands for a byte that no text in UTF-8 has, so that its id is free."""


def block_kind(draft: Path) -> HeadKind[Any, DraftingReport]:
    """How a draft is trained to say a block in one pass, measured, and kept as `block` beside its target."""
    from calibrate.live.loading import load_model, load_tokenizer
    from calibrate.pair.train import save_model

    def make(target: Any) -> Any:
        block = load_model(draft).requires_grad_(True)
        block.config.block_mask = load_tokenizer(draft).convert_tokens_to_ids(MASK)
        return block

    def loss(target: Any, block: Any, batch: torch.Tensor) -> torch.Tensor:
        return drafting_loss(*block_logits(target, block, batch))

    def save(block: Any, _: int, folder: Path) -> Path:
        save_model(block, load_tokenizer(draft), folder.parent / "block")
        return folder.parent / "block"

    measure = partial(_measure_drafting, block_logits)
    return HeadKind("block", 1e-3, 10_000_000, 160, make, loss, save, measure)
