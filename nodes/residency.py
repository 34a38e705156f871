"""Lets ComfyUI's model management own the engine's memory.

:class:`EnginePatcher` is what the manager sees: it reports real bytes, loads whole, frees whole,
and is one object per engine. Knows when weights come and go; nothing of what they compute.

The manager holds patchers weakly, calls ``detach(False)`` and ``partially_load`` on one that is
already loaded at every run, and is left broken by an exception out of ``detach``.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import comfy.model_management as management
import comfy.model_patcher
import torch

from ..engine import Engine
from .checkpoints import stamps
from .status import Readout

logger = logging.getLogger(__name__)

_TRANSIENT_BYTES = 512 << 20  # activations outside the engine's own memory: reference backend only
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class LiveVoice(torch.nn.Module):
    """What ComfyUI takes for the model, and names in its log: owns the engine, has no weights.

    When it dies, with the last patcher over it, the engine is unloaded: nobody else would do it.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.readout = Readout(engine)
        # Not at exit: the process takes its memory with it, and CUDA may be gone by then.
        weakref.finalize(self, _unload, engine, self.readout).atexit = False


def _unload(engine: Engine, readout: Readout) -> None:
    was_loaded = engine.is_loaded
    engine.unload()
    if was_loaded:
        readout.show()


class EnginePatcher(comfy.model_patcher.ModelPatcher):
    """One engine, as ComfyUI's model manager sees it; travels on the LIVEVOICE_MODEL wire.

    The constructor keeps the base's signature, which ``clone()`` calls. It must stay a plain
    ModelPatcher: the dynamic one moves weights by itself, and ours have fixed addresses.
    """

    @classmethod
    def over(cls, engine: Engine) -> EnginePatcher:
        """The patcher of a new engine."""
        comfy_device = management.get_torch_device()
        # The manager compares devices with its own object; elsewhere than there it does not count.
        load_device = comfy_device if engine.device == comfy_device else engine.device
        return cls(LiveVoice(engine), load_device, torch.device("cpu"))

    def __del__(self) -> None:
        """Nothing: the base's calls methods, also on an object whose constructor has failed."""

    @property
    def engine(self) -> Engine:
        """The engine behind it."""
        return self.model.engine

    def make_resident(self) -> None:
        """Have ComfyUI make room, then load the weights; cheap when they are there."""
        management.load_models_gpu([self], memory_required=_TRANSIENT_BYTES)

    def is_clone(self, other: object) -> bool:
        """Whether ``other`` is a patcher of the same engine."""
        return isinstance(other, EnginePatcher) and other.engine is self.engine

    def model_size(self) -> int:
        """Bytes that the engine holds when loaded."""
        return max(self.engine.size_bytes, self.engine.resident_bytes)

    def loaded_size(self) -> int:
        """Bytes that it holds now."""
        return self.engine.resident_bytes

    def get_ram_usage(self) -> int:
        """Bytes of system memory: what ComfyUI's cache weighs outputs by."""
        return self.loaded_size() if self.load_device.type == "cpu" else 0

    def current_loaded_device(self) -> torch.device:
        """Where the weights are."""
        return self.load_device if self.engine.is_loaded else self.offload_device

    def model_dtype(self) -> torch.dtype:
        """Type of the weights."""
        return _DTYPES.get(self.engine.precision, torch.bfloat16)

    def partially_load(
        self,
        device_to: torch.device,  # noqa: ARG002  (the manager's signature)
        extra_memory: float = 0,  # noqa: ARG002  (whole or not at all)
        force_patch_weights: bool = False,  # noqa: ARG002
    ) -> int:
        """Load everything, or raise with nothing left behind; returns the bytes added."""
        before_bytes, start_s = self.engine.resident_bytes, time.perf_counter()
        if not self.engine.is_loaded:
            with recognised_out_of_memory():
                self.engine.load()  # rolls back by itself
            logger.info(
                "LiveVoice: loaded %s, %.0f MB on %s in %.1f s",
                self.engine.checkpoint.path.name, self.engine.resident_bytes / 1e6,
                self.load_device, time.perf_counter() - start_s,
            )  # fmt: skip
            self.model.readout.show()
        self.model.device = self.current_loaded_device()
        return self.engine.resident_bytes - before_bytes

    def partially_unload(
        self,
        device_to: torch.device,  # noqa: ARG002
        memory_to_free: float = 0,  # noqa: ARG002
        force_patch_weights: bool = False,  # noqa: ARG002
    ) -> int:
        """Free nothing: 0 tells the manager to detach instead."""
        return 0

    def partially_unload_ram(self, ram_to_unload: float, subsets: object = ()) -> int:  # noqa: ARG002
        """Free nothing: there is no copy in system memory."""
        return 0

    def detach(self, unpatch_all: bool = True) -> torch.nn.Module:
        """Free everything when ``unpatch_all``, else keep it resident; never raises."""
        if unpatch_all and self.engine.is_loaded:
            try:
                held_bytes = self.engine.resident_bytes
                self.engine.unload()
                logger.info("LiveVoice: unloaded, %.0f MB freed", held_bytes / 1e6)
                self.model.readout.show()
            except Exception:
                # Raised from here, it would make every later load of any node fail.
                logger.exception("LiveVoice: the engine could not be unloaded")
            self.model.device = self.current_loaded_device()
        return self.model


@contextmanager
def recognised_out_of_memory() -> Iterator[None]:
    """Raise any out-of-memory as the type at which ComfyUI unloads all models."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        lacks = isinstance(error, MemoryError) or any(it in text.lower() for it in _OUT_OF_MEMORY)
        if not lacks or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise torch.cuda.OutOfMemoryError(f"LiveVoice: out of memory: {text}") from error


_live: weakref.WeakValueDictionary[tuple, EnginePatcher] = weakref.WeakValueDictionary()
"""Every living patcher, by what was asked for and by what it became; weak, so it keeps none."""
_live_lock = threading.Lock()


def patcher_of(path: str | Path, device: str, precision: str) -> EnginePatcher:
    """The one patcher of a checkpoint on a device in a precision; opens it when there is none.

    After an error or an interrupt an old patcher can outlive its node's output. Handing it out
    again is what keeps one checkpoint from lying in memory twice.

    Args:
        path: of :func:`.checkpoints.path_of`.
        device: "auto", "cpu" or "cuda".
        precision: "auto", "fp32", "bf16" or "fp8".

    Raises:
        CheckpointError: the checkpoint can't be used.
        ValueError: the precision does not exist there.
        RuntimeError: the device does not exist.
    """
    place = _place(device)
    asked = (Path(path).resolve(), stamps(path), place, precision)
    with _live_lock:
        patcher = _live.get(asked)
        if patcher is None:
            engine = Engine(path, place, precision)
            became = (*asked[:2], str(engine.device), engine.precision)
            patcher = _live.get(became) or EnginePatcher.over(engine)
            _live[asked] = _live[became] = patcher
    return patcher


def live() -> list[EnginePatcher]:
    """Every living patcher, once."""
    with _live_lock:
        return list({id(each): each for each in _live.values()}.values())


def _place(device: str) -> str:
    """Device for the engine: ComfyUI's own, unless the CPU was asked for."""
    comfy_device = management.get_torch_device()
    if device == "cpu" or (device == "auto" and comfy_device.type != "cuda"):
        return "cpu"
    return str(comfy_device) if comfy_device.type == "cuda" else device
