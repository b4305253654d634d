"""llama.cpp: logs and timings of its server, the speculative example, and the tables of its benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median
from typing import Any

from hardware_profiles.files import parse_json
from simulator.imports.measured import Imported, ImportRefused, check_length
from simulator.imports.text import (
    Row,
    Text,
    begins,
    either,
    has,
    json_lines,
    lines_of,
    log_lines,
    markdown_rows,
    number,
    reads,
    says,
)

_EVAL = re.compile(r"\| +eval time = +([\d.]+) ms / +(\d+) tokens")
_PREFILL = re.compile(r"prompt eval time = +([\d.]+) ms / +(\d+) tokens")
_CLOSING = re.compile(r"^(n_draft|n_predict|n_drafted|n_accept)\s*=\s*(\d+)", re.M)
_MADE = re.compile(r"(?:decoded|generated)\s+(\d+) tokens in\s+([\d.]+) seconds")
_UNCOUNTED = (
    "rounds are not counted: {} target forwards are the tokens that were not drafted; "
    "old builds count drafts thrown away unverified as drafted"
)
_Tests = dict[tuple[str, int], list[tuple[int, int, float]]]
"""(prompt tokens, generated tokens, seconds) of a benchmark's tests, by model and depth of context."""

_statistics = log_lines(
    r"statistics\s+(?P<draft>\S+): .*?#gen drafts = +(?P<rounds>\d+), #acc drafts = +(?P<some>\d+), "
    r"#gen tokens = +(?P<drafted>\d+), #acc tokens = +(?P<accepted>\d+)",
    r"#acc rate/pos = \((?P<rates>[\d., ]+)\)",
    r"dur\(b,g,a\) = [\d.]+, (?P<dur>[\d.]+), [\d.]+ ms",
)


def _statistics_and_times(text: str) -> Iterator[Row]:
    """Statistics lines, with the times of the request before them; of several, the totals are of all."""
    prefill, evaluations = _PREFILL.search(text), _EVAL.findall(text)
    times: dict[str, Any] = {}
    if len(evaluations) == 1:
        ((spent, tokens),) = evaluations
        times["tokens_per_second"] = int(tokens) / (float(spent) / 1e3)
        if prefill:
            times |= {"prefill_s": float(prefill.group(1)) / 1e3, "prefill_tokens": int(prefill.group(2))}
    for row in _statistics(text):
        yield Row({**row, "times": times}, row.line)


@reads(
    "llamacpp-log",
    "llama.cpp",
    "llama-server's log",
    says("#gen drafts"),
    rows=_statistics_and_times,
    empty="expected llama-server's line `statistics ...: ... #gen drafts = ...`",
)
def parse_server_log(row: Row) -> Imported:
    """A `statistics` line of the server's log, which counts rounds.

    `#gen drafts` and `#acc drafts` count rounds (drafted; with at least one token accepted), `#gen tokens`
    and `#acc tokens` count tokens.  Rates per position are joint.
    """
    rounds, some, drafted, accepted = map(row.count, ("rounds", "some", "drafted", "accepted"))
    if not rounds or "rates" not in row:
        raise ImportRefused("expected rounds and `#acc rate/pos = (...)` in a statistics line")
    row["#acc rate/pos"] = row["rates"]
    joint = row.listed("#acc rate/pos")
    joint[0] = some / rounds  # exact, where the list has three digits
    spent = row.seconds("dur")
    return Imported.from_joint(
        joint,
        rounds=rounds,
        accepted=accepted,
        draft=row["draft"],
        drafted=drafted,
        draft_s_per_round=None if spent is None else spent / rounds,
        notes=(f"a draft was cut short: {drafted} drafted in {rounds} rounds",) * (drafted % rounds > 0),
        label=f"line {row.line}",
        **row["times"],
    )


@reads(
    "llamacpp-closing",
    "llama.cpp",
    "closing lines of llama.cpp's speculative example",
    says("n_drafted", "n_accept"),
)
def parse_closing(text: str) -> Imported:
    """The closing lines of the speculative example: a share and a maximum draft, no rounds.

    Forwards of the target are the tokens that were not drafted ones: `n_predict - n_accept`.
    """
    values = {name: int(value) for name, value in _CLOSING.findall(text)}
    if missing := {"n_draft", "n_predict", "n_drafted", "n_accept"} - values.keys():
        raise ImportRefused(f"expected lines {', '.join(f'`{name} = N`' for name in sorted(missing))}")
    accepted, drafted, made = values["n_accept"], values["n_drafted"], values["n_predict"]
    if accepted > drafted:
        at = next(i for i, line in enumerate(text.splitlines(), 1) if line.startswith("n_accept"))
        raise ImportRefused(f"n_accept: {accepted} accepted of {drafted} drafted", at)
    timed = _MADE.search(text)
    return Imported(
        drafted=drafted,
        accepted=accepted,
        tokens_per_target_forward=made / max(1, made - accepted),
        tokens_per_second=int(timed.group(1)) / number(timed.group(2), "seconds") if timed else None,
        notes=(f"n_draft = {values['n_draft']} is the longest draft, not that of every round",),
    )


def _answers(text: str) -> Iterator[Row]:
    """Answers with their label and models: one object, or a results file with runs of records."""
    holder = parse_json(text)
    lines = lines_of(text, "predicted_n")
    if "runs" not in holder:
        yield Row({**holder, "label": "", "meta": {}}, next(lines, None))
        return
    for run in holder["runs"]:
        name = " ".join(str(run[k]) for k in ("backend", "method") if k in run)
        for i, row in enumerate(run["records"]):
            more = {"label": f"{name} {row.get('id', i)}", "meta": holder.get("meta", {})}
            yield Row({**row, **more}, next(lines, None))


@reads(
    "llamacpp-timings",
    "llama.cpp",
    "timings of llama-server's answers",
    says('"predicted_ms"'),
    either(has("predicted_ms"), has("runs")),
    rows=_answers,
)
def parse_timings(row: Row) -> Imported:
    """`timings` of an answer of llama-server."""
    made, spent = row.count("predicted_n"), row.number("predicted_ms") / 1e3
    if not made or spent <= 0.0:
        raise ImportRefused(f"expected predicted_n and predicted_ms above 0, got {made} and {spent * 1e3:g}")
    known: dict[str, Any] = {
        "label": row["label"],
        "model": row["meta"].get("target"),
        "batch": 1.0,
        "tokens_per_second": made / spent,
    }
    drafted, accepted = row.optional("draft_n"), row.optional("draft_n_accepted")
    if (prefill_s := row.seconds("prompt_ms")) is not None and row.get("prompt_n"):
        known |= {"prefill_s": prefill_s, "prefill_tokens": row.count("prompt_n")}
    if drafted is None or accepted is None:
        return Imported(target_step_s=spent / made, **known)
    forwards = max(1, made - int(accepted))
    return Imported(
        draft=row["meta"].get("draft"),
        drafted=int(drafted),
        accepted=int(accepted),
        tokens_per_target_forward=made / forwards,
        round_s=spent / forwards,
        notes=(_UNCOUNTED.format(forwards),),
        **known,
    )


@reads(
    "ik-llama-table",
    "llama.cpp",
    "ik_llama.cpp's table of speculative runs",
    says("| pos accept"),
    rows=markdown_rows("pos accept"),
)
def parse_spec_bench(row: Row) -> Imported:
    """A row of ik_llama.cpp's table of speculative runs: rounds, counts, joint percentages by position."""
    match = re.fullmatch(r"(\d+)/(\d+)", row["accepted"])
    if match is None:
        raise ImportRefused(f"accepted: expected `N/M`, got {row['accepted']!r}")
    accepted, drafted = map(int, match.groups())
    rounds = row.count("rounds")
    if not rounds:
        raise ImportRefused("rounds: expected some")
    joint = row.listed("pos accept", per=100.0)
    if "a.len" in row:
        check_length(row.number("a.len"), len(joint))
    return Imported.from_joint(
        joint,
        rounds=rounds,
        accepted=accepted,
        drafted=drafted,
        label=f"{row['task']} {row['run']}",
        draft=row.get("stage"),
        batch=1.0,
        tokens_per_second=row.number("tok/s"),
        notes=("a draft was cut short at the end",) * (drafted % rounds > 0),
    )


def _is_bench(text: Text) -> bool:
    rows = text.whole
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and "avg_ns" in rows[0]


@reads("llama-bench", "llama.cpp", "llama-bench -o json", _is_bench)
def parse_bench_json(text: str) -> Iterator[Imported]:
    """`llama-bench -o json`: one measurement per model and setting."""
    rows = [Row(row) for row in parse_json(text)]
    tests: _Tests = {}
    versions = {f"b{row['build_number']} ({row['build_commit']})" for row in rows if "build_number" in row}
    for row in rows:
        key = (f"{row.get('model_type', '')} {row.get('n_threads', '')} threads", row.get("n_depth", 0))
        test = (row.count("n_prompt"), row.count("n_gen"), row.number("avg_ns") / 1e9)
        tests.setdefault(key, []).append(test)
    return _of_tests(tests, ", ".join(sorted(versions)) or None)


@reads("llama-bench-table", "llama.cpp", "llama-bench's Markdown", either(says("| test "), says(" test |")))
def parse_bench_table(text: str) -> Iterator[Imported]:
    """The Markdown of `llama-bench`: `pp512` is a prefill of 512 tokens, `tg128` 128 single steps."""
    tests: _Tests = {}
    for row in markdown_rows("t/s")(text):
        match = re.fullmatch(r"(pp|tg) ?(\d+)(?: @ d(\d+))?", row.get("test", ""))
        if match is None:
            raise ImportRefused(f"test: expected pp<N> or tg<N>, got {row.get('test')!r}", row.line)
        speed, tokens = number(row["t/s"].split("±")[0].strip(), "t/s", row.line), int(match.group(2))
        if not speed or not tokens:
            raise ImportRefused("expected tokens and a speed above 0", row.line)
        threads = f" {row['threads']} threads" if "threads" in row else ""
        key = (row["model"] + threads, int(match.group(3) or 0))
        prompt, made = (tokens, 0) if match.group(1) == "pp" else (0, tokens)
        tests.setdefault(key, []).append((prompt, made, tokens / speed))
    build = re.search(r"^build: (.+)$", text, re.M)
    return _of_tests(tests, build.group(1) if build else None)


def _of_tests(tests: _Tests, version: str | None) -> Iterator[Imported]:
    for (model, depth), rows in tests.items():
        steps = [seconds / made for _, made, seconds in rows if made]
        forwards = sorted((prompt, seconds) for prompt, made, seconds in rows if prompt and not made)
        prompt, prefill_s = forwards[-1] if forwards else (None, None)
        yield Imported(
            source="llama-bench",
            label=f"{model} @ d{depth}" if depth else model,
            version=version,
            model=model,
            batch=1.0,
            target_step_s=median(steps) if steps else None,
            tokens_per_second=1.0 / median(steps) if steps else None,
            prefill_s=prefill_s,
            prefill_tokens=prompt,
            forward_s=tuple(forwards),
            notes=("pp<N> is one forward over N new tokens: what a verification of N - 1 drafts costs",),
        )


@reads(
    "llama-batched-bench",
    "llama.cpp",
    "llama-batched-bench, table or JSON lines",
    either(begins("t_tg"), says("| ", "T_TG s")),
)
def parse_batched(text: str) -> Iterator[Imported]:
    """`llama-batched-bench`, table or JSON lines: a step of the whole batch is T_TG / TG."""
    is_json = text.lstrip().startswith("{")
    names = ("pl", "tg", "t_tg") if is_json else ("B", "TG", "T_TG s")
    groups: dict[int, list[tuple[int, float]]] = {}
    for row in (json_lines if is_json else markdown_rows("T_TG s"))(text):
        batch, made = map(row.count, names[:2])
        if not made:
            raise ImportRefused(f"{names[1]}: expected generated tokens", row.line)
        groups.setdefault(made, []).append((batch, row.number(names[2]) / made))
    for made, steps in groups.items():
        step_s = dict(steps).get(1)
        yield Imported(label=f"tg{made}", step_s_by_batch=tuple(sorted(steps)), target_step_s=step_s)
