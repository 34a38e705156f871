"""Loads the pack as ComfyUI does, in a process for each thing that may be wrong with a machine.

Run inside an unpacked ComfyUI by `test_loading.py`, without its server. ComfyUI itself is imported
once, whole; each case is a fork of that process, breaks something, loads the pack from its folder
and speaks, and its outcome is written down. Nothing of the pack is imported before.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import logging
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WORDS = "On 3 May it was 9 degrees."
"""Needs numbers in words, so that each package that text passes through is used."""


@dataclass
class Outcome:
    """What one case gave.

    Attributes:
        nodes: ids that ComfyUI lists.
        imported: packages that loading brought in, which ComfyUI had not imported.
        load_s: seconds that loading took.
        reasons: why the backend is what it is, each time that one was chosen.
        said: what was logged as a warning or worse.
        refused: what each thing that was tried raised; empty when it worked.
    """

    nodes: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    load_s: float = 0.0
    reasons: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def forget(name: str) -> None:
    """As if ComfyUI had not imported this package."""
    for each in [each for each in sys.modules if each.split(".")[0] == name]:
        del sys.modules[each]


def remove(*names: str) -> None:
    """As if these packages were not installed."""
    for name in names:
        forget(name)
        sys.modules[name] = None


class Listener(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(logging.INFO)
        self.outcome = outcome

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += f"\n{record.exc_info[1]!r}"
        if " backend, " in text:
            self.outcome.reasons.append(text)
        if record.levelno >= logging.WARNING:
            self.outcome.said.append(text)


def plain(_: Path) -> None:
    """A machine without a GPU and a pack without the extension."""


def transformers_absent(_: Path) -> None:
    remove("transformers")


def transformers_old(_: Path) -> None:
    """Whatever one asks it for, it is not there yet."""
    remove("transformers")
    sys.modules["transformers"] = types.ModuleType("transformers")


def torchaudio_absent(_: Path) -> None:
    remove("torchaudio", "torchcodec")
    forget("transformers")  # it remembers what it has found


def requirements_absent(_: Path) -> None:
    """A clone whose requirements were not installed."""
    remove("num2words", "budoux")


def read_only(pack: Path) -> None:
    """Permissions that hold for root, too: it may not pass over them from now on."""
    for folder in [pack, *(path for path in pack.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)
    effective = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    libc = ctypes.CDLL(None)
    libc.capget(header, effective)
    effective[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    libc.capset(header, effective)
    try:
        (pack / "a file").touch()
    except OSError:
        return
    raise RuntimeError("the folder could be written to, this case shows nothing")


def with_gpu(_: Path) -> None:
    """As torch sees it; nothing runs on it."""
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0


def broken() -> Any:
    raise ImportError("libm.so.6: version `GLIBC_2.99' not found")


def wrong_driver(_: int) -> None:
    raise RuntimeError(DRIVER)


def unsupported_gpu(_: int) -> tuple[str, int, int]:
    return "NVIDIA GeForce RTX 3090", 8, 6


DRIVER = (
    "native backend: this machine has no usable NVIDIA GPU or its driver is older than CUDA 13; "
    "install driver 580 or newer"
)
CASES: dict[str, Callable[[Path], None]] = {
    "plain": plain,
    "transformers absent": transformers_absent,
    "transformers old": transformers_old,
    "torchaudio absent": torchaudio_absent,
    "requirements absent": requirements_absent,
    "read only": read_only,
}
GPU_CASES: dict[str, Callable[[], Any] | None] = {
    "gpu without extension": None,
    "broken extension": broken,
    "wrong driver": lambda: SimpleNamespace(check_device=wrong_driver),
    "unsupported gpu": lambda: SimpleNamespace(check_device=unsupported_gpu),
}
"""What stands for `native._extension`, the one place that imports it; None leaves it."""


def run(name: str, pack: Path) -> Outcome:
    """Break, load, speak."""
    import nodes as comfy_nodes

    outcome = Outcome()
    logging.getLogger().addHandler(Listener(outcome))
    logging.getLogger().setLevel(logging.INFO)
    asyncio.run(comfy_nodes.load_custom_node(str(pack.parent / "empty.py")))  # its own imports
    CASES.get(name, with_gpu)(pack)
    before, start = {*sys.modules}, time.perf_counter()
    asyncio.run(comfy_nodes.load_custom_node(str(pack)))
    outcome.load_s = time.perf_counter() - start
    ours = str(pack).replace(".", "_x_")  # ComfyUI's name for it
    new = {each for each in {*sys.modules} - before if not each.startswith(ours)}
    outcome.imported = sorted({each.split(".")[0] for each in new})
    there = comfy_nodes.NODE_CLASS_MAPPINGS
    outcome.nodes = sorted(each for each in there if each.startswith("LiveVoice"))
    if name in CASES:
        attempt(outcome, "speak", lambda: speak(ours, there))
        attempt(outcome, "clone", lambda: clone(ours, there))
        return outcome
    if GPU_CASES[name]:
        importlib.import_module(f"{ours}.engine.native")._extension = GPU_CASES[name]
    for precision in ("auto", "fp8"):
        attempt(outcome, precision, lambda each=precision: engine(ours, "cuda", each))
    return outcome


def attempt(outcome: Outcome, name: str, work: Callable[[], object]) -> None:
    """Note what it raised."""
    try:
        work()
        outcome.refused[name] = ""
    except Exception as error:  # noqa: BLE001  (the outcome is what it is)
        outcome.refused[name] = str(error)


def engine(ours: str, device: str = "auto", precision: str = "auto") -> Any:
    """What the loader node does: opens the headers, chooses the backend, loads no weights."""
    residency = importlib.import_module(f"{ours}.nodes.residency")
    return residency.patcher_of("starter", device, precision)


def speak(ours: str, there: dict[str, Any]) -> None:
    """Text to sound by the nodes."""
    model = engine(ours)
    settings = {"seed": 3, "temperature": 0.65, "top_k": 30, "top_p": 1.0}
    codes, _, _ = (
        there["LiveVoiceTextToCodes"]
        .execute(model, WORDS, max_seconds=0.4, retries=0, keep_partial=False, **settings)
        .args
    )
    (audio,) = there["LiveVoiceCodesToWaveform"].execute(model, codes).args
    assert audio["waveform"].shape == (1, 1, 9600)


def clone(ours: str, there: dict[str, Any]) -> None:
    """A recording to a voice: the one thing that takes transformers."""
    import torch

    hum = 0.3 * torch.sin(torch.arange(36_000) / 24_000 * 880)
    audio = {"waveform": hum.reshape(1, 1, -1), "sample_rate": 24_000}
    model = engine(ours)
    there["LiveVoiceVoice"].execute(model, audio, "Good morning to you.", "Anna")


def main() -> None:
    """The inner process: ComfyUI's command line is ours."""
    import comfy.options

    comfy.options.enable_args_parsing()
    import utils.extra_config  # noqa: F401  (first, as in ComfyUI's main.py)
    from aiohttp import web
    from server import PromptServer

    import nodes  # noqa: F401

    PromptServer.instance = SimpleNamespace(
        routes=web.RouteTableDef(), client_id=None, send_progress_text=lambda *_: None
    )
    pack, answers = Path(os.environ["PACK"]), Path(os.environ["ANSWERS"])
    for name in (*CASES, *GPU_CASES):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                outcome = run(name, pack)
                (answers / f"{name}.json").write_text(json.dumps(asdict(outcome)))
                code = 0
            except BaseException:  # noqa: BLE001  (a fork may not return)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
