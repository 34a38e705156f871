"""Packs ComfyUI and what it needs for a GPU machine without internet, and unpacks it there.

The machine is taken to have torch, torchvision, torchaudio, transformers and their own
requirements; what ComfyUI asks for beyond that travels. Left out, because a server that is only
driven over HTTP does without: the front end, tokenizers of image models, compiled kernels of
comfy-kitchen, and PyAV's 35 MB, for which a stand-in keeps ComfyUI's imports going (`--with-av`
takes the real one). One file of the standard library.

    python tests/comfy/bundle.py make [--python 3.12] [--with-av]
    python tests/comfy/bundle.py unpack
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMFYUI = ROOT / ".comfyui"
SITE = COMFYUI / "site"
"""Packages of an unpacked bundle; a folder for PYTHONPATH."""
ARCHIVE = ROOT / "build" / "gpu" / "bundle.tar.xz"
NEWEST = "0.30.0"
LIMIT_BYTES = 45 << 20

# With what they need in turn.
_PACKAGES = ("alembic", "blake3", "pydantic-settings", "simpleeval")
# By themselves, because these would bring another torch or numpy.
_ALONE = (
    "budoux", "cffi", "comfy-aimdo", "comfy-kitchen", "num2words", "pycparser", "soundfile",
    "torchsde", "trampoline",
)  # fmt: skip
_NOT_NEEDED = (
    ".ci", ".github", "api_server/tests", "blueprints", "models", "script_examples", "tests",
    "tests-unit", "openapi.yaml", "input", "output",
)  # fmt: skip
_STAND_IN = '''"""Stands in for PyAV, which did not travel: ComfyUI imports it, no test does."""

import sys
import types


class _Anything:
    def __init__(self, *_arguments, **_named):
        raise RuntimeError("PyAV is not on this machine")


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}", _Anything)


_HERE = sys.modules[__name__]
_HERE.__class__ = _Module
for _name in ("audio", "codec", "container", "error", "filter", "subtitles", "subtitles.stream",
              "video", "video.reformatter"):
    sys.modules[f"{__name__}.{_name}"] = _Module(f"{__name__}.{_name}")
error = sys.modules[f"{__name__}.error"]
error.FFmpegError = error.InvalidDataError = error.EOFError = type("FFmpegError", (OSError,), {})
__version__ = "16.0.0"
'''


def make(python: str, *, with_av: bool) -> None:
    """Write the archive; exits with a sentence when it became too large to carry."""
    with tempfile.TemporaryDirectory() as name:
        content = Path(name)
        _copy_server(COMFYUI / NEWEST, content / "comfyui")
        _fetch_packages(content / "comfyui", content / "site", python, with_av=with_av)
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE, "w:xz", preset=6) as archive:
            for each in ("comfyui", "site"):
                archive.add(content / each, each)
    size = ARCHIVE.stat().st_size
    say(f"bundle: {ARCHIVE.relative_to(ROOT)}, {size / 2**20:.1f} MiB, for Python {python}")
    if size > LIMIT_BYTES:
        raise SystemExit(f"bundle: more than {LIMIT_BYTES >> 20} MiB")


def unpack() -> None:
    """Put the server where `comfyui.py` looks for it and the packages beside it."""
    if not ARCHIVE.is_file():
        raise SystemExit(f"bundle: no {ARCHIVE.relative_to(ROOT)}; make gpu-bundle makes it")
    COMFYUI.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=COMFYUI) as name:
        with tarfile.open(ARCHIVE) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(name)
        for source, target in (("comfyui", COMFYUI / NEWEST), ("site", SITE)):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            elif target.is_symlink():
                raise SystemExit(f"bundle: {target} is a link, not a folder of ours")
            (Path(name) / source).rename(target)
    (SITE / "livevoice").symlink_to(ROOT, target_is_directory=True)
    say(f"bundle: unpacked into {COMFYUI}")


def _copy_server(source: Path, target: Path) -> None:
    if not (source / "main.py").is_file():
        raise SystemExit(f"bundle: no ComfyUI in {source}; make install puts it there")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source.resolve(), target, ignore=ignored)
    for name in _NOT_NEEDED:
        path = target / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for folder in (target / "comfy" / "text_encoders").glob("*_tokenizer"):
        shutil.rmtree(folder)
    for name in ("models", "input", "output"):
        (target / name).mkdir()


def _fetch_packages(server: Path, site: Path, python: str, *, with_av: bool) -> None:
    pinned = dict(re.findall(r"^(comfy-[a-z]+)(==\S+)", _text(server / "requirements.txt"), re.M))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--upgrade"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    # Every name by which an index may list a wheel that runs with glibc 2.28.
    for tag in ("_2_28", "_2_27", "_2_24", "_2_17", "_2_12", "2014"):
        command += ["--platform", f"manylinux{tag}_x86_64"]
    alone = [f"{each}{pinned.get(each, '')}" for each in _ALONE] + ["av"] * with_av
    for wanted in (["--no-deps", *alone], list(_PACKAGES)):
        done = subprocess.run(
            [*command, "--target", str(site), *wanted], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"bundle: pip failed\n{done.stderr[-2000:]}")
    for compiled in site.glob("comfy_kitchen/backends/*/_C*.so"):
        compiled.unlink()
    for folder in ("bin", "sqlalchemy/testing", "alembic/testing"):
        shutil.rmtree(site / folder, ignore_errors=True)
    if not with_av:
        (site / "av.py").write_text(_STAND_IN)


def _text(path: Path) -> str:
    return path.read_text("utf-8")


def say(text: str) -> None:
    """Tell the person at the terminal, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(description="ComfyUI for a GPU machine without internet.")
    parser.add_argument("what", choices=["make", "unpack"])
    parser.add_argument("--python", default="3.12", help="Python of the machine (default 3.12)")
    parser.add_argument("--with-av", action="store_true", help="take PyAV along, 25 MB more")
    options = parser.parse_args()
    if options.what == "make":
        make(options.python, with_av=options.with_av)
    else:
        unpack()


if __name__ == "__main__":
    main()
