"""Keeps what the tests on a GPU have measured, after each of them: JSON, and lines of Markdown.

LIVEVOICE_REPORT  file to write (output/gpu_report.json); the Markdown lies beside it

    python -m tests.comfy.gpu_report FILE...   prints the lines of one or more runs
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
FILE = Path(os.environ.get("LIVEVOICE_REPORT", ROOT / "output" / "gpu_report.json"))
_BEGAN = time.monotonic()


def say(text: str) -> None:
    """A line that is seen at once, also when the run is killed later."""
    sys.__stdout__.write(f"\n[{time.monotonic() - _BEGAN:5.0f} s] {text}")
    sys.__stdout__.flush()


def keep(name: str, **values: Any) -> None:
    """Add a row to the report, or replace it; tell it."""
    rows = json.loads(FILE.read_text("utf-8")) if FILE.is_file() else {}
    rows[name] = values
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    FILE.with_suffix(".md").write_text(markdown(rows), "utf-8")
    say(f"{name}: " + ", ".join(f"{key} {_figure(value)}" for key, value in values.items()))


def markdown(rows: dict[str, Json]) -> str:
    """Two tables: rounds, and everything else."""
    lines = [
        "| what | rounds | failures | held after | growth | slope a round | NVML growth | round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    others = ["| what | measured |", "|---|---|"]
    for name, row in rows.items():
        if "slope_bytes_per_round" not in row:
            told = ", ".join(f"{key.replace('_', ' ')} {_figure(row[key])}" for key in row)
            others.append(f"| {name} | {told} |")
            continue
        cells = [
            name, row["rounds"], row["failures"], f"{row['bytes_held']:,} B",
            f"{row['growth_bytes'] / 2**20:.2f} MiB", f"{row['slope_bytes_per_round']:.0f} B",
            f"{row['nvml_process_growth_bytes'] / 2**20:.2f} MiB", f"{row['round_s']:.2f} s",
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", *others]) + "\n"


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(files: list[str]) -> None:
    """Print the tables of several runs together."""
    rows: dict[str, Json] = {}
    for file in files:
        rows |= json.loads(Path(file).read_text("utf-8"))
    sys.stdout.write(markdown(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
