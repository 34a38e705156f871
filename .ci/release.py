"""Builds what is released, from what is committed: the wheels and their list of hashes.

One wheel for each CPython that is found here, with the CUDA engine inside and linked for every
Linux x86-64 since glibc 2.17; a pure one for every other platform; the starter voice as a wheel of
its own. The CUDA code is compiled once, the bindings for each Python. Same commit and same
compilers, same bytes. A file of the standard library; needs a CUDA toolkit, g++ and pip.

    python3 .ci/release.py wheels [--pythons 3.10,3.14] [--python FILE ...] [--work FOLDER]
    python3 .ci/release.py pack
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
GLIBC = "2.17"
TAG = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
LIMIT_BYTES = 8 << 20
# Each can change the bytes of a wheel.
TOOLS = (
    "auditwheel==6.8.2", "packaging==26.4", "pybind11==3.1.0", "pyelftools==0.33",
    "setuptools==84.2.1", "wheel==0.48.0", "ziglang==0.17.1",
)  # fmt: skip
COMFY_CLI = "comfy-cli==1.23.0"
EXTENSION = re.compile(r"livevoice/engine/(_C\.[^/]+)")


def wheels(pythons: dict[str, Path], work: Path) -> None:
    """Build, check and hash every wheel; what was in the output folder goes."""
    shutil.rmtree(work, ignore_errors=True)
    tools = environment(work / "tools", *TOOLS)
    source, dist = work / "source", work / "dist"
    stamp = committed(source)
    site = next(tools.parent.parent.glob("lib/python*/site-packages"))
    env = {**os.environ, "PYTHONPATH": str(site), "SOURCE_DATE_EPOCH": stamp}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "ZIG_GLOBAL_CACHE_DIR": str(work / "zig")}
    env.pop("LIVEVOICE_CUDA_ARCHS", None)
    for version, python in pythons.items():
        start = time.monotonic()
        command = [python, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", dist]
        run(*command, "--plat-name", TAG, cwd=source, env={**env, "LIVEVOICE_GLIBC": GLIBC})
        say(f"release: CPython {version} {time.monotonic() - start:.0f} s")
    pure = [tools, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", dist]
    run(*pure, cwd=source, env={**env, "LIVEVOICE_PURE": "1"})
    starter = "import setuptools; setuptools.setup()"
    run(tools, "-c", starter, *pure[2:], cwd=source / "engine" / "starter", env=env)
    built = sorted(dist.glob("*.whl"))
    for wheel in built:
        check(wheel, pythons, tools)
    same_but_extension([wheel for wheel in built if "starter" not in wheel.name])
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("*.whl"):
        old.unlink()
    for wheel in built:
        shutil.copy2(wheel, DIST)
    write_hashes()


def check(wheel: Path, pythons: dict[str, Path], tools: Path) -> None:
    """Size, tag and, for a wheel with the extension, that its Python imports it."""
    size = wheel.stat().st_size
    note = ""
    if TAG in wheel.name:
        shown = run(tools, "-m", "auditwheel", "show", wheel)
        # auditwheel may name the same policy by its older name.
        if not re.search(rf'platform tag:\s*"({TAG}|manylinux2014_x86_64)"', shown):
            raise SystemExit(f"release: auditwheel does not find {TAG}:\n{shown}")
        minor = re.search(r"-cp3(\d+)-", wheel.name)[1]
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if EXTENSION.fullmatch(name)]
            archive.extract(name, folder)
            if traces := traces_of_this_machine(archive.read(name)):
                raise SystemExit(f"release: {wheel.name} names {', '.join(traces)}")
            code = "import _C; print(_C.__doc__)"
            run(pythons[f"3.{minor}"], "-c", code, cwd=Path(folder, name).parent)
        note = f", auditwheel: {TAG}, imported"
    if size > LIMIT_BYTES and "starter" not in wheel.name:
        raise SystemExit(f"release: {wheel.name} has {size} bytes, more than {LIMIT_BYTES}")
    say(f"release: {wheel.name} {size / 1e6:.2f} MB{note}")


def same_but_extension(built: list[Path]) -> None:
    """Every wheel holds the files of the pure one, which the tests check, and one extension."""
    files = {}
    for wheel in built:
        with zipfile.ZipFile(wheel) as archive:
            files[wheel.name] = {*archive.namelist()}
    (pure,) = [names for name, names in files.items() if TAG not in name]
    for name, names in files.items():
        extensions = list(filter(EXTENSION.fullmatch, names))
        if names - {*extensions} != pure or len(extensions) != (TAG in name):
            raise SystemExit(f"release: {name} holds other files than the pure wheel")


def traces_of_this_machine(binary: bytes) -> list[str]:
    """Absolute paths of headers and sources: another machine would build other bytes."""
    found = re.findall(rb"\0(/[^\0]*\.(?:h|hpp|cuh|cu|cpp))\0", binary)
    return sorted({path.decode() for path in found})


def pack() -> None:
    """ComfyUI's registry package, as its publishing command makes it, with the extensions inside.

    In a clone, because the command takes the files that git tracks, and the extensions are only
    added to the clone's index.
    """
    comfy = environment(ROOT / "build" / "comfy-cli", COMFY_CLI).with_name("comfy")
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name, "livevoice")
        run("git", "clone", "--quiet", "--no-local", ROOT, clone)
        stage(clone)
        env = {**os.environ, "DO_NOT_TRACK": "1", "HOME": name}
        for command in ("validate", "pack"):
            said = run(comfy, "--skip-prompt", "node", command, cwd=clone, env=env)
            if re.search(r"warning|not found", said, re.I):
                raise SystemExit(f"release: comfy node {command} said:\n{said}")
        DIST.mkdir(exist_ok=True)
        shutil.copy2(clone / "node.zip", DIST / "node.zip")
    with zipfile.ZipFile(DIST / "node.zip") as archive:
        names = archive.namelist()
    tracked = run("git", "ls-files", cwd=ROOT).split()
    left_out = run("git", "ls-files", "-ci", "--exclude-from=.comfyignore", cwd=ROOT).split()
    extra = {name for name in names if re.fullmatch(r"engine/_C\.\S+", name)}
    if set(names) - extra != set(tracked) - set(left_out):
        raise SystemExit("release: the archive's files are not those that .comfyignore leaves")
    size = (DIST / "node.zip").stat().st_size
    say(f"release: node.zip {len(names)} files, {len(extra)} extensions, {size / 1e6:.1f} MB")


def stage(checkout: Path) -> None:
    """Put the extension of each wheel into a checkout that is published, and into git's index."""
    for wheel in sorted(DIST.glob(f"*{TAG}.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in filter(EXTENSION.fullmatch, archive.namelist()):
                target = checkout / "engine" / EXTENSION.fullmatch(name)[1]
                target.write_bytes(archive.read(name))
                run("git", "add", "--force", target.relative_to(checkout), cwd=checkout)


def committed(folder: Path) -> str:
    """Lay the committed files into the folder; returns the commit's time in seconds."""
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT):
        say("release: there are changes that are not committed; they are not built")
    os.umask(0o022)  # modes are part of a wheel
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--output", archive, "HEAD", cwd=ROOT)
    shutil.unpack_archive(archive, folder)
    return run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


def environment(folder: Path, *packages: str) -> Path:
    """The Python of an environment with these packages, made when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run(python, *pip, *packages)
    return python


def interpreters(wanted: list[str], given: list[str]) -> dict[str, Path]:
    """Version → interpreter with headers: given ones first, then those found in usual places."""
    found: dict[str, Path] = {}
    places = [Path(each) for each in given]
    for version in wanted:
        short = version.replace(".", "")
        places.append(Path(f"/opt/python/cp{short}-cp{short}/bin/python"))  # manylinux images
        if on_path := shutil.which(f"python{version}"):
            places.append(Path(on_path))
        places += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    code = (
        "import sys, sysconfig, os; "
        "os.path.exists(sysconfig.get_path('include') + '/Python.h') and "
        "sys.implementation.name == 'cpython' and print('%d.%d' % sys.version_info[:2])"
    )
    for place in filter(Path.exists, places):
        with contextlib.suppress(SystemExit):
            found.setdefault(run(place, "-c", code).strip(), place)
    missing = [version for version in wanted if version not in found]
    if missing:
        say(f"release: no wheel for CPython {' '.join(missing)}: no interpreter with headers here")
    return {version: found[version] for version in wanted if version in found}


def write_hashes() -> None:
    """SHA256SUMS of everything in the output folder, as sha256sum reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(DIST.iterdir())
        if path.suffix in {".whl", ".zip"}
    ]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    say("".join(lines), end="")


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command printed; ends with its output when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"release: {' '.join(words)} failed:\n{done.stdout}")
    return done.stdout


def say(text: str, *, end: str = "\n") -> None:
    """Tell the person at the terminal, at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def main() -> None:
    """The two commands."""
    parser = argparse.ArgumentParser(description="Build what is released.")
    parser.add_argument("what", choices=["wheels", "pack", "stage"])
    parser.add_argument("--pythons", default=",".join(PYTHONS), help="versions to build for")
    parser.add_argument("--python", action="append", default=[], help="an interpreter to use")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    if options.what == "wheels":
        pythons = interpreters(options.pythons.split(","), options.python)
        wheels(pythons, options.work.resolve())
    elif options.what == "pack":
        pack()
        write_hashes()
    else:
        stage(ROOT)


if __name__ == "__main__":
    main()
