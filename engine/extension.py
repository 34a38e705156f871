"""Why the CUDA extension does not run here, and what to do, for each way to install and each GPU.

Sentences only: whether it is there, loads and has code for a GPU is found out in ``native.py``.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PREBUILT = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""CPython versions that have a wheel with the extension, on Linux x86-64 with glibc."""

OLDEST_GPU = (8, 9)
"""Compute capability that the kernels need: conversion of e4m3 in hardware."""


def not_built() -> str:
    """There is no file of the extension for this Python."""
    here = f"{_python()} on {sys.platform} {platform.machine()}"
    if _has_source():
        return f"the CUDA extension is not built for {here}; {_how_to_build()}"
    if _is_prebuilt():
        return (
            f"this LiveVoice is the wheel without the CUDA extension, but there is one for {here}; "
            "run pip install --force-reinstall --no-deps --no-cache-dir livevoice"
        )
    return (
        f"there is no prebuilt CUDA extension for {here}, only for CPython {PREBUILT[0]} to "
        f"{PREBUILT[-1]} on Linux x86-64; {_how_to_build()}"
    )


def does_not_load(error: ImportError) -> str:
    """The file is there, and the system's loader refuses it."""
    return f"the CUDA extension does not load: {error}; {_how_to_build()}"


def no_code(gpu: str, major: int, minor: int) -> str:
    """It loads, and holds nothing that runs on this GPU of compute capability major.minor."""
    if (major, minor) < OLDEST_GPU:
        return (
            "the CUDA extension needs a GPU of compute capability "
            f"{'.'.join(map(str, OLDEST_GPU))} or newer (GeForce RTX 40 or 50, H100), {gpu} has "
            f"{major}.{minor}; plain PyTorch runs instead, fast enough for the starter voice only"
        )
    return (
        f"the CUDA extension has no code for {gpu}, compute capability {major}.{minor}; "
        f"{_how_to_build()} with LIVEVOICE_CUDA_ARCHS={major}{minor} in the environment"
    )


def _how_to_build() -> str:
    place = ROOT if _has_source() else "a git clone of LiveVoice"
    return f"to build it, run python setup.py build_ext --inplace in {place}"


def _has_source() -> bool:
    """Whether this is a clone or the registry's pack, which bring the sources; a wheel does not."""
    return (ROOT / "setup.py").exists()


def _python() -> str:
    free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{platform.python_implementation()} {version}{free}"


def _is_prebuilt() -> bool:
    return (
        _python() in {f"CPython {version}" for version in PREBUILT}
        and (sys.platform, platform.machine()) == ("linux", "x86_64")
        and platform.libc_ver()[0] == "glibc"
    )
