"""Installing without a CUDA compiler says so in one sentence, and installs the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_compiler_the_build_says_so_and_succeeds(tmp_path: Path):
    if any(Path(sysconfig.get_path("platlib")).glob("nvidia/cu*/bin/nvcc")):
        pytest.skip("a CUDA compiler is among the Python packages here: it would be used")
    shutil.copy(ROOT / "setup.py", tmp_path)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"CUDA_HOME", "CUDA_PATH", "PATH"}
    }
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"], cwd=tmp_path, env=environment | {"PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "LiveVoice" in line]
    assert len(said) == 1
    assert "the CUDA engine is not built: there is no CUDA compiler (nvcc)" in said[0]
