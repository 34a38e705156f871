"""Builds ``engine/_C``, the CUDA engine, where a CUDA compiler is; installs Python alone elsewhere.

The compiler is taken from ``CUDA_HOME``, from the PATH, or from the PyPI packages nvidia-cuda-nvcc,
nvidia-cuda-runtime and nvidia-cuda-cccl. Metadata is in pyproject.toml. Environment variables:

    LIVEVOICE_CUDA_ARCHS   build for these GPUs only, such as "90" or "89,120"
    LIVEVOICE_GLIBC        link for this glibc, such as "2.17"; needs the PyPI package ziglang
    LIVEVOICE_PURE         build a wheel without the extension, for every platform
"""

from __future__ import annotations

import importlib.util
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
OBJECTS = HERE / "build" / "csrc"
ARCHS = ("89", "90", "120")  # RTX 40, H100/H200, RTX 50; GPUs between and after take their PTX
GLIBC = os.environ.get("LIVEVOICE_GLIBC")
WINDOWS = os.name == "nt"
# The C++ library linked in, so that no redistributable has to be there; CUDA's headers need a
# preprocessor that keeps to the standard, and our sources are UTF-8.
WINDOWS_FLAGS = "/O2,/EHsc,/MT,/Zc:preprocessor,/permissive-,/utf-8"
SOURCES = (
    "bindings.cpp", "codec.cu", "decode_step.cu", "engine.cu", "engine_steps.cu", "kernel_calls.cu",
    "layout.cu", "loader.cu", "persistent_step.cu", "pool.cpp", "prefill.cu", "steps.cu",
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
        nvcc = root / "bin" / ("nvcc.exe" if WINDOWS else "nvcc")
        if not nvcc.exists():
            continue
        # The 12.x packages put each part into a folder of its own.
        parts = [root, *sorted(root.parent.glob("cuda_*"))] if root.name == "cuda_nvcc" else [root]
        folders = (part / name for part in parts for name in ("include", "include/cccl"))
        include = tuple(folder for folder in folders if folder.is_dir())
        lib = tuple(
            part / name
            for part in parts
            for name in ("lib64", "lib/x64", "lib")
            if (part / name).is_dir()
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
        archs = [arch.strip() for arch in asked.split(",")]
        if not all(re.fullmatch(r"(89|9\d|1\d\d)[af]?", arch) for arch in archs):
            raise SystemExit(
                f"LiveVoice: LIVEVOICE_CUDA_ARCHS is '{asked}'; it takes compute capabilities "
                "without their dot, from 89 (RTX 40) on, such as 89,120"
            )
        return archs
    known = subprocess.run(
        [toolkit.nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True
    ).stdout
    return [arch for arch in ARCHS if re.search(rf"compute_{arch}\b", known)]


def _code_for(arch: str) -> list[str]:
    """Flags of nvcc for machine code of a GPU, and PTX for those after it.

    H100 and H200 have instructions that no other GPU has, hence the ``a``, and no PTX of them.
    """
    ptx = f"-gencode=arch=compute_{arch},code=compute_{arch}"
    exact = f"{arch}a" if arch == "90" else arch
    return [f"-gencode=arch=compute_{exact},code=sm_{exact}", ptx]


class BuildCuda(build_ext):
    """Compiles csrc with nvcc and links it with the static CUDA runtime."""

    def run(self) -> None:
        """Build, or say in one sentence why not; an optional extension never stops an install."""
        try:
            self._toolkit = find_toolkit()
            self._pybind11 = pybind11_include()
        except NoCompilerError as reason:
            if GLIBC:  # a wheel that says it has the engine must have it
                raise SystemExit(f"LiveVoice: no wheel for glibc {GLIBC}: {reason}") from reason
            self.warn(f"LiveVoice: the CUDA engine is not built: {reason}; {HOW_TO_BUILD}")
            self.extensions = []
            return
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile each source to an object, two at a time, and link."""
        # Not in build_temp: all but the bindings serves every Python.
        OBJECTS.mkdir(parents=True, exist_ok=True)
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        archs = archs_for(self._toolkit)
        with ThreadPoolExecutor(min(len(SOURCES), os.cpu_count() or 1)) as pool:
            objects = list(pool.map(lambda name: self._compile(name, archs), SOURCES))
        self._call(self._link_for(GLIBC, objects) if GLIBC else self._link(objects), target)

    def _compile(self, name: str, archs: list[str]) -> Path:
        python = f".{sysconfig.get_config_var('EXT_SUFFIX')}" if name == "bindings.cpp" else ""
        output = OBJECTS / f"{name}{python}.{'obj' if WINDOWS else 'o'}"
        inputs = [HERE / "csrc" / name, Path(__file__), *(HERE / "csrc").rglob("*.*h")]
        newest = max(file.stat().st_mtime for file in inputs)
        stamp, key = output.with_suffix(".archs"), f"{','.join(archs)} {GLIBC}"
        if output.exists() and output.stat().st_mtime > newest and stamp.read_text() == key:
            return output
        # Paths inside the repository are relative, so that its place is not in the result.
        include = [Path("csrc"), *self._toolkit.include]
        if python:
            include += [Path(self._pybind11), Path(sysconfig.get_path("include"))]
        code = [flag for arch in archs for flag in _code_for(arch)]
        alike = _same_anywhere(name, include[1:]) if GLIBC else []
        self._call(
            [self._toolkit.nvcc, "-std=c++17", "-O3", "-cudart", "static", "-Xcompiler",
             WINDOWS_FLAGS if WINDOWS else "-fPIC,-fvisibility=hidden,-Wall",
             # Kernels of headers that one source includes and does not launch.
             "-diag-suppress", "177",
             "-compress-mode=size", *alike, *code, *(f"-I{folder}" for folder in include),
             "-x", "cu", "-c", f"csrc/{name}"],
            output.relative_to(HERE),
        )  # fmt: skip
        stamp.write_text(key)
        return output

    def _link(self, objects: list[Path]) -> list[object]:
        """With the system's own libraries: for this machine and newer ones."""
        folders = [*self._toolkit.lib, *([Path(sys.base_prefix) / "libs"] if WINDOWS else [])]
        host = ["-Xcompiler", "-fPIC", "-Xlinker", "--exclude-libs,ALL", "-Xlinker", "-s"]
        if WINDOWS:
            host = ["-Xlinker", f"/IMPLIB:{OBJECTS / '_C.lib'}"]
        libraries = [f"-L{folder}" for folder in folders]
        return [self._toolkit.nvcc, "-shared", "-cudart", "static", *host, *objects, *libraries]

    def _link_for(self, glibc: str, objects: list[Path]) -> list[object]:
        """For every Linux x86-64 with this glibc or a newer one: a wheel that runs anywhere.

        The linker of the PyPI package ziglang knows the symbols of each glibc; the C++ library is
        linked in. That one asks glibc 2.32 whether there is one thread only; ours always says no.
        """
        stub, exports = OBJECTS / "single_threaded.c", OBJECTS / "exports.map"
        stub.write_text("char __libc_single_threaded;\n")
        exports.write_text("{ global: PyInit__C; local: *; };\n")
        archive = next(
            path for folder in self._toolkit.lib for path in [folder / "libcudart_static.a"]
            if path.exists()
        )  # fmt: skip
        host = [_library("libstdc++.a"), _library("libgcc_s.so.1")]
        zig = Path(importlib.util.find_spec("ziglang").origin).with_name("zig")
        return [zig, "cc", "-target", f"x86_64-linux-gnu.{glibc}",
                "-shared", *(path.relative_to(HERE) for path in (*objects, stub)), archive, *host,
                "-lpthread", "-ldl", "-lrt", "-lm", f"-Wl,--version-script={exports}",
                "-Wl,--gc-sections", "-s"]  # fmt: skip

    def _call(self, command: list[object], output: Path) -> None:
        command = [str(part) for part in (*command, "-o", output)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
        if result.returncode:
            sys.stderr.write(result.stdout + result.stderr)
            raise RuntimeError(f"LiveVoice: {Path(command[0]).name} failed, see above")


def _same_anywhere(name: str, installed: list[Path]) -> list[str]:
    """What keeps this machine's paths out of an object, so that each build gives the same bytes."""
    # Names of intermediate files get into it; but two builds at once would disturb each other.
    options = ["-objtemp"]
    # Local names carry a hash of the source's absolute path, unless the front end is told another.
    options += ["-Xcudafe", "--orig_src_path_name", "-Xcudafe", f"csrc/{name}"]
    for folder in installed:  # pybind11's assertions name their files
        options += ["-Xcompiler", f"-fmacro-prefix-map={folder}=include"]
    return options


def _library(name: str) -> str:
    """Path of a library of the host's C++ compiler."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


setup(
    # A pure wheel, for the platforms that have no prebuilt one.
    ext_modules=[]
    if os.environ.get("LIVEVOICE_PURE")
    else [Extension("livevoice.engine._C", [f"csrc/{name}" for name in SOURCES])],
    cmdclass={"build_ext": BuildCuda},
)
