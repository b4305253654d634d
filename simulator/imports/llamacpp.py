"""llama.cpp: logs and timings of its server, the speculative example, and the tables of its benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from hardware_profiles.files import parse_json
from simulator.imports.measured import (
    Imported,
    ImportRefused,
    Speeds,
    at_line,
    check_length,
    count,
    from_joint,
    number,
    optional,
)
from simulator.imports.text import (
    Text,
    begins,
    either,
    has,
    json_lines,
    lines_of,
    markdown_rows,
    reads,
    says,
)

_STATISTICS = re.compile(
    r"statistics\s+(\S+): .*?#gen drafts = +(\d+), #acc drafts = +(\d+), "
    r"#gen tokens = +(\d+), #acc tokens = +(\d+)"
)
_SHARES = re.compile(r"#acc rate/pos = \(([\d., ]+)\)")
_DURATIONS = re.compile(r"dur\(b,g,a\) = ([\d.]+), ([\d.]+), ([\d.]+) ms")
_EVAL = re.compile(r"\| +eval time = +([\d.]+) ms / +(\d+) tokens")
_PREFILL = re.compile(r"prompt eval time = +([\d.]+) ms / +(\d+) tokens")
_CLOSING = re.compile(r"^(n_draft|n_predict|n_drafted|n_accept)\s*=\s*(\d+)", re.M)
_MADE = re.compile(r"(?:decoded|generated)\s+(\d+) tokens in\s+([\d.]+) seconds")


@reads("llamacpp-log", "llama.cpp", "llama-server's log", says("#gen drafts"))
def parse_server_log(text: str) -> tuple[Imported, ...]:
    """The server's log: its `statistics` line, which counts rounds, and the times of the request before it.

    `#gen drafts` and `#acc drafts` count rounds (drafted; with at least one token accepted), `#gen tokens`
    and `#acc tokens` count tokens.  Rates per position are joint.
    """
    found = []
    for at, line in enumerate(text.splitlines(), 1):
        match = _STATISTICS.search(line)
        if match is None:
            continue
        draft, *counts = match.groups()
        rounds, some, drafted, accepted = map(int, counts)
        shares, spent = _SHARES.search(line), _DURATIONS.search(line)
        if not rounds or shares is None:
            raise ImportRefused("expected rounds and `#acc rate/pos = (...)` in a statistics line", at)
        joint = [number(part.strip(), "#acc rate/pos", at) for part in shares.group(1).split(",")]
        joint[0] = some / rounds  # exact, where the list has three digits
        notes = (f"a draft was cut short: {drafted} drafted in {rounds} rounds",) * (drafted % rounds > 0)
        speeds = _log_speeds(text, rounds, number(spent.group(2), "dur", at) / 1e3 if spent else None)
        known: dict[str, Any] = {
            "draft": draft,
            "drafted": drafted,
            "speeds": speeds,
            "notes": notes,
            "label": f"line {at}",
        }
        with at_line(at):
            found.append(from_joint(joint, rounds=rounds, accepted=accepted, **known))
    if not found:
        raise ImportRefused("expected llama-server's line `statistics ...: ... #gen drafts = ...`")
    return tuple(found)


def _log_speeds(text: str, rounds: int, draft_s: float | None) -> Speeds:
    prefill, decode = _PREFILL.search(text), _EVAL.search(text)
    single = len(_EVAL.findall(text)) == 1  # else the totals are of several requests
    per_round = draft_s / rounds if draft_s is not None else None
    if not single or decode is None:
        return Speeds(draft_s_per_round=per_round)
    seconds, tokens = float(decode.group(1)) / 1e3, int(decode.group(2))
    return Speeds(
        tokens_per_second=tokens / seconds,
        draft_s_per_round=per_round,
        prefill_s=float(prefill.group(1)) / 1e3 if prefill else None,
        prefill_tokens=int(prefill.group(2)) if prefill else None,
    )


@reads(
    "llamacpp-closing",
    "llama.cpp",
    "closing lines of llama.cpp's speculative example",
    says("n_drafted", "n_accept"),
)
def parse_closing(text: str) -> tuple[Imported, ...]:
    """The closing lines of the speculative example: a share and a maximum draft, no rounds.

    Forwards of the target are the tokens that were not drafted ones: `n_predict - n_accept`.
    """
    values = {name: int(value) for name, value in _CLOSING.findall(text)}
    if missing := {"n_draft", "n_predict", "n_drafted", "n_accept"} - values.keys():
        raise ImportRefused(f"expected lines {', '.join(f'`{name} = N`' for name in sorted(missing))}")
    if values["n_accept"] > values["n_drafted"]:
        at = next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith("n_accept"))
        raise ImportRefused(f"n_accept: {values['n_accept']} accepted of {values['n_drafted']} drafted", at)
    made = _MADE.search(text)
    speed = int(made.group(1)) / number(made.group(2), "seconds") if made else None
    forwards = max(1, values["n_predict"] - values["n_accept"])
    return (
        Imported(
            drafted=values["n_drafted"],
            accepted=values["n_accept"],
            tokens_per_target_forward=values["n_predict"] / forwards,
            speeds=Speeds(tokens_per_second=speed),
            notes=(f"n_draft = {values['n_draft']} is the longest draft, not that of every round",),
        ),
    )


@reads(
    "llamacpp-timings",
    "llama.cpp",
    "timings of llama-server's answers",
    says('"predicted_ms"'),
    either(has("predicted_ms"), has("runs")),
)
def parse_timings(text: str) -> tuple[Imported, ...]:
    """`timings` of llama-server's answers: one object, or a results file with runs of records."""
    holder = parse_json(text)
    lines = iter(lines_of(text, "predicted_n"))
    if "runs" not in holder:
        with at_line(next(lines, None)):
            return (_timing(holder, "", {}),)
    meta = holder.get("meta", {})
    found = []
    for run in holder["runs"]:
        name = " ".join(str(run[k]) for k in ("backend", "method") if k in run)
        for i, row in enumerate(run["records"]):
            with at_line(next(lines, None)):
                found.append(_timing(row, f"{name} {row.get('id', i)}", meta))
    return tuple(found)


def _timing(row: Mapping[str, Any], label: str, meta: Mapping[str, Any]) -> Imported:
    made, spent = (
        count(row.get("predicted_n"), "predicted_n"),
        number(row.get("predicted_ms"), "predicted_ms") / 1e3,
    )
    if not made or spent <= 0.0:
        raise ImportRefused(f"expected predicted_n and predicted_ms above 0, got {made} and {spent * 1e3:g}")
    drafted, accepted = optional(row, "draft_n"), optional(row, "draft_n_accepted")
    prompt_ms = optional(row, "prompt_ms")
    prefill: dict[str, Any] = {}
    if prompt_ms is not None and row.get("prompt_n"):
        prefill = {"prefill_s": prompt_ms / 1e3, "prefill_tokens": count(row["prompt_n"], "prompt_n")}
    known: dict[str, Any] = {"label": label, "model": meta.get("target"), "batch": 1.0}
    if drafted is None or accepted is None:
        return Imported(speeds=Speeds(made / spent, target_step_s=spent / made, **prefill), **known)
    forwards = max(1, made - int(accepted))
    return Imported(
        draft=meta.get("draft"),
        drafted=int(drafted),
        accepted=int(accepted),
        tokens_per_target_forward=made / forwards,
        speeds=Speeds(made / spent, round_s=spent / forwards, **prefill),
        notes=(
            (
                f"rounds are not counted: {forwards} target forwards are the tokens that were not drafted; "
                "old builds count drafts thrown away unverified as drafted"
            ),
        ),
        **known,
    )


@reads("ik-llama-table", "llama.cpp", "ik_llama.cpp's table of speculative runs", says("| pos accept"))
def parse_spec_bench(text: str) -> tuple[Imported, ...]:
    """ik_llama.cpp's table of speculative runs: rounds, counts, and joint percentages by position."""
    found = []
    for at, row in markdown_rows(text, "pos accept"):
        match = re.fullmatch(r"(\d+)/(\d+)", row["accepted"])
        if match is None:
            raise ImportRefused(f"accepted: expected `N/M`, got {row['accepted']!r}", at)
        accepted, drafted = int(match.group(1)), int(match.group(2))
        rounds = count(row["rounds"], "rounds", at)
        if not rounds:
            raise ImportRefused("rounds: expected some", at)
        joint = [number(part.rstrip("%"), "pos accept", at) / 100.0 for part in row["pos accept"].split()]
        if "a.len" in row:
            check_length(number(row["a.len"], "a.len", at), len(joint), at)
        with at_line(at):
            found.append(
                from_joint(
                    joint,
                    rounds=rounds,
                    accepted=accepted,
                    drafted=drafted,
                    label=f"{row['task']} {row['run']}",
                    draft=row.get("stage"),
                    batch=1.0,
                    speeds=Speeds(tokens_per_second=number(row["tok/s"], "tok/s", at)),
                    notes=("a draft was cut short at the end",) * (drafted % rounds > 0),
                )
            )
    return tuple(found)


def _is_bench(text: Text) -> bool:
    rows = text.whole
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and "avg_ns" in rows[0]


@reads("llama-bench", "llama.cpp", "llama-bench -o json", _is_bench)
def parse_bench_json(text: str) -> tuple[Imported, ...]:
    """`llama-bench -o json`: one measurement per model and setting."""
    rows = parse_json(text)
    groups: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    versions = {f"b{row['build_number']} ({row['build_commit']})" for row in rows if "build_number" in row}
    for row in rows:
        prompt, made = count(row.get("n_prompt"), "n_prompt"), count(row.get("n_gen"), "n_gen")
        seconds = number(row.get("avg_ns"), "avg_ns") / 1e9
        key = (f"{row.get('model_type', '')} {row.get('n_threads', '')} threads", row.get("n_depth", 0))
        groups.setdefault(key, []).append((prompt, made, seconds))
    return _bench(groups, ", ".join(sorted(versions)) or None)


@reads("llama-bench-table", "llama.cpp", "llama-bench's Markdown", either(says("| test "), says(" test |")))
def parse_bench_table(text: str) -> tuple[Imported, ...]:
    """The Markdown of `llama-bench`: `pp512` is a prefill of 512 tokens, `tg128` 128 single steps."""
    groups: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for at, row in markdown_rows(text, "t/s"):
        match = re.fullmatch(r"(pp|tg) ?(\d+)(?: @ d(\d+))?", row.get("test", ""))
        if match is None:
            raise ImportRefused(f"test: expected pp<N> or tg<N>, got {row.get('test')!r}", at)
        speed = number(row["t/s"].split("±")[0].strip(), "t/s", at)
        tokens = int(match.group(2))
        if not speed or not tokens:
            raise ImportRefused("expected tokens and a speed above 0", at)
        threads = f" {row['threads']} threads" if "threads" in row else ""
        key = (row["model"] + threads, int(match.group(3) or 0))
        prompt, made = (tokens, 0) if match.group(1) == "pp" else (0, tokens)
        groups.setdefault(key, []).append((prompt, made, tokens / speed))
    build = re.search(r"^build: (.+)$", text, re.M)
    return _bench(groups, build.group(1) if build else None)


def _bench(
    groups: Mapping[tuple[str, int], Sequence[tuple[int, int, float]]], version: str | None
) -> tuple[Imported, ...]:
    """(prompt tokens, generated tokens, seconds of the whole test) as times of forwards."""
    found = []
    for (model, depth), rows in groups.items():
        steps = [seconds / made for _, made, seconds in rows if made]
        forwards = tuple(sorted((prompt, seconds) for prompt, made, seconds in rows if prompt and not made))
        found.append(
            Imported(
                source="llama-bench",
                label=f"{model} @ d{depth}" if depth else model,
                version=version,
                model=model,
                batch=1.0,
                speeds=Speeds(
                    target_step_s=median(steps) if steps else None,
                    tokens_per_second=1.0 / median(steps) if steps else None,
                    prefill_s=forwards[-1][1] if forwards else None,
                    prefill_tokens=forwards[-1][0] if forwards else None,
                    forward_s=forwards,
                ),
                notes=("pp<N> is one forward over N new tokens: what a verification of N - 1 drafts costs",),
            )
        )
    return tuple(found)


@reads(
    "llama-batched-bench",
    "llama.cpp",
    "llama-batched-bench, table or JSON lines",
    either(begins("t_tg"), says("| ", "T_TG s")),
)
def parse_batched(text: str) -> tuple[Imported, ...]:
    """`llama-batched-bench`, table or JSON lines: a step of the whole batch is T_TG / TG."""
    if text.lstrip().startswith("{"):
        rows: Iterator[tuple[int, Mapping[str, Any]]] = json_lines(text)
        names = ("pl", "tg", "t_tg")
    else:
        rows, names = markdown_rows(text, "T_TG s"), ("B", "TG", "T_TG s")
    groups: dict[int, list[tuple[int, float]]] = {}
    for at, row in rows:
        batch, made = (count(row.get(name), name, at) for name in names[:2])
        if not made:
            raise ImportRefused(f"{names[1]}: expected generated tokens", at)
        groups.setdefault(made, []).append((batch, number(row.get(names[2]), names[2], at) / made))
    return tuple(
        Imported(
            label=f"tg{made}",
            speeds=Speeds(step_s_by_batch=tuple(sorted(steps)), target_step_s=dict(steps).get(1)),
        )
        for made, steps in groups.items()
    )
