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
# With a column of their own, or told by the neighbouring one.
_CELLS = {
    "rounds", "failures", "bytes_held", "growth_bytes", "peak_growth_bytes", "round_s",
    "slope_bytes_per_round", "nvml_slope_bytes_per_round", "nvml_process_growth_bytes",
    "nvml_peak_growth_bytes", "rss_growth_bytes",
}  # fmt: skip


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
        "| what | rounds | failures | held | growth | at most | slope | NVML | round | more |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    others = ["| what | measured |", "|---|---|"]
    for name, row in rows.items():
        if "slope_bytes_per_round" not in row:
            others.append(f"| {name} | {_told(row)} |")
            continue
        cells = [
            name, row["rounds"], row["failures"], f"{row['bytes_held']:,} B",
            _mib(row["growth_bytes"]), _mib(row["peak_growth_bytes"]),
            f"{row['slope_bytes_per_round']:.0f} B", _mib(row["nvml_peak_growth_bytes"]),
            f"{row['round_s']:.2f} s", _told({k: v for k, v in row.items() if k not in _CELLS}),
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", *others]) + "\n"


def _mib(n_bytes: float) -> str:
    return f"{n_bytes / 2**20:.2f} MiB"


def _told(row: Json) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {_figure(value)}" for key, value in row.items())


def _figure(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
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
