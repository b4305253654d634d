"""`python -m analysis.papers.profiles`: hardware profiles of the papers' machines, from their tables.

No paper prints a latency surface.  What each does print sets the scale of one or two operations, at batch 1
and a context of `CONTEXT` tokens; the roofline (`hardware_profiles.roofline`) gives all else its shape.  An
operation whose scale is printed has the provenance `paper` and names the cells; any other has `roofline`.

| profile | printed | so it answers in |
|---|---|---|
| h100x4+1 | plain tokens/s of two targets | seconds; the draft's step is roofline |
| a800+xeon16 | plain tokens/s, the budget of 24 draft tokens per target step | seconds |
| a100x8 | C, target step over draft step | ratios to plain decoding |
| a100x1 | cost of an EAGLE-2 round in target steps | ratios |
| m2ultra-x8+npu | speedups of vanilla SD, which bound the draft's time | ratios, within a band |
| a100x8-mirror | nothing | roofline alone |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import TypeAlias

import click

from analysis.papers import duodecoding, ssd
from analysis.papers.cells import PAPERS, Paper, PaperCell, load_cells
from hardware_profiles.predicted import ROLE_OPERATIONS, Basis, predicted_operations, predicted_role, turns
from hardware_profiles.profile import Profile, Role, Roles, save_profile
from hardware_profiles.roofline import (
    BANDWIDTH_SHARE,
    COMPUTE_SHARE,
    ENGINES,
    PRECISIONS,
    Efficiency,
    Engine,
    Setting,
    find_device,
)
from hardware_profiles.shapes import Shape, find_shape, with_layers
from hardware_profiles.surface import OperationName, Provenance, RoleName
from policies.commandline import BAD_INPUT, HELP, INCOMPLETE, checked_command, refusals

CONTEXT = 512
"""Tokens in the cache where a printed time is taken to hold: prompts and outputs of a few hundred each."""
STEP: Mapping[str, float] = {"batch": 1.0, "new_tokens": 1.0, "context": float(CONTEXT)}
COMMAND = "python -m analysis.papers.profiles"
IDEAL = Efficiency(1.0 / COMPUTE_SHARE, 1.0 / BANDWIDTH_SHARE, 0.0)


@dataclass(frozen=True, slots=True)
class Side:
    """A role of a paper's machine.

    Attributes:
        setting: The model and where it sits.
        forward: What its forwards (a draft's tree steps too) rest on.
        rest: What its prefill rests on.
        backend: What ran it.
    """

    setting: Setting
    forward: Basis
    rest: Basis
    backend: str

    @property
    def step_s(self) -> float:
        """One token at the context where printed numbers are taken to hold."""
        return self.forward.factor * self.setting.seconds("x.forward", STEP, self.forward.efficiency)

    @property
    def role(self) -> Role:
        """For the profile."""
        return predicted_role(self.setting, backend=self.backend)


def place(model: str | Shape, device: str, precision: str = "bf16", devices: int = 1) -> Setting:
    """A model, by name or shape, on so many devices."""
    shape = find_shape(model) if isinstance(model, str) else model
    return Setting(shape, find_device(device), PRECISIONS[precision], devices)


def printed(setting: Setting, step_s: float, note: str, *, backend: str) -> Side:
    """A side whose step for one token is printed: the time per block is what the peaks leave of it.

    Where they leave nothing, all durations are scaled instead.
    """
    efficiency = replace(IDEAL, layer_s=max(0.0, _layer_s(step_s, setting)))
    origin = Provenance(
        kind="paper",
        command=COMMAND,
        note=f"{note}: {1e3 * step_s:.3g} ms for one token at context {CONTEXT}, batch 1; batches, widths "
        f"and contexts by roofline, {COMPUTE_SHARE:g} of peak compute and {BANDWIDTH_SHARE:g} of peak "
        "bandwidth assumed",
    )
    basis = Basis(efficiency, origin, factor=min(1.0, step_s / setting.seconds("x.forward", STEP, IDEAL)))
    rest = replace(basis, provenance=Provenance(kind="roofline", command=COMMAND, note=f"as forward; {note}"))
    return Side(setting, basis, rest, backend)


def unprinted(setting: Setting, engine: Engine, note: str = "") -> Side:
    """A side of which the paper prints nothing: roofline, by an engine fitted elsewhere."""
    text = f"{engine.note}; {note}" if note else engine.note
    basis = Basis(engine.efficiency, Provenance(kind="roofline", command=COMMAND, note=text))
    return Side(setting, basis, basis, engine.name)


def _layer_s(step_s: float, setting: Setting) -> float:
    """What the peaks leave of a step, per block."""
    return (step_s - setting.seconds("x.forward", STEP, IDEAL)) / setting.shape.layers


Sides: TypeAlias = tuple[Side, Side, str]
"""Target, draft, and the description of their profile."""
PROFILES: dict[str, Callable[[Mapping[str, Paper]], Profile]] = {}
"""What makes each profile of the papers' cells, by name."""


def machine(
    name: str, paper: str, where: str, *, shared: bool = False
) -> Callable[[Callable[[Paper], Sides]], Callable[[Paper], Sides]]:
    """Make a profile of the sides that a function finds in a paper.

    `where` says which model sits on what; with `shared` both take turns on one device.
    """

    def register(find: Callable[[Paper], Sides]) -> Callable[[Paper], Sides]:
        def profile(papers: Mapping[str, Paper]) -> Profile:
            target, draft, description = find(papers[paper])
            return _profile(target, draft, name=name, description=description, where=where, shared=shared)

        PROFILES[name] = profile
        return find

    return register


def _profile(target: Side, draft: Side, *, name: str, description: str, where: str, shared: bool) -> Profile:
    bases: dict[OperationName, Basis] = {}
    sides: tuple[tuple[RoleName, Side], ...] = (("target", target), ("draft", draft))
    for role, side in sides:
        for operation in ROLE_OPERATIONS[role]:
            bases[operation] = side.rest if operation.endswith("prefill") else side.forward
    costs = "two models on one device take turns" if shared else "work side by side costs nothing"
    return Profile(
        name=name,
        description=description,
        roles=Roles(target=target.role, draft=draft.role),
        placement="shared" if shared else "split",
        placement_note=where,
        operations=predicted_operations(target.setting, draft.setting, bases),
        overlap=turns() if shared else (),
        provenance=Provenance(
            kind="paper",
            command=COMMAND,
            note="see each operation; host time is part of the printed rates, not stated apart; "
            f"{costs} (assumed)",
        ),
    )


EAGLE_PASSES = 6
"""Forwards of an EAGLE-2 draft per round: the depth of its published default tree; RASD prints none."""
SSD_TARGETS = {ssd.LLAMA: "llama-3.1-70b", ssd.QWEN: "qwen3-32b"}
TASKS = ("MT-Bench", "Translation", "QA", "Math", "RAG", "Code")


def said(cell: PaperCell) -> str:
    """A cell, for a provenance."""
    return f"{cell.paper} {cell.table}, {cell.where or cell.hardware}: {cell.value_name} {cell.printed}"


def ssd_engine(paper: Paper) -> Engine:
    """SSD's engine on H100: one time per block for both of its targets, least squares in log space."""
    cells = [ssd.plain_cell(paper, target) for target in SSD_TARGETS]
    steps = [(1.0 / cell.value, _ssd_target(cell)) for cell in cells]
    return _engine("ssd", geometric_mean(_layer_s(*step) for step in steps), steps, cells)


def transformers_engine(paper: Paper) -> Engine:
    """The transformers library on A800: the median of the tasks' plain rates."""
    rates, cells = _plain_rates(paper)
    setting = place("llama-2-7b", "a800", "fp16")
    steps = [(1.0 / rate, setting) for rate in rates]
    return _engine("transformers", _layer_s(1.0 / median(rates), setting), steps, cells)


def _engine(
    name: str, layer_s: float, steps: list[tuple[float, Setting]], cells: Sequence[PaperCell]
) -> Engine:
    efficiency = replace(IDEAL, layer_s=layer_s)
    residual = max(abs(s.seconds("x.forward", STEP, efficiency) / step - 1.0) for step, s in steps)
    return Engine(name, layer_s, "; ".join(map(said, cells)), residual)


def _ssd_target(cell: PaperCell) -> Setting:
    return place(SSD_TARGETS[cell.target], "h100", devices=4)


def _plain_rates(paper: Paper) -> tuple[list[float], tuple[PaperCell, PaperCell]]:
    """DuoDecoding's plain tokens/s by task, and the cells of the first."""
    plain = [duodecoding.plain_rate(paper, task) for task in TASKS]
    return [rate for rate, _ in plain], plain[0][1]


@machine("h100x4+1", "ssd", "target TP 4 on four H100, draft on a fifth")
def h100x4_1(paper: Paper) -> Sides:
    """SSD: Llama-3.1-70B over four H100, Llama-3.2-1B on a fifth."""
    plain = ssd.plain_cell(paper, ssd.LLAMA)
    target = printed(_ssd_target(plain), 1.0 / plain.value, said(plain), backend="SSD's engine")
    depth = paper.need(table="prose: B.2", value_name="K")
    best = max(
        paper.sound(table=plain.table, target=plain.target, method=ssd.SD, value_name="tok_s"),
        key=lambda cell: cell.value,
    )
    most = ((depth.value + 1.0) / (best.value / plain.value) - 1.0) * target.step_s / depth.value
    note = f"SSD prints no draft time; {said(best)} allows a step of at most {1e3 * most:.2g} ms"
    draft = unprinted(place("llama-3.2-1b", "h100"), ENGINES["ssd"], note)
    description = (
        "SSD (Saguaro): Llama-3.1-70B over 4 H100, drafted for by Llama-3.2-1B on one more; "
        "plain decoding is the paper's, the draft's time a roofline's"
    )
    return target, draft, description


@machine(
    "a100x8", "double", "target TP 2 (C.1: 70B models on two devices), draft on a third; the other five idle"
)
def a100x8(paper: Paper) -> Sides:
    """DOUBLE: LLaMA-3.3-70B over two A100, LLaMA-3.1-8B on one, C as printed."""
    ratio = paper.need(table="Table 1", target="LLaMA-3.3-70B", value_name="C")
    target = unprinted(place("llama-3.3-70b", "a100", devices=2), ENGINES["transformers"])
    draft = printed(
        place("llama-3.1-8b", "a100"),
        target.step_s / ratio.value,
        f"{said(ratio)}, of a target step by roofline",
        backend="transformers",
    )
    description = (
        "DOUBLE: LLaMA-3.3-70B over 2 of 8 A100, drafted for by LLaMA-3.1-8B on one; answers in "
        f"ratios: target step / draft step = {ratio.printed} is the paper's, seconds and tokens/s are a "
        "roofline's"
    )
    return target, draft, description


@machine("a100x8-mirror", "mirror", "target TP 8 on eight A100, draft on one A100")
def a100x8_mirror(_: Paper) -> Sides:
    """Mirror-SD's GPU-only set-up: Qwen3-32B over eight A100, the 0.6B draft on one."""
    note = "Mirror-SD Figure 8 prints the set-up and no number"
    description = (
        "Mirror-SD, GPU only (Figure 8): Qwen3-32B over 8 A100, drafted for by a 0.6B model on "
        "one; nothing of its times is printed: a roofline throughout"
    )
    target = unprinted(place("qwen3-32b", "a100", devices=8), ENGINES["ssd"], note)
    draft = unprinted(place("qwen3-0.6b", "a100"), ENGINES["ssd"], note)
    return target, draft, description


@machine("a800+xeon16", "duodecoding", "target on one A800, draft on 16 CPU cores")
def a800_xeon16(paper: Paper) -> Sides:
    """DuoDecoding: Llama-2-7B on an A800, Llama-68m on 16 Xeon cores."""
    rates, (rate, speedup) = _plain_rates(paper)
    step_s = 1.0 / median(rates)
    target = printed(
        place("llama-2-7b", "a800", "fp16"),
        step_s,
        f"median over tasks of tok/s over speedup of DuoDec, e.g. {said(rate)}, {said(speedup)}",
        backend="transformers",
    )
    budget = paper.need(table="prose: sec 4.4.1", value_name="draft_budget")
    match = paper.all(value_name="tokens_matching_time")[0]
    draft = printed(
        place("llama-68m", "xeon16", "q5_k_m"),
        step_s / budget.value,
        f"budget {budget.printed} = target step / draft step (section 3); Figure 1 would say {match.printed}",
        backend="llama.cpp",
    )
    description = (
        "DuoDecoding: Llama-2-7B on an A800, drafted for by Llama-68m (Q5_K_M) on 16 Xeon cores; "
        f"plain decoding is the paper's, the draft's step 1/{budget.printed} of it by the paper's budget"
    )
    return target, draft, description


@machine("m2ultra-x8+npu", "mirror", "target TP 8 on eight GPUs, draft over eight NPUs")
def m2ultra_x8_npu(paper: Paper) -> Sides:
    """Mirror-SD: Qwen3-32B over eight M2 Ultra GPUs, a 0.6B draft on their NPUs."""
    window = paper.need(table="prose: sec 4.1", value_name="gamma")
    sds = paper.sound(
        table="Table 1", target="Qwen3-32B", method="Vanilla-SD", value_name="speedup", temperature="0"
    )
    best = max(sds, key=lambda cell: cell.value)
    least, most = 0.1, min(1.0, (window.value + 1.0) / best.value - 1.0)
    target = unprinted(place("qwen3-32b", "m2ultra", devices=8), ENGINES["ssd"], "no time of it is printed")
    draft_shape = with_layers(
        find_shape("qwen3-0.6b"), 16, name="qwen3-0.6b, 16 blocks", source="Mirror-SD, G.2"
    )
    draft = printed(
        place(draft_shape, "m2ultra-npu", devices=8),
        0.5 * (least + most) * target.step_s / window.value,
        f"{said(best)} at gamma {window.printed} allows a window of at most {most:.2f} target steps; the "
        f"middle of {least:g} to {most:.2f} is taken",
        backend="sharded over 8 NPUs",
    )
    description = (
        "Mirror-SD: Qwen3-32B over 8 M2 Ultra GPUs, drafted for by a 0.6B model over their NPUs; "
        f"answers in ratios within a band: the draft's window takes {least:g} to {most:.2f} target steps, "
        "the middle is used; seconds and tokens/s are a roofline's"
    )
    return target, draft, description


@machine("a100x1", "rasd", "both on one A100", shared=True)
def a100x1(paper: Paper) -> Sides:
    """RASD: Qwen2.5-14B and its EAGLE-2 head on one A100."""
    place_ = {"table": "Table 1", "target": "Qwen2.5-14B-Instruct", "method": "EAGLE2", "temperature": "0"}
    speeds = paper.sound(**place_, value_name="SR")
    rounds = {
        cell: (paper.need(**place_, dataset=cell.dataset, value_name="tau").value + 1.0) / cell.value
        for cell in speeds
    }
    cost = median(rounds.values())
    target = unprinted(place("qwen2.5-14b", "a100", "fp16"), ENGINES["transformers"])
    head = with_layers(
        find_shape("qwen2.5-14b"), 1, name="EAGLE-2 head of qwen2.5-14b", source="one block of the target"
    )
    draft = printed(
        place(head, "a100", "fp16"),
        (cost - 1.0) * target.step_s / EAGLE_PASSES,
        f"(tau + 1) / SR of EAGLE2, rasd Table 1, T=0: a round costs {min(rounds.values()):.2f} to "
        f"{max(rounds.values()):.2f} target steps by task, median {cost:.2f}, of which all beyond one is "
        f"given to {EAGLE_PASSES} passes of the draft",
        backend="EAGLE-2",
    )
    description = (
        "RASD: Qwen2.5-14B and its EAGLE-2 head on one A100; answers in ratios: a round of "
        f"EAGLE-2 costs {cost:.2f} target steps as printed, seconds and tokens/s are a roofline's; retrieval "
        "(0.2 to 0.7 ms, Table 4) is a policy's own step"
    )
    return target, draft, description


def load_papers() -> dict[str, Paper]:
    """All papers' cells."""
    return {name: Paper(load_cells(name)) for name in PAPERS}


@checked_command(context_settings=HELP)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder to write the profiles to.",
)
def main(out: Path) -> None:
    """Write the hardware profiles of the papers' machines, as their tables and a roofline determine them."""
    papers = load_papers()
    with refusals(INCOMPLETE, BAD_INPUT):
        out.mkdir(parents=True, exist_ok=True)
        for name, build in PROFILES.items():
            path = out / f"{name}.json"
            save_profile(build(papers), path)
            click.echo(f"wrote {path}")


if __name__ == "__main__":
    main()
