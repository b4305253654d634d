"""Suffix decoding (Oliaro et al. 2025): what most often followed the text's ending, as far as it is likely.

Two suffix trees count what followed every sequence of up to D tokens: one of this request's prompt and
output, one of the outputs of requests that have ended (`past_outputs`).  Every ending of the text that a
tree knows proposes the most frequent next token again and again, as long as the product of these
frequencies stays above `least_probability` and at most `speculation_factor` tokens per token of the
ending: a longer match speculates further.  The proposal with the largest sum of products is verified.

The chain of the engines' form (vLLM, ArcticInference), not the paper's tree.  Where it differs from their
code: at equal frequency the token that came first counts; `past_outputs` is off by default, so that no
request reads what another one said, where the engines share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from policies.ar import ArConfig
from policies.config import Knob, LawInputs, LawValue, OnOff, PolicyConfig, PolicyInfo
from policies.operation import Verify
from policies.pld import guess
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.values import Source


@dataclass(frozen=True, slots=True)
class SuffixConfig(PolicyConfig):
    """Knobs of `suffix`."""

    policy: ClassVar[str] = "suffix"
    tree_reach: Annotated[int, Knob("D, longest sequence that suffix trees hold.", least=2, most=64)] = 24
    speculation_factor: Annotated[
        float, Knob("Tokens speculated per token matched.", least=0.0, most=16.0)
    ] = 1.0
    least_probability: Annotated[
        float, Knob("Frequency below which no token is speculated.", least=0.0, most=1.0)
    ] = 0.1
    past_outputs: Annotated[OnOff, Knob("Look in the outputs of requests that have ended, too.")] = "off"

    @property
    def reads_text(self) -> bool:
        """It searches the text."""
        return True

    @property
    def ahead(self) -> int:
        """The longest speculation."""
        return self.tree_reach - 1

    @property
    def longest_run(self) -> int:
        """That too."""
        return self.ahead

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """None is given."""
        return LawValue("none", reason="the paper gives no law for suffix decoding")

    @property
    def content_ignored(self) -> PolicyConfig:
        """Plain decoding."""
        return ArConfig()


class _Node:
    """A sequence: how often it occurred, and what followed it."""

    __slots__ = ("after", "count")

    def __init__(self) -> None:
        self.count = 0
        self.after: dict[int, _Node] = {}


class SuffixTree:
    """Counts of all sequences of up to `reach` tokens in some texts, appended to token by token."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self._root = _Node()
        self._open: list[_Node] = []

    def new_text(self) -> None:
        """Continue with another text: no sequence reaches over the border."""
        self._open = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the latest text."""
        for token in tokens:
            grown = []
            for node in (self._root, *self._open):
                if token not in node.after:
                    node.after[token] = _Node()
                grown.append(node.after[token])
                grown[-1].count += 1
            self._open = grown[: self.reach - 1]

    def propose(self, text: Sequence[int], factor: float, least: float) -> tuple[float, list[int]]:
        """The best continuation of a text: the expected number of its tokens accepted, and these."""
        best: tuple[float, list[int]] = (0.0, [])
        for size in range(1, min(len(text), self.reach - 1) + 1):
            node = self._root
            for token in text[-size:]:
                if token not in node.after:
                    return best  # nor is any longer ending known
                node = node.after[token]
            score, chance, tokens = 0.0, 1.0, list[int]()
            while node.after and len(tokens) < int(factor * size):
                token, following = max(node.after.items(), key=lambda each: each[1].count)
                chance *= following.count / node.count
                if chance < least:
                    break
                score += chance
                tokens.append(token)
                node = following
            if score >= best[0]:
                best = score, tokens
        return best


def suffix_decoding(world: World, rows: Rows, config: SuffixConfig, sampling: Sampling = GREEDY) -> Steps:
    """Look the ending up, verify what followed it, repeat; the draft devices stay idle."""
    past = SuffixTree(config.tree_reach)
    own: dict[int, SuffixTree] = {}
    known: dict[int, int] = {}  # tokens of each text that its tree holds

    def propose(request: int, position: int) -> Sequence[int]:
        text = rows.text(request)
        tree = own.setdefault(request, SuffixTree(config.tree_reach))
        tree.extend(text[known.get(request, 0) :])
        known[request] = len(text)
        trees = (past, tree) if config.past_outputs == "on" else (tree,)
        found = [each.propose(text, config.speculation_factor, config.least_probability) for each in trees]
        return max(found, key=lambda each: each[0])[1]

    while rows.active:
        yield from admit(world, rows, drafts=False)
        view = rows.view()
        speculation = guess(rows, rows.alive, config.ahead, Source.NGRAM, propose)
        verdict = yield world.target.submit(Verify(view, speculation, sampling))
        rows.commit(view, speculation, verdict, now=world.now)
        for slot, request in zip(view.slots, view.requests, strict=True):
            if slot not in verdict.ended:
                continue
            del own[request]
            past.new_text()
            past.extend(rows.texts[request])


INFO = PolicyInfo(
    config=SuffixConfig,
    run=suffix_decoding,
    paper="Oliaro et al. 2025 (SuffixDecoding)",
    predicts="nobody",
    drafts="what most often followed the text's ending, adaptively far",
    on_miss="-",
    verifies="chain",
    order=3.5,
    needs_draft=False,
    collocated=True,
    colour="#3f9fb5",
    variants=({}, {"past_outputs": "on", "speculation_factor": 2.0}),
)
