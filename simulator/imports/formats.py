"""Which format a text has: `FORMATS` lists what each is told from, and its parser."""

from __future__ import annotations

from typing import NoReturn

from simulator.imports import bench, llamacpp, papers, prometheus, requests, tuned, vllm_log
from simulator.imports.measured import ImportRefused
from simulator.imports.text import Format, Text


def _configuration(_: str) -> NoReturn:
    raise ImportRefused("this is a configuration or a list of questions: nothing in it was measured")


def _is_configuration(t: Text) -> bool:
    return (
        "method" in t.first
        or ("turns" in t.first and "choices" not in t.first)
        or (
            isinstance(t.whole, dict)
            and any(isinstance(v, dict) and "candidate_steps" in v for v in t.whole.values())
        )
    )


def _is_llama_bench(t: Text) -> bool:
    return (
        isinstance(t.whole, list)
        and bool(t.whole)
        and isinstance(t.whole[0], dict)
        and "avg_ns" in t.whole[0]
    )


def _is_specforge(t: Text) -> bool:
    return isinstance(t.whole, dict) and t.says('"benchmark_name"', '"accept_length"')


def _is_timings(t: Text) -> bool:
    return t.has("predicted_ms") or (t.has("runs") and t.says('"predicted_ms"'))


FORMATS = (
    Format(
        "vllm-counters-delta",
        "differences of vLLM's counters, as JSON",
        lambda t: isinstance(t.whole, dict) and t.says("vllm:spec_decode_num_drafts"),
        prometheus.parse_delta,
    ),
    Format(
        "vllm-counters",
        "vLLM's /metrics",
        lambda t: t.says("\nvllm:spec_decode_num_draft"),
        prometheus.parse_counters,
    ),
    Format(
        "llamacpp-counters",
        "llama-server's /metrics",
        lambda t: t.says("\nllamacpp:spec_decode_num_draft"),
        prometheus.parse_counters,
    ),
    Format(
        "sglang-gauges",
        "SGLang's /metrics",
        lambda t: t.says("\nsglang:spec_accept_length"),
        prometheus.parse_sglang,
    ),
    Format(
        "sglang-bench",
        "JSON lines of SGLang's bench_serving --output-file",
        lambda t: "accept_length" in t.first and "mean_tpot_ms" in t.first,
        bench.parse_sglang_bench,
    ),
    Format(
        "vllm-bench",
        "vllm bench serve --save-result",
        lambda t: t.has("mean_itl_ms") and t.has("output_throughput"),
        bench.parse_vllm,
    ),
    Format(
        "vllm-dynamic",
        "vLLM's dynamic-speculation profile",
        lambda t: t.has("acceptance_rate_per_pos"),
        tuned.parse_dynamic,
    ),
    Format(
        "vllm-request",
        "vLLM's answer with --per-request-spec-decode-metrics",
        lambda t: t.has("metrics", "speculative_decoding"),
        requests.parse_vllm,
    ),
    Format(
        "sglang-meta-info",
        "SGLang's answer: meta_info, or sglext.spec_tokens_details",
        lambda t: t.has("meta_info") or t.has("sglext", "spec_tokens_details"),
        requests.parse_sglang,
    ),
    Format(
        "sglang-stats",
        "SGLang's answer: sglext.speculative_decoding_stats",
        lambda t: t.has("sglext", "speculative_decoding_stats"),
        requests.parse_sglang_stats,
    ),
    Format(
        "sglang-nightly",
        "SGLang's performance dashboard",
        lambda t: t.has("results") and t.says('"acc_length"'),
        bench.parse_sglang_nightly,
    ),
    Format("llamacpp-timings", "timings of llama-server's answers", _is_timings, llamacpp.parse_timings),
    Format("llama-bench", "llama-bench -o json", _is_llama_bench, llamacpp.parse_bench_json),
    Format("specforge", "SpecForge's table of results", _is_specforge, bench.parse_specforge),
    Format("guidellm", "GuideLLM's benchmarks", lambda t: t.has("benchmarks"), bench.parse_guidellm),
    Format(
        "aiperf",
        "AIPerf's record or pooled histogram",
        lambda t: t.has("spec_decode_acceptance") or t.has("pooled_spec_decode_acceptance_histogram"),
        requests.parse_aiperf,
    ),
    Format(
        "llama-batched-bench",
        "llama-batched-bench, table or JSON lines",
        lambda t: "t_tg" in t.first or t.says("| ", "T_TG s"),
        llamacpp.parse_batched,
    ),
    Format(
        "spec-bench",
        "Spec-Bench's or REST's answers, JSON lines",
        lambda t: "choices" in t.first and t.says('"accept_lengths'),
        papers.parse_spec_bench,
    ),
    Format(
        "pearl",
        "PEARL's answers, JSON lines",
        lambda t: (
            ("choices" in t.first and t.says('"num_token"')) or ("task_id" in t.first and "time" in t.first)
        ),
        papers.parse_pearl,
    ),
    Format(
        "answers",
        "answers of vLLM or SGLang with their counts, JSON lines",
        lambda t: any(key in t.first for key in ("meta_info", "sglext", "metrics")),
        requests.parse_answers,
        True,
    ),
    Format("configuration", "settings, not measurements", _is_configuration, _configuration),
    Format(
        "vllm-log",
        "vLLM's log",
        lambda t: t.says("SpecDecoding metrics: ") or t.says("Speculative metrics: "),
        vllm_log.parse,
        True,
    ),
    Format(
        "bench-console",
        "the table that vllm bench serve or SGLang's bench_serving prints",
        lambda t: t.says("Serving Benchmark Result"),
        bench.parse_console,
    ),
    Format(
        "sglang-log",
        "SGLang's log",
        lambda t: t.says("Decode batch", "accept len"),
        bench.parse_sglang_log,
        True,
    ),
    Format(
        "sglang-decoupled-verifier",
        "SGLang's trace of a decoupled verifier",
        lambda t: t.says("num_accepted_drafts", "target_forward_ms"),
        papers.parse_decoupled_verifier,
    ),
    Format(
        "sglang-decoupled-proxy",
        "SGLang's trace of a draft proxy",
        lambda t: t.says("accepted_tail_lens_by_req"),
        papers.parse_decoupled_proxy,
    ),
    Format("llamacpp-log", "llama-server's log", lambda t: t.says("#gen drafts"), llamacpp.parse_server_log),
    Format(
        "llamacpp-closing",
        "closing lines of llama.cpp's speculative example",
        lambda t: t.says("n_drafted", "n_accept"),
        llamacpp.parse_closing,
    ),
    Format(
        "ik-llama-table",
        "ik_llama.cpp's table of speculative runs",
        lambda t: t.says("| pos accept"),
        llamacpp.parse_spec_bench,
    ),
    Format(
        "llama-bench-table",
        "llama-bench's Markdown",
        lambda t: t.says("| test ") or t.says(" test |"),
        llamacpp.parse_bench_table,
    ),
    Format(
        "speculators",
        "the speculators project's CSV",
        lambda t: t.says("num_drafts", "acceptance_at_pos_0"),
        bench.parse_speculators,
    ),
    Format(
        "ssd-profile",
        "the SSD engine's profile lines",
        lambda t: t.says("[PROFILE target]"),
        papers.parse_ssd_profile,
    ),
    Format(
        "ssd-log",
        "the SSD engine's log",
        lambda t: t.says("Model: ", "Mode: ", "tok, Time: "),
        papers.parse_ssd,
    ),
    Format("nano-pearl", "nano-PEARL's log", lambda t: t.says("[PEARL Generate]"), papers.parse_nano_pearl),
)
"""The first that fits is taken: JSON before lines, the telling before the general."""

NAMES = tuple(fmt.name for fmt in FORMATS)


def sniff(text: str) -> Format:
    """The format of a text.

    Raises:
        ImportRefused: It looks like none.
    """
    look = Text.of("\n" + text)
    for fmt in FORMATS:
        if fmt.fits(look):
            return fmt
    raise ImportRefused(
        "unknown format: it looks like none of those that can be read (`python -m simulator.imports formats` "
        "lists them; --format chooses one)"
    )


def find_format(name: str) -> Format:
    """The format of that name.

    Raises:
        ImportRefused: There is none.
    """
    for fmt in FORMATS:
        if fmt.name == name:
            return fmt
    raise ImportRefused(f"unknown format {name!r}; choices: {', '.join(NAMES)}")
