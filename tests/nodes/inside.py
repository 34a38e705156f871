"""Runs test functions inside an unpacked ComfyUI: in a process of its own, without its server.

The files named ``inside_*.py`` import ComfyUI, which reads its command line when imported and can't
be there twice, in two versions. So pytest collects them only here, one process a version, and
`test_inside.py` reports their outcomes one by one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BACK_ENDS = HERE.parents[1] / ".comfyui"
FILES = sorted(HERE.glob("inside_*.py"))


def back_ends() -> list[str]:
    """Versions that are unpacked."""
    return sorted(main.parent.name for main in BACK_ENDS.glob("*/main.py"))


def outcomes(version: str, base: Path) -> dict[str, str]:
    """Run all files in that version; test name → empty when passed, else the report.

    Args:
        version: one of `back_ends`.
        base: an empty folder for ComfyUI's own (models, output ...).
    """
    env = {**os.environ, "PYTHONPATH": str(BACK_ENDS / version), "HF_HUB_OFFLINE": "1"}
    env["OMP_NUM_THREADS"] = "1"  # models as small as these are slower with two threads
    answer = base / "outcomes.json"
    done = subprocess.run(
        [sys.executable, str(HERE / "inside.py"), "--cpu", "--base-directory", str(base)],
        env={**env, "OUTCOMES": str(answer)},
        cwd=base,
        capture_output=True,
        text=True,
        check=False,
    )
    if not answer.exists():
        raise RuntimeError(f"ComfyUI {version} did not run the tests:\n{done.stdout}{done.stderr}")
    return json.loads(answer.read_text())


class Recorder:
    """A pytest plugin that keeps each test's outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::")[-1]
        self.outcomes.setdefault(name, "")
        if report.failed:
            self.outcomes[name] += f"{report.when}:\n{report.longreprtext}\n{report.capstderr}"


def main() -> None:
    """The inner process: ComfyUI's command line is ours."""
    import comfy.options
    import pytest

    comfy.options.enable_args_parsing()
    # First, as in ComfyUI's main.py: its nodes.py puts a folder with another utils on the path.
    import utils.extra_config  # noqa: F401

    # Importing tests.nodes or tests.comfy as top-level names would hide ComfyUI's own.
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath=", f"--confcutdir={HERE}"]
    recorder = Recorder()
    pytest.main([*options, f"--rootdir={HERE.parents[1]}", *map(str, FILES)], plugins=[recorder])
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(recorder.outcomes))


if __name__ == "__main__":
    main()
