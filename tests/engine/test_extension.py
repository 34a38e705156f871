"""What is said where the CUDA extension does not run: true for the installation and the GPU."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from livevoice.engine import extension, native
from livevoice.engine.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
GPU = torch.device("cuda", 0)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As installed from a wheel: nothing to build from beside the package."""
    monkeypatch.setattr(extension, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets what Python and platform this seems to be."""

    def set_to(version: tuple[int, int], system: str, processor: str, libc: str = "glibc") -> None:
        monkeypatch.setattr(extension.sys, "version_info", (*version, 0))
        monkeypatch.setattr(extension.sys, "platform", system)
        monkeypatch.setattr(extension.platform, "machine", lambda: processor)
        monkeypatch.setattr(extension.platform, "libc_ver", lambda: (libc, "2.36"))

    return set_to


def reason(monkeypatch: pytest.MonkeyPatch, fake: object) -> str | None:
    """What the backend says with this in place of the extension: a module, or an error."""

    def answer() -> object:
        if isinstance(fake, Exception):
            raise fake
        return fake

    monkeypatch.setattr(native, "_extension", answer)
    return native.available(GPU, Checkpoint.open("starter").config)


def test_a_clone_is_told_to_build_and_where(machine, monkeypatch):
    machine((3, 12), "linux", "x86_64")
    missing = ModuleNotFoundError("no", name="livevoice.engine._C")
    assert reason(monkeypatch, missing) == (
        "the CUDA extension is not built for CPython 3.12 on linux x86_64; to build it, run "
        f"python setup.py build_ext --inplace in {ROOT}"
    )


@pytest.mark.usefixtures("wheel")
def test_a_pure_wheel_where_there_is_a_better_one_is_told_to_take_that(machine):
    machine((3, 12), "linux", "x86_64")
    said = extension.not_built()
    assert "the wheel without the CUDA extension" in said
    assert said.endswith("run pip install --force-reinstall --no-deps --no-cache-dir livevoice")
    assert "setup.py" not in said


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("here", "named"),
    [
        (((3, 13), "win32", "AMD64"), "CPython 3.13 on win32 AMD64"),
        (((3, 12), "linux", "aarch64"), "CPython 3.12 on linux aarch64"),
        (((3, 12), "linux", "x86_64", ""), "CPython 3.12 on linux x86_64"),  # musl
        (((3, 15), "linux", "x86_64"), "CPython 3.15 on linux x86_64"),
    ],
)
def test_elsewhere_a_pure_wheel_says_what_is_prebuilt_and_how_to_build(machine, here, named):
    machine(*here)
    said = extension.not_built()
    assert f"there is no prebuilt CUDA extension for {named}, only for CPython 3.10 to 3.14" in said
    assert said.endswith("run python setup.py build_ext --inplace in a git clone of LiveVoice")


def test_the_prebuilt_ones_are_those_that_are_released():
    released = re.search(r"^PYTHONS = \((.*)\)", (ROOT / ".ci/release.py").read_text("utf-8"), re.M)
    assert tuple(re.findall(r'"([\d.]+)"', released[1])) == extension.PREBUILT
    recipe = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    assert sorted(re.findall(r"^ +(3\.\d+)$", recipe, re.M)) == sorted(extension.PREBUILT)


def test_the_free_threaded_python_is_another(machine, monkeypatch, wheel):  # noqa: ARG001
    machine((3, 14), "linux", "x86_64")
    monkeypatch.setattr(extension.sysconfig, "get_config_var", lambda _: 1)
    assert "no prebuilt CUDA extension for CPython 3.14t" in extension.not_built()


def test_a_library_that_does_not_load_is_named(monkeypatch):
    error = ImportError("/lib/libc.so.6: version `GLIBC_2.34' not found")
    said = reason(monkeypatch, error)
    assert said.startswith(f"the CUDA extension does not load: {error}; to build it, run python")


def test_this_tree_without_the_extension_says_that_it_is_not_built(monkeypatch):
    """The real import, not a stand-in: a missing file must not read like a broken one."""
    monkeypatch.setitem(sys.modules, "livevoice.engine._C", None)  # as if it were not there
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("livevoice.engine._C")
    said = native.available(GPU, Checkpoint.open("starter").config)
    assert said.startswith("the CUDA extension is not built for ")


def test_an_older_gpu_is_not_told_to_build(monkeypatch):
    fake = SimpleNamespace(check_device=lambda _: ("NVIDIA GeForce RTX 3090", 8, 6))
    said = reason(monkeypatch, fake)
    assert "compute capability 8.9 or newer" in said
    assert "NVIDIA GeForce RTX 3090 has 8.6" in said
    assert "plain PyTorch runs instead" in said
    assert "setup.py" not in said


def test_a_gpu_that_this_build_left_out_is_told_to_build_for_it(monkeypatch):
    fake = SimpleNamespace(check_device=lambda _: ("NVIDIA L40S", 8, 9))
    said = reason(monkeypatch, fake)
    assert said == (
        "the CUDA extension has no code for NVIDIA L40S, compute capability 8.9; to build it, run "
        f"python setup.py build_ext --inplace in {ROOT} with LIVEVOICE_CUDA_ARCHS=89 in the "
        "environment"
    )


def test_a_wrong_driver_is_said_as_the_extension_says_it(monkeypatch):
    def check_device(_: int) -> None:
        raise RuntimeError("native backend: its driver is older than CUDA 13; install driver 580")

    said = reason(monkeypatch, SimpleNamespace(check_device=check_device))
    assert said.endswith("install driver 580")
