"""Many of the tests on a GPU at the same time, each with a server of its own, in a minute or two.

For a large card that is lent for a short while. Memory is judged by NVML then, process by process.
What needs the card alone is not among them: speed, and memory that another process holds. The cards
that are too small for two models are imitated by ComfyUI's own `--reserve-vram`.

    python -m livevoice.tests.comfy.gpu_at_once SECONDS FOLDER [NAME...]

From the repository's root. Writes each test's log and one report into the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from . import gpu, gpu_report, image_model
from .comfyui import BACK_ENDS, NEWEST
from .test_gpu_beside import FLAGS, picture_path

RESERVED_GB = "138"
_STARTS_S = 32  # of a server among many, until its first round

# Name → file, choice of tests, and whether it needs the checkpoint of the real sizes.
TESTS = {
    "rounds": ("soak", "smoke or starter", False),
    "trouble": ("faults", "trouble", False),
    "memory": ("faults", "any_step or cancel or queue", False),
    "neighbours": ("faults", "graphs", False),
    "two": ("faults", "two_loaders", True),
    "real": ("soak", "real", True),
    "keep": ("naive", "keep", False),
    "drop": ("naive", "drop", False),
}  # fmt: skip

# In front of a set of flags: the same beside the checkpoint of the real sizes.
REAL = "real: "


def _test(name: str) -> tuple[str, str, bool]:
    if name.startswith(REAL):
        return ("beside", "test_speech_picture_speech and real", True)
    return TESTS.get(name, ("beside", "test_speech_picture_speech and not real", False))


def _file(folder: Path, name: str, ending: str) -> Path:
    return folder / (name.replace(": ", "-").replace(" ", "-") + ending)


def started(name: str, seconds: float, folder: Path) -> subprocess.Popen[bytes]:
    """One pytest."""
    file, choice, _ = _test(name)
    share = 4 if name == "real" else 1  # of the budget that this test takes
    env = {
        "LIVEVOICE_REPORT": str(_file(folder, name, ".json")),
        "LIVEVOICE_BUDGET_S": str(share * max(5.0, seconds - _STARTS_S)),
        "LIVEVOICE_ROUNDS": os.environ.get(
            "LIVEVOICE_ROUNDS", "1000" if file != "faults" else "500"
        ),
        "LIVEVOICE_FLAGS": name.removeprefix(REAL),
        "LIVEVOICE_RESERVE_GB": RESERVED_GB,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-k", choice]
    with _file(folder, name, ".log").open("wb") as log:
        return subprocess.Popen(
            [*command, f"tests/comfy/test_gpu_{file}.py"],
            env={**os.environ, **env}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def main(seconds: float, folder: Path, names: list[str]) -> int:
    """Run them, end what is too slow, merge; the number of those that did not pass."""
    end = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    size = "tiny" if gpu.ON_CPU else "whole"
    running = {
        name: started(name, seconds, folder)
        for name in names
        if name in TESTS and not _test(name)[2]
    }
    image_model.made(picture_path(), BACK_ENDS / NEWEST, size, dict(os.environ))
    for name in names:
        if name not in TESTS and not _test(name)[2]:
            running[name] = started(name, end - time.monotonic(), folder)
    gpu.real_checkpoint()
    for name in names:
        if name not in running:
            running[name] = started(name, end - time.monotonic(), folder)
    outcomes = {name: _outcome(process, end) for name, process in running.items()}
    _merge(folder, outcomes)
    return sum(outcome != "passed" for outcome in outcomes.values())


def _outcome(process: subprocess.Popen[bytes], end: float) -> str:
    try:
        code = process.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()  # its server dies with it
        return "not done in time"
    return "passed" if code == 0 else "failed"


def _merge(folder: Path, outcomes: dict[str, str]) -> None:
    rows = {}
    for name, outcome in outcomes.items():
        file = _file(folder, name, ".json")
        log = _file(folder, name, ".log").read_text("utf-8", "replace")
        if file.is_file():
            rows |= json.loads(file.read_text("utf-8"))
        gpu_report.say(f"{name}: {outcome}")
        if outcome != "passed":
            lines = log.splitlines()
            errors = [line for line in lines if line.startswith("E ")]
            gpu_report.say("  " + "\n  ".join(errors[:4] + lines[-3:]))
    sys.stdout.write("\n" + gpu_report.markdown(rows))
    (folder / "report.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    chosen = sys.argv[3:] or [*TESTS, *FLAGS, *(REAL + name for name in FLAGS)]
    sys.exit(main(float(sys.argv[1]), Path(sys.argv[2]), chosen))
