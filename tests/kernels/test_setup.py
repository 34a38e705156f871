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


def build_ext(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py alone in a folder; variables come on top of those that choose no compiler."""
    shutil.copy(ROOT / "setup.py", folder)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"CUDA_HOME", "CUDA_PATH", "PATH"}
    }
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext"], cwd=folder,
        env=kept | {"PATH": ""} | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_without_a_compiler_the_build_says_so_and_succeeds(tmp_path: Path):
    if any(Path(sysconfig.get_path("platlib")).glob("nvidia/cu*/bin/nvcc")):
        pytest.skip("a CUDA compiler is among the Python packages here: it would be used")
    done = build_ext(tmp_path)
    assert done.returncode == 0, done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if "LiveVoice" in line]
    assert len(said) == 1
    assert "the CUDA engine is not built: there is no CUDA compiler (nvcc)" in said[0]


@pytest.mark.parametrize("asked", ["86", "8.9", "75,89", "sm_90"])
def test_a_gpu_that_it_cannot_be_built_for_is_refused_in_a_sentence(tmp_path: Path, asked: str):
    pytest.importorskip("pybind11")
    toolkit = tmp_path / "toolkit"
    for name in ("bin/nvcc", "include/cuda_runtime.h"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    done = build_ext(tmp_path, CUDA_HOME=str(toolkit), LIVEVOICE_CUDA_ARCHS=asked)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1] == (
        f"LiveVoice: LIVEVOICE_CUDA_ARCHS is '{asked}'; it takes compute capabilities without "
        "their dot, from 89 (RTX 40) on, such as 89,120"
    )
