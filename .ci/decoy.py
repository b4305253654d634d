"""Fill a data folder with decoys: every shipped profile's name with absurd numbers, every trace's with none.

A test that finds one of them reads the user's own folder, and fails here instead of at a user's.

    python .ci/decoy.py FOLDER      then: XDG_DATA_HOME=FOLDER pytest
"""

import json
import sys
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "hardware_profiles" / "data"
ABSURD_S = 1e9


def main(folder: Path) -> None:
    """Write the decoys."""
    profile = json.loads((SHIPPED / "profiles" / "textbook.json").read_text())
    profile["operations"] = {name: {"seconds": ABSURD_S} for name in profile["operations"]}
    for path in SHIPPED.glob("*/*.*"):
        if path.suffix in {".json", ".parquet"}:
            decoy = folder / "spectwin" / path.relative_to(SHIPPED)
            decoy.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(profile | {"name": path.stem}) if path.suffix == ".json" else "a decoy"
            decoy.write_text(text)


main(Path(sys.argv[1]))
