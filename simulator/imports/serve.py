"""What a command line that serves a model says of its speculation: vLLM's, SGLang's, TensorRT-LLM's or
llama.cpp's.

The counterpart of `export`, which writes such lines.  Only what tells cost or acceptance is read; options
that nothing here depends on are passed over.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from hardware_profiles.files import FileRefused, parse_json, read_text
from simulator.imports.export import LLAMACPP, SGLANG, TENSORRT_LLM
from simulator.imports.measured import ImportRefused, believable

ONE_PASS = ("medusa", "dflash", "dflash2", "pard")
"""Methods that draft a whole round in one pass."""
NO_MODEL = ("ngram", "suffix", "ngram_gpu")
"""Methods that look words up."""
HEADS = ("eagle", "eagle3", "mtp", "medusa", "dflash", "dflash2", "dspark")
"""Methods whose draft is a head of a layer or so."""
_METHODS = {value.lower(): key for key, value in SGLANG.items()}
_TRT_METHODS = {value.lower(): key for key, value in TENSORRT_LLM.items()} | {"sa": "suffix"}


@dataclass(frozen=True, slots=True)
class Serve:
    """What a serving command says.

    Attributes:
        engine: `vllm`, `sglang`, `tensorrt-llm` or `llama.cpp`.
        target: Model served; None where the line does not say.
        method: As vLLM calls it; None: plain decoding.
        lookahead: K.
        width: Tokens per row that a verification computes; None: K + 1.
        draft: Draft model or head.
        tp: GPUs of the target.
        draft_tp: GPUs of the draft; None: as many.
        eager: Whether kernels are launched one by one.
    """

    engine: str
    target: str | None = None
    method: str | None = None
    lookahead: int | None = None
    width: int | None = None
    draft: str | None = None
    tp: int = 1
    draft_tp: int | None = None
    eager: bool = False

    @property
    def passes(self) -> int | None:
        """Passes of the draft in a round; None: one per drafted token."""
        return 0 if self.method in NO_MODEL else 1 if self.method in ONE_PASS else None


def read_serve(line: str) -> Serve:
    """What a command line says.

    Raises:
        ImportRefused: It is of no engine that is known, or an option lacks a value of its kind.
    """
    try:
        words = [word for word in shlex.split(line.replace("\\\n", " ")) if word.strip()]
    except ValueError as error:
        raise ImportRefused(f"the serve line cannot be split into words: {error}") from error
    for name, read in _ENGINES.items():
        for at, word in enumerate(words):
            if name in PurePath(word).name and not word.startswith("-") and "=" not in word:
                return read(words[at + 1 :])
    raise ImportRefused(
        f"expected vllm serve, sglang.launch_server, trtllm-serve or llama-server, got {line[:60]!r}"
    )


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options by name, `_` as `-`, a flag's value empty; and the words that belong to none."""
    found: dict[str, str] = {}
    alone: list[str] = []
    waiting: str | None = None
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit() and len(word) > 1:
            name, _, value = word.partition("=")
            waiting = name.lstrip("-").replace("_", "-")
            found[waiting] = value
            waiting = None if value else waiting
        elif waiting is not None:
            found[waiting], waiting = word, None
        else:
            alone.append(word)
    return found, alone


def _first(options: Mapping[str, str], *names: str) -> str | None:
    return next((options[name] for name in names if options.get(name)), None)


def _count(options: Mapping[str, str], *names: str) -> int | None:
    value = _first(options, *names)
    if value is None:
        return None
    if not value.isdigit() or int(value) < 1:
        raise ImportRefused(f"--{names[0]}: expected a whole number from 1 on, got {value[:40]!r}")
    return believable(int(value))


def _vllm(words: Sequence[str]) -> Serve:
    options, alone = _options(words)
    config: dict[str, Any] = {}
    if (text := _first(options, "speculative-config", "sc")) is not None:
        try:
            config = parse_json(text)
        except FileRefused as error:
            raise ImportRefused(f"--speculative-config: {error}") from error
        if not isinstance(config, dict):
            raise ImportRefused("--speculative-config: expected a JSON object")
    config |= {k.partition(".")[2]: v for k, v in options.items() if k.startswith("speculative-config.")}
    config = {key.replace("-", "_"): value for key, value in config.items()}
    model = config.get("model")
    method = config.get("method") or ("draft_model" if model else None)
    served = [word for word in alone if word != "serve"]
    depth = {"k": str(config["num_speculative_tokens"])} if "num_speculative_tokens" in config else {}
    spread = {"k": str(config.get("draft_tensor_parallel_size", ""))}
    return Serve(
        "vllm",
        target=_first(options, "model") or (served[0] if served else None),
        method="pard" if config.get("parallel_drafting") else method,
        lookahead=_count(depth, "k"),
        draft=model,
        tp=_count(options, "tensor-parallel-size", "tp") or 1,
        draft_tp=_count(spread, "k"),
        eager="enforce-eager" in options,
    )


def _sglang(words: Sequence[str]) -> Serve:
    options, _ = _options(words)
    algorithm = (_first(options, "speculative-algorithm", "speculative-algo") or "").lower()
    nodes = _count(options, "speculative-num-draft-tokens")
    return Serve(
        "sglang",
        target=_first(options, "model-path", "model"),
        method=_METHODS.get(algorithm, algorithm) or None,
        lookahead=_count(options, "speculative-num-steps") or (None if nodes is None else max(1, nodes - 1)),
        width=nodes,
        draft=_first(options, "speculative-draft-model-path", "speculative-draft"),
        tp=_count(options, "tensor-parallel-size", "tp-size", "tp") or 1,
        eager="disable-cuda-graph" in options,
    )


def _trtllm(words: Sequence[str]) -> Serve:
    """Speculation stands in the file of `--config`, or in what `<(echo '...')` makes one of."""
    options, alone = _options(words)
    file = _first(options, "config", "extra-llm-api-options")
    inline = [word for word in alone if word.startswith("{")]
    text = inline[0] if inline and (file or "").startswith("<(") else read_text(Path(file)) if file else ""
    # `key: value` in sections whose keys all differ, or JSON: no reader of YAML is needed for that.
    said = dict(
        re.findall(r"""["']?(\w+)["']?:[ \t]*["']?([^\s"',{}]+)""", re.sub(r"(?m)(^|\s)#.*$", "", text))
    )
    decoding = said.get("decoding_type", "").lower()
    served = [word for word in alone if word not in ("serve", *inline)]
    nodes = _count(said, "max_total_draft_tokens")
    return Serve(
        "tensorrt-llm",
        target=_first(options, "model") or (served[0] if served else None),
        method=_TRT_METHODS.get(decoding, decoding) or None,
        lookahead=_count(said, "max_draft_len", "num_nextn_predict_layers"),
        width=None if nodes is None else nodes + 1,
        draft=_first(said, "speculative_model", "speculative_model_dir"),
        tp=_count(options, "tp-size") or _count(said, "tensor_parallel_size") or 1,
        eager=said.get("cuda_graph_config") in ("null", "~"),
    )


def _llamacpp(words: Sequence[str]) -> Serve:
    options, _ = _options(words)
    draft = _first(options, "model-draft", "md", "spec-draft-model", "hf-repo-draft", "hfd", "spec-draft-hf")
    types = {value: key for key, value in LLAMACPP.items()}
    kind = _first(options, "spec-type") or ("draft-simple" if draft else "none")
    method = "ngram" if kind.startswith("ngram") else types.get(kind, kind.removeprefix("draft-"))
    return Serve(
        "llama.cpp",
        target=_first(options, "model", "m", "hf-repo", "hf"),
        method=None if kind == "none" else method,
        lookahead=_count(options, "spec-draft-n-max", "draft-max", "draft", "draft-n"),
        draft=draft,
    )


_ENGINES = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "llama": _llamacpp}
"""Readers by what the command's name has in it; `vllm` in `vllm serve` and `vllm.entrypoints...`."""
