"""A real ComfyUI back end as a child process.

Owns: starting it headless on a free loopback port with a base directory of its own, its log, and
stopping it surely. What can be asked of it is in `client.py`; what is run is the caller's.

    with Server({"Live Voice ä": ROOT}) as server:
        entry = server.run(prompt)
        sound = server.view(files(entry)[0])

As a program, from the repository's root: ``python -m tests.comfy.comfyui [comfyui flags]`` keeps a
server with this pack in the foreground.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .client import (
    Client,
    Events,
    PromptFailedError,
    PromptRefusedError,
    ServerError,
    errors,
    files,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "NEWEST",
    "OLDEST",
    "ROOT",
    "Client",
    "Events",
    "PromptFailedError",
    "PromptRefusedError",
    "Server",
    "ServerError",
    "device_flags",
    "errors",
    "files",
]

ROOT = Path(__file__).resolve().parents[2]
BACK_ENDS = ROOT / ".comfyui"
"""Unpacked back ends, one folder a version; `install.py` or `bundle.py` fills it."""
SITE = BACK_ENDS / "site"
"""Packages of `bundle.py`, on a machine without internet."""
NEWEST = "0.30.0"
OLDEST = "0.16.3"

_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 10.0
# The kernel ends the child when its parent dies: a killed test run leaves no server behind.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

logger = logging.getLogger(__name__)


class Server(Client):
    """A ComfyUI process and its client; a context manager.

    Args:
        packs: folder name under ``custom_nodes`` → folder that it links to; this repository as
            ``LiveVoice`` when left out.
        version: which back end of `BACK_ENDS`.
        flags: ComfyUI's own command line flags.
        env: environment variables on top of the caller's.
        port: the port to take when it is free; else, and for 0, any free one.
        base: base directory (models, input, output, user ...); a temporary one when left out.

    Attributes:
        base: base directory, while it runs.
    """

    def __init__(
        self,
        packs: Mapping[str, Path] | None = None,
        *,
        version: str = NEWEST,
        flags: Sequence[str] = ("--cpu",),
        env: Mapping[str, str] | None = None,
        port: int = 0,
        base: Path | None = None,
    ) -> None:
        super().__init__()
        self.packs = {"LiveVoice": ROOT} if packs is None else dict(packs)
        self.version = version
        self.flags = tuple(flags)
        self._env = dict(env or {})
        self._port = port
        self._is_temporary = base is None
        self.base = base or Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_log = ""

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            logger.error("the server's last log lines:\n%s", self.log_tail())
        self.stop()

    def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            ServerError: no such back end, or it died or stayed silent.
        """
        home = BACK_ENDS / self.version
        if not (home / "main.py").is_file():
            raise ServerError(f"no ComfyUI in {home}; make test or make demo puts it there")
        if self._is_temporary:
            self.base = Path(tempfile.mkdtemp(prefix="comfyui "))
        self._lay_base()
        port = _free_port(self._port)
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", _LAUNCH, "main.py", *self.flags]
        command += ["--listen", "127.0.0.1", "--port", str(port), "--disable-auto-launch"]
        # The database file would lie in the back end's folder, which holds code only.
        command += ["--base-directory", str(self.base), "--database-url", "sqlite:///:memory:"]
        command += ["--disable-api-nodes", "--log-stdout"]
        if importlib.util.find_spec("comfyui_frontend_package") is None:
            command += ["--front-end-root", str(self._page())]
        with (self.base / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.poll(self._answers, "the server does not answer", timeout_s=_START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process group and remove the temporary base directory; idempotent."""
        process = self._process
        if process is not None:
            for sign, patience_s in ((signal.SIGINT, _STOP_TIMEOUT_S), (signal.SIGKILL, None)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience_s)
            self._last_log = self.log
            self._process = None
        if self._is_temporary and self.base != Path():
            shutil.rmtree(self.base, ignore_errors=True)
            self.base = Path()

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id, for measuring memory."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything the server has printed so far; kept after `stop`."""
        if self._process is None:
            return self._last_log
        return (self.base / "server.log").read_text("utf-8", "replace")

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of `log`."""
        return "\n".join(self.log.splitlines()[-lines:])

    def wait_for_log(self, text: str, *, timeout_s: float = 30.0) -> None:
        """Wait until `log` holds ``text``; raises `ServerError` when it does not come."""
        self.poll(lambda: text in self.log, f"no {text!r} in the log", timeout_s=timeout_s)

    def trouble(self) -> str:
        """How the log ends, for error messages."""
        state = "" if self.is_running else "; the server died"
        return f"{state}; its log ends:\n{self.log_tail()}"

    def _lay_base(self) -> None:
        for name in ("custom_nodes", "models", "input", "output", "temp", "user"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
        for name, folder in self.packs.items():
            link = self.base / "custom_nodes" / name
            link.unlink(missing_ok=True)
            link.symlink_to(folder.resolve(), target_is_directory=True)
        settings = self.base / "user" / "default" / "comfy.settings.json"
        if not settings.exists():
            # Else a browser opens a workflow whose model nobody has.
            settings.parent.mkdir(exist_ok=True)
            settings.write_text('{"Comfy.TutorialCompleted": true}')

    def _page(self) -> Path:
        """An empty page, for a server that no browser will visit."""
        folder = self.base / "page"
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_text("<!doctype html>")
        return folder

    def _environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
        if SITE.is_dir():
            quiet["PYTHONPATH"] = str(SITE)
        return {**env, **quiet, **self._env}

    def _answers(self) -> bool:
        try:
            return bool(self.get("/system_stats"))
        except OSError:
            return False


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        # As the server does: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def device_flags() -> list[str]:
    """ComfyUI's flags for the device that torch finds here; without a GPU it has to be told."""
    import torch  # installed by then; the rest of this file does without

    return [] if torch.cuda.is_available() else ["--cpu"]


def main(flags: Sequence[str]) -> int:
    """Keep a server with this pack in the foreground until Ctrl-C; its files stay in ``output``."""
    server = Server(flags=[*device_flags(), *flags], port=8188, base=ROOT / "output" / "comfyui")
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    try:
        with server:
            what = f"ComfyUI {server.version} with LiveVoice"
            print(f"{what}: {server.url} (Ctrl-C stops it)", flush=True)
            while server.is_running:
                time.sleep(0.5)
    except KeyboardInterrupt:
        return 0
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ComfyUI ended by itself{server.trouble()}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
