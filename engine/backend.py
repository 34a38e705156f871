"""What a backend must do, which one runs, and why.

A backend holds the backbone's weights and the KV cache; it turns a prompt into delayed rows of
codes. ``reference`` is plain PyTorch on any device; ``native`` is the CUDA engine.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .checkpoint import Checkpoint, backbone_shapes
from .codec import CodecDecoder, decoder_bytes
from .config import ModelConfig
from .prompt import Prompt
from .sampling import SamplingParams

logger = logging.getLogger(__name__)

PRECISIONS = ("auto", "fp32", "bf16", "fp8")
DEFAULT_CONTEXT_ROWS = 4096  # prompt and speech together; what the reference server serves with
_FP32_LIMIT_BYTES = 2 << 30  # float32 on a CPU only for models that leave room for the rest


OnProgress = Callable[[int, int], None]
"""Called while weights are read, with (bytes so far, bytes in all)."""


class Backend(Protocol):
    """Text half of the engine: prompt in, delayed rows of codes out."""

    name: str
    device: torch.device
    precision: str
    context_rows: int

    @property
    def resident_bytes(self) -> int:
        """Bytes held on the device now."""

    @property
    def arena_bytes(self) -> dict[str, int]:
        """The same by what they are for."""

    def prefill(self, prompt: Prompt) -> None:
        """Read the prompt: fill the KV cache, keep the first logits.

        Raises:
            ValueError: the prompt does not fit the context.
        """

    def logits(self) -> Tensor:
        """Logits of the next row, float32 ``[N, V]`` on the CPU."""

    def decode(self, sampling: SamplingParams, *, stream: int, max_rows: int) -> Iterator[Tensor]:
        """Speak: yield delayed rows, int64 ``[N]`` on the CPU, with the BOC ramp applied.

        Ends after the last row of the speech, after ``max_rows``, or where the context ends.
        """

    def max_lanes(self, prefix_rows: int, lane_rows: int) -> int:
        """Most lanes of ``lane_rows`` positions behind a shared prefix that fit the context.

        Less than 2 where speaking side by side gains nothing.
        """

    def lanes(self, n_lanes: int, prefix: Prompt, lane_rows: int) -> Lanes:
        """Cut the KV cache into lanes.

        Args:
            n_lanes: 1 or more, as many as :meth:`max_lanes` allows.
            prefix: what all prompts begin with; may be of no positions.
            lane_rows: positions of each lane behind it, prompt and speech together.
        """

    def force(self, row: Tensor) -> None:
        """Teacher forcing: feed ``row``, int64 ``[N]``, instead of a sampled one."""

    def unload(self) -> None:
        """Free everything; idempotent, never raises."""


class Lanes(Protocol):
    """Sequences that are decoded together, until the backend's ``prefill`` ends them.

    Each lane's rows are a function of its own prompt, sampling and stream: not of the other lanes,
    of how many there are, or of their length.
    """

    def start(
        self, lane: int, prompt: Prompt, sampling: SamplingParams, *, stream: int, max_rows: int
    ) -> None:
        """Read the prompt, which begins with the shared prefix, and begin to speak."""

    def stop(self, lane: int) -> None:
        """The caller wants no more of this lane; harmless when it has ended."""

    def step(self) -> list[list[int] | None]:
        """The next delayed row of each lane, N codes, with the BOC ramp applied.

        None for a lane that was not started, was stopped, or has spoken ``max_rows``; at least one
        must be speaking.
        """


class Codec(Protocol):
    """Sound half of the engine: frames of codes in, waveform out."""

    @property
    def resident_bytes(self) -> int:
        """Bytes held on the device now."""

    def decode_window(self, codes: Tensor, lead: int = 0, tail: int = 0) -> Tensor:
        """Codes int64 ``[lead + T + tail, N]`` → waveform float32 ``[T · hop]`` on the CPU.

        ``lead`` and ``tail`` frames are context and not returned; beyond them are zeros.
        """

    def unload(self) -> None:
        """Free everything; idempotent, never raises."""


@dataclass(frozen=True)
class Choice:
    """Which backend runs, with what, and the reason in one sentence."""

    backend: str  # "reference" | "native"
    device: torch.device
    precision: str
    reason: str

    @property
    def is_fallback(self) -> bool:
        """Whether there is a GPU and plain PyTorch runs on it, which nobody wants to have."""
        return self.device.type == "cuda" and self.backend != "native"


def choose(checkpoint: Checkpoint, device: str, precision: str) -> Choice:
    """Decide backend, device and precision.

    Args:
        checkpoint: gives the size of the weights.
        device: "auto", "cpu", "cuda" or "cuda:1".
        precision: one of :data:`PRECISIONS`.

    Raises:
        ValueError: unknown device or precision, or a precision that the backend does not have.
        RuntimeError: a CUDA device is asked for and there is none.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got '{precision}'")
    place = _resolve_device(device)
    obstacle = native_obstacle(place, checkpoint.config)
    if obstacle is None:
        choice = _choose_native(place, precision)
    else:
        choice = _choose_reference(checkpoint, place, precision, obstacle)
    level = logging.WARNING if choice.is_fallback else logging.INFO
    logger.log(level, "LiveVoice: %s backend, %s, %s: %s", *vars(choice).values())
    return choice


def native_obstacle(device: torch.device, config: ModelConfig) -> str | None:
    """Why the native backend does not run a model on ``device``, in one sentence; or None."""
    if device.type != "cuda":
        return f"the native backend needs an NVIDIA GPU, the device is {device.type}"
    package = __package__ or "engine"
    if importlib.util.find_spec(f"{package}.native") is None:
        return "the native backend is not part of this installation"
    from . import native

    return native.available(device, config)


def create(
    choice: Choice,
    checkpoint: Checkpoint,
    context_rows: int,
    on_progress: OnProgress | None = None,
) -> Backend:
    """Load the chosen backend's weights; on failure nothing stays behind."""
    arguments = (checkpoint, choice.device, choice.precision, context_rows, on_progress)
    if choice.backend == "native":
        from .native import NativeBackend

        return NativeBackend(*arguments)
    from .reference import ReferenceBackend

    return ReferenceBackend(*arguments)


def create_codec(choice: Choice, checkpoint: Checkpoint, backend: Backend) -> Codec:
    """Load the codec's decoder where the backend is."""
    if choice.backend == "native":
        from .native import NativeCodec

        return NativeCodec(checkpoint, backend)
    return CodecDecoder(checkpoint, choice.device)


def size_bytes(choice: Choice, checkpoint: Checkpoint, context_rows: int) -> int:
    """Device bytes that backend and codec will hold when loaded."""
    if choice.backend == "native":
        from . import native

        return native.size_bytes(checkpoint, choice.precision, context_rows)
    config, width = checkpoint.config, 4 if choice.precision == "fp32" else 2
    kv = 2 * config.n_layers * config.n_kv_heads * config.head_dim * context_rows
    return width * (_count(backbone_shapes(config)) + kv) + decoder_bytes(checkpoint.codec_config)


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _resolve_device(device: str) -> torch.device:
    if device == "auto":
        return (
            torch.device("cuda", torch.cuda.current_device())
            if _has_cuda()
            else torch.device("cpu")
        )
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu or cuda, got '{device}'") from error
    if place.type == "cuda":
        if not _has_cuda():
            raise RuntimeError(
                "device is cuda, but torch sees no NVIDIA GPU; choose auto or cpu, or install a "
                "CUDA build of torch and its driver"
            )
        return torch.device("cuda", place.index or 0)
    return place


def _has_cuda() -> bool:
    return torch.cuda.is_available()


def _choose_native(device: torch.device, precision: str) -> Choice:
    major_minor = torch.cuda.get_device_capability(device)
    if precision == "fp32":
        raise ValueError("precision fp32 runs on the CPU only; choose auto, bf16 or fp8")
    if precision != "auto":
        return Choice("native", device, precision, "as asked for")
    if major_minor >= (8, 9):
        return Choice("native", device, "fp8", "this GPU converts e4m3 in hardware")
    return Choice("native", device, "bf16", "this GPU does not convert e4m3 in hardware")


def _choose_reference(
    checkpoint: Checkpoint, device: torch.device, precision: str, obstacle: str
) -> Choice:
    if precision == "fp8":
        raise ValueError(f"precision fp8 needs the native backend, which is off: {obstacle}")
    if precision == "auto":
        n_values = sum(
            torch.Size(shape).numel() for shape in backbone_shapes(checkpoint.config).values()
        )
        small = 4 * n_values <= _FP32_LIMIT_BYTES
        precision = "fp32" if small and device.type == "cpu" else "bf16"
    return Choice("reference", device, precision, obstacle)
