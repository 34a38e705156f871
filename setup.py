"""Builds ``engine/_C``, the CUDA engine, where a CUDA compiler is; installs Python alone elsewhere.

The compiler is taken from ``CUDA_HOME``, from the PATH, or from the PyPI packages nvidia-cuda-nvcc,
nvidia-cuda-runtime and nvidia-cuda-cccl. ``LIVEVOICE_CUDA_ARCHS`` (such as "90" or "89,120") builds
for these GPUs only. Metadata is in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
ARCHS = ("89", "90", "120")  # RTX 40, H100/H200, RTX 50; newer GPUs take the PTX of the last
SOURCES = (
    "bindings.cpp", "codec.cu", "decode_step.cu", "engine.cu", "kernel_calls.cu", "layout.cu",
    "loader.cu", "pool.cpp", "prefill.cu",
)  # fmt: skip
HOW_TO_BUILD = (
    "to build it, install a CUDA toolkit (12.8 or newer) or `pip install nvidia-cuda-nvcc "
    "nvidia-cuda-runtime nvidia-cuda-cccl pybind11`, then run `python setup.py build_ext --inplace`"
)


class NoCompilerError(Exception):
    """Why the extension can't be built here, in half a sentence."""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA compiler and where its headers and libraries lie."""

    nvcc: Path
    include: tuple[Path, ...]
    lib: tuple[Path, ...]


def find_toolkit() -> Toolkit:
    """The first complete toolkit; raises NoCompilerError."""
    roots = [
        Path(home) for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home
    ]
    on_path = shutil.which("nvcc")
    if on_path:
        roots.append(Path(on_path).resolve().parent.parent)
    for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        roots += sorted(Path(packages or ".").glob("nvidia/cu[0-9]*"), reverse=True)
        roots += sorted(Path(packages or ".").glob("nvidia/cuda_nvcc"))
    for root in roots:
        nvcc = root / "bin" / ("nvcc.exe" if os.name == "nt" else "nvcc")
        if not nvcc.exists():
            continue
        # The 12.x packages put each part into a folder of its own.
        parts = [root, *sorted(root.parent.glob("cuda_*"))] if root.name == "cuda_nvcc" else [root]
        folders = (part / name for part in parts for name in ("include", "include/cccl"))
        include = tuple(folder for folder in folders if folder.is_dir())
        lib = tuple(
            part / name for part in parts for name in ("lib64", "lib") if (part / name).is_dir()
        )
        if any((folder / "cuda_runtime.h").exists() for folder in include):
            return Toolkit(nvcc, include, lib)
    raise NoCompilerError("there is no CUDA compiler (nvcc) with its runtime headers")


def pybind11_include() -> str:
    """Folder of pybind11's headers; raises NoCompilerError."""
    try:
        import pybind11
    except ImportError as error:
        raise NoCompilerError("the Python package pybind11 is missing") from error
    return pybind11.get_include()


def archs_for(toolkit: Toolkit) -> list[str]:
    """The GPUs to build for, oldest first."""
    asked = os.environ.get("LIVEVOICE_CUDA_ARCHS")
    if asked:
        return [arch.strip() for arch in asked.split(",")]
    known = subprocess.run(
        [toolkit.nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True
    ).stdout
    return [arch for arch in ARCHS if re.search(rf"compute_{arch}\b", known)]


class BuildCuda(build_ext):
    """Compiles csrc with nvcc and links it with the static CUDA runtime."""

    def run(self) -> None:
        """Build, or say in one sentence why not; an optional extension never stops an install."""
        try:
            self._toolkit = find_toolkit()
            self._pybind11 = pybind11_include()
        except NoCompilerError as reason:
            self.warn(f"LiveVoice: the CUDA engine is not built: {reason}; {HOW_TO_BUILD}")
            self.extensions = []
            return
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile each source to an object, two at a time, and link."""
        target = Path(self.get_ext_fullpath(ext.name))
        objects = Path(self.build_temp) / "csrc"
        objects.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        archs = archs_for(self._toolkit)
        with ThreadPoolExecutor(min(len(SOURCES), os.cpu_count() or 1)) as pool:
            compiled = list(pool.map(lambda name: self._compile(name, objects, archs), SOURCES))
        libraries = [f"-L{folder}" for folder in self._toolkit.lib]
        host = ["-Xcompiler", "-fPIC", "-Xlinker", "--exclude-libs,ALL"] if os.name != "nt" else []
        if sys.platform == "win32":
            libraries.append(f"-L{Path(sys.base_prefix) / 'libs'}")
        self._call(
            [self._toolkit.nvcc, "-shared", "-cudart", "static", *host, *compiled, *libraries,
             "-o", target]
        )  # fmt: skip

    def _compile(self, name: str, objects: Path, archs: list[str]) -> Path:
        source, output = HERE / "csrc" / name, objects / f"{name}.o"
        newest = max(file.stat().st_mtime for file in (HERE / "csrc").rglob("*.[ch]*"))
        newest = max(newest, source.stat().st_mtime, Path(__file__).stat().st_mtime)
        stamp, key = (
            objects / f"{name}.archs",
            f"{','.join(archs)} {sysconfig.get_config_var('SOABI')}",
        )
        if output.exists() and output.stat().st_mtime > newest and stamp.read_text() == key:
            return output
        include = [HERE / "csrc", *self._toolkit.include]
        if name == "bindings.cpp":
            include += [Path(self._pybind11), Path(sysconfig.get_path("include"))]
        code = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
        code.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
        host = "/O2,/EHsc" if os.name == "nt" else "-fPIC,-fvisibility=hidden,-Wall"
        self._call(
            [self._toolkit.nvcc, "-std=c++17", "-O3", "-cudart", "static", "-Xcompiler", host,
             # Kernels of headers that one source includes and does not launch.
             "-diag-suppress", "177", *code, *(f"-I{folder}" for folder in include),
             "-x", "cu", "-c", source, "-o", output]
        )  # fmt: skip
        stamp.write_text(key)
        return output

    def _call(self, command: list[object]) -> None:
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if result.returncode:
            sys.stderr.write(result.stdout + result.stderr)
            raise RuntimeError(f"LiveVoice: {Path(str(command[0])).name} failed, see above")


setup(
    ext_modules=[Extension("livevoice.engine._C", [f"csrc/{name}" for name in SOURCES])],
    cmdclass={"build_ext": BuildCuda},
)
