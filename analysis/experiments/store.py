"""Results of experiments as files: JSON and CSV for machines, a picture for people."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from analysis.experiments.bench import Row
from hardware_profiles.atomic import atomic_write
from hardware_profiles.jsonfile import read_json, to_json

RESULTS = Path(__file__).resolve().parents[1] / "results" / "experiments"


@dataclass(frozen=True)
class Outcome:
    """An experiment's rows and where they come from.

    Attributes:
        name: Of the experiment.
        title: What is seen.
        profiles: Profiles that were simulated.
        live: Whether it has measured figures.
        rows: The data.
        how: Prompts, tokens and repetitions.
    """

    name: str
    title: str
    profiles: tuple[str, ...]
    live: bool
    rows: list[Row]
    how: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """One object; what is not a number becomes null."""
        return to_json({**vars(self), "rows": [_clean(row) for row in self.rows]}, indent=1)


def _clean(row: Row) -> Row:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def load(name: str, folder: Path = RESULTS) -> Outcome:
    """A stored outcome.

    Raises:
        OSError: There is none.
    """
    found = read_json(folder / f"{name}.json")
    return Outcome(**{**found, "profiles": tuple(found["profiles"])})


def save(outcome: Outcome, module: ModuleType, folder: Path) -> list[Path]:
    """Write JSON, CSV and picture; returns the files.

    Raises:
        ValueError: The folder holds live results of that experiment and these are simulated only.
    """
    path = folder / f"{outcome.name}.json"
    if path.is_file() and not outcome.live and load(outcome.name, folder).live:
        raise ValueError(f"{path} holds live results; give --out another folder, or --live")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(outcome.as_json() + "\n")
    table = folder / f"{outcome.name}.csv"
    with atomic_write(table) as file:
        file.write(as_csv(outcome.rows))
    return [path, table, plot(outcome, module, folder / f"{outcome.name}.png")]


def as_csv(rows: list[Row]) -> str:
    """The rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def plot(outcome: Outcome, module: ModuleType, path: Path) -> Path:
    """The experiment's picture, with what is seen as its title."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(11, 4.6), layout="constrained")
    draw(figure, outcome, module)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format="png")
    pyplot.close(figure)
    return path


def draw(figure: Any, outcome: Outcome, module: ModuleType) -> None:
    """The picture on a figure of the caller's."""
    module.draw(figure, outcome.rows)
    kind = "law, simulated, live" if outcome.live else "law and simulated"
    figure.suptitle(f"{outcome.title}\n{', '.join(outcome.profiles)}: {kind}", fontsize=10)
