"""The CUDA engine behind the backend protocol: loads weights into it, hands rows through.

Owns the map from checkpoint names to the engine's matrices, the gathering of text rows in host
memory, and the reuse of a voice's prefix. The work is done in ``csrc``; this is the only file that
imports ``_C``.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .checkpoint import (
    AUDIO_TABLE,
    BACKBONE,
    TEXT_EMBEDDING,
    Checkpoint,
    backbone_shapes,
)
from .codec_layout import codec_values
from .config import CodecConfig, ModelConfig
from .delay import EndOfSpeech
from .extension import does_not_load, no_code, not_built
from .prompt import AUDIO_SLOT, Prompt
from .reference import rope_table
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .backend import Backend

logger = logging.getLogger(__name__)

MAX_WINDOW_FRAMES = 128
"""Longest codec window in one pass; longer ones are cut, with context on both sides."""

_WINDOW_CONTEXT_FRAMES = 10  # the decoder's receptive field on one side, rounded up
_ROPE_ROUNDING = torch.bfloat16  # what the model was trained with
_HEAD_DIMS = (64, 128)  # that the attention kernels are compiled for
_MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NORMS = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def _extension() -> Any:
    """The compiled module; raises ModuleNotFoundError where it was not built."""
    return importlib.import_module("._C", __package__)


def available(device: torch.device, config: ModelConfig) -> str | None:
    """None when the engine runs this model on ``device``, else the reason in one sentence."""
    try:
        extension = _extension()
    except ModuleNotFoundError as error:
        if not (error.name or "").endswith("._C"):
            raise
        return not_built()
    except ImportError as error:  # a library is missing, or is older than the build's
        return does_not_load(error)
    try:
        without_code = extension.check_device(device.index or 0)
    except (RuntimeError, ValueError) as error:
        return str(error)
    if without_code is not None:
        return no_code(*without_code)
    return unsupported(config)


def unsupported(config: ModelConfig) -> str | None:
    """Why the kernels can't run a model of these sizes; None when they can. Needs no GPU."""
    if config.head_dim not in _HEAD_DIMS:
        return f"the native backend has no kernel for heads of {config.head_dim} values"
    try:
        _extension().engine_bytes(_sizes(config, 1), "bf16")  # lays the arenas out
    except ValueError as error:
        return str(error)
    return None


def size_bytes(checkpoint: Checkpoint, precision: str, context_rows: int) -> int:
    """Device bytes that backend and codec will hold; needs no GPU."""
    extension = _extension()
    backbone = extension.engine_bytes(_sizes(checkpoint.config, context_rows), precision)
    return backbone + extension.codec_bytes(_codec_sizes(checkpoint.codec_config))


class NativeBackend:
    """The backend protocol over ``_C.Engine``."""

    name = "native"

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        precision: str,
        context_rows: int,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        overlap: bool = True,
        step: str = "fastest",
    ) -> None:
        self.config = checkpoint.config
        self.device = device
        self.precision = precision
        self.context_rows = min(context_rows, self.config.max_positions)
        self._text: _HostTable | None = _HostTable(checkpoint, TEXT_EMBEDDING)
        self._prefix: Prompt | None = None  # whose keys and values are in the cache
        started = time.monotonic()
        self._engine = _extension().Engine(
            sizes=_sizes(self.config, self.context_rows),
            precision=precision,
            device=device.index or 0,
            overlap=overlap,
            step=step,
        )
        try:
            _load_weights(self._engine, checkpoint, self.context_rows, on_progress)
            self._engine.finish_loading()
        except BaseException:
            self._engine.unload()
            raise
        logger.info("LiveVoice: weights loaded in %.2f s", time.monotonic() - started)
        logger.info("LiveVoice: decode step by %s", self.step_reason)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the arenas: weights, KV cache and state, scratch."""
        return self._engine.resident_bytes

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Bytes held now, by arena."""
        return dict(self._engine.arena_bytes)

    @property
    def step_reason(self) -> str:
        """Which kernels a decode step runs, and why."""
        return self._engine.step_reason()

    def prefill(self, prompt: Prompt) -> None:
        """See :class:`~.backend.Backend`. A voice that the cache holds already is not read again.

        The voice's block is a piece of its own, cold as well: kernels that choose their tiles by
        the number of rows would give a longer common beginning other bits cold than warm.
        """
        if len(prompt) >= self.context_rows:
            raise ValueError(
                f"prompt: {len(prompt)} positions do not fit the context of {self.context_rows}; "
                "shorten the text or the voice"
            )
        if len(prompt.rows) and int(prompt.rows.max()) >= self.config.codebook_vocab:
            raise ValueError(f"prompt: codes must be below {self.config.codebook_vocab}")
        prefix, rest = prompt.split()
        if not prefix.equals(self._prefix):
            self._prefix = None
            if len(prefix):
                self._read(prefix, 0)
            self._prefix = prefix
        self._read(rest, len(prefix))

    def logits(self) -> Tensor:
        """See :class:`~.backend.Backend`."""
        shape = (self.config.n_codebooks, self.config.codebook_vocab)
        out = torch.empty(shape, dtype=torch.float32)
        self._engine.logits(out)
        return out

    def decode(self, sampling: SamplingParams, *, stream: int, max_rows: int) -> Iterator[Tensor]:
        """See :class:`~.backend.Backend`."""
        end = EndOfSpeech(self.config)
        self._engine.start(
            max(sampling.temperature, 1e-6), sampling.is_greedy, sampling.top_k, sampling.top_p,
            sampling.seed, stream, max_rows,
        )  # fmt: skip
        while (codes := self._engine.next_row()) is not None:
            row = torch.tensor(codes, dtype=torch.int64)
            is_last = end.push(row)
            yield row
            if is_last:
                return

    def force(self, row: Tensor) -> None:
        """See :class:`~.backend.Backend`."""
        self._engine.force(row.to(torch.int32).contiguous())

    def poison(self) -> None:
        """Fill everything but the weights with NaN patterns (for tests); forgets the voice."""
        self._prefix = None
        self._engine.poison()

    def time_step_ms(self, position: int, steps: int = 8) -> float:
        """Mean GPU time of ``steps`` whole decode steps at ``position``; forgets the voice."""
        self._prefix = None
        return self._engine.time_steps(position, steps)

    def frame_bytes(self, position: int) -> int:
        """Bytes that a decode step at ``position`` has to read: weights, head, keys and values."""
        config, width = self.config, 1 if self.precision == "fp8" else 2
        H, F, Q, K = (
            config.hidden,
            config.ffn,
            config.n_heads * config.head_dim,
            config.n_kv_heads * config.head_dim,
        )
        layer = width * (H * (Q + 2 * K) + H * Q + 3 * H * F) + 4 * K * position
        scales = 4 * (Q + 2 * K + 2 * H + 2 * F) if self.precision == "fp8" else 0
        head = 2 * H * config.n_codebooks * config.codebook_vocab
        return config.n_layers * (layer + scales) + head

    def read_bandwidth(self) -> float:
        """Bytes per second of a plain read of 2 GB on this device, the best of ten."""
        buffer = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device=self.device)
        try:
            with torch.cuda.device(self.device):
                return _extension().kernels.read_bandwidth(buffer, 10)
        finally:
            del buffer
            torch.cuda.empty_cache()

    def unload(self) -> None:
        """See :class:`~.backend.Backend`."""
        self._prefix = self._text = None
        self._engine.unload()

    def _read(self, piece: Prompt, first: int) -> None:
        """Bring a piece of a prompt, from position ``first`` on, into the cache."""
        if self._text is None:
            raise RuntimeError("native backend: unloaded")
        codes = torch.full((len(piece), self.config.n_codebooks), -1, dtype=torch.int32)
        codes[piece.ids == AUDIO_SLOT] = piece.rows.to(torch.int32)
        self._engine.prefill(self._text.rows(piece.ids.clamp(min=0)), codes, first)


class NativeCodec:
    """The codec's decoder over ``_C.Codec``, on the backend's device."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend) -> None:
        self.config = checkpoint.codec_config
        extension = _extension()
        sizes = _codec_sizes(self.config)
        self._codec = extension.Codec(sizes=sizes, device=backend.device.index or 0)
        try:
            values = codec_values(checkpoint)
            for name in extension.codec_values(sizes):
                self._codec.load_values(name, values[name].float().flatten().contiguous())
        except BaseException:
            self._codec.unload()
            raise

    @property
    def resident_bytes(self) -> int:
        """Bytes of the codec's arena."""
        return self._codec.resident_bytes

    def decode_window(self, codes: Tensor, lead: int = 0, tail: int = 0) -> Tensor:
        """See :class:`~.backend.Codec`."""
        if lead < 0 or tail < 0 or len(codes) <= lead + tail:
            raise ValueError(
                f"codec: a window of {len(codes)} frames has none to decode between {lead} frames "
                f"before and {tail} after"
            )
        begin, end = lead, len(codes) - tail
        if len(codes) <= MAX_WINDOW_FRAMES:
            return self._decode(codes, begin, end)
        step = MAX_WINDOW_FRAMES - 2 * _WINDOW_CONTEXT_FRAMES
        return torch.cat(
            [self._decode(codes, at, min(at + step, end)) for at in range(begin, end, step)]
        )

    def unload(self) -> None:
        """See :class:`~.backend.Codec`."""
        self._codec.unload()

    def _decode(self, codes: Tensor, begin: int, end: int) -> Tensor:
        """Frames ``begin`` to ``end`` of a window, as much of it around them as they can see."""
        hop = self.config.hop_samples
        first = max(begin - _WINDOW_CONTEXT_FRAMES, 0)
        window = codes[first : end + _WINDOW_CONTEXT_FRAMES].to(torch.int32).contiguous()
        waveform = torch.empty(len(window) * hop, dtype=torch.float32)
        self._codec.decode(window, waveform)
        return waveform[(begin - first) * hop : (end - first) * hop]


class _HostTable:
    """A bf16 matrix that stays in its file; rows are read where they are needed."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        entry = checkpoint.entry(name)
        self._rows = None
        if entry.dtype == "BF16":
            self._rows = np.memmap(
                entry.file, dtype=np.int16, mode="r", offset=entry.offset, shape=entry.shape
            )
        else:
            self._tensor = checkpoint.tensor(name).to(torch.bfloat16)

    def rows(self, ids: Tensor) -> Tensor:
        """``[S]`` → bf16 ``[S, columns]``."""
        if self._rows is None:
            return self._tensor[ids]
        return torch.from_numpy(np.ascontiguousarray(self._rows[ids.numpy()])).view(torch.bfloat16)


def _sizes(config: ModelConfig, context_rows: int) -> dict[str, Any]:
    return vars(config) | {"context_rows": min(context_rows, config.max_positions)}


def _codec_sizes(config: CodecConfig) -> dict[str, Any]:
    return vars(config) | {"max_frames": MAX_WINDOW_FRAMES}


def _load_weights(
    engine: Any,
    checkpoint: Checkpoint,
    context_rows: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Everything but the text embedding, which stays in its file; reports bytes done and in all."""
    config = checkpoint.config
    names = backbone_shapes(config).keys() - {TEXT_EMBEDDING}
    done, total = 0, sum(checkpoint.entry(name).n_bytes for name in names)

    def report(tensor: str) -> None:
        nonlocal done
        done += checkpoint.entry(tensor).n_bytes
        if on_progress is not None:
            on_progress(done, total)

    def load_matrix(name: str, layer: int, tensor: str) -> None:
        entry = checkpoint.entry(tensor)
        if entry.dtype == "BF16":
            engine.load_file(name, layer, str(entry.file), entry.offset, *entry.shape)
        else:
            engine.load_tensor(name, layer, checkpoint.tensor(tensor).to(torch.bfloat16))
        report(tensor)

    def load_norm(name: str, layer: int, tensor: str) -> None:
        engine.load_values(name, layer, checkpoint.tensor(tensor).float())
        report(tensor)

    for i in range(config.n_layers):
        prefix = f"{BACKBONE}layers.{i}."
        for name, tensor in _MATRICES.items():
            load_matrix(name, i, f"{prefix}{tensor}.weight")
        for name, tensor in _NORMS.items():
            load_norm(name, i, f"{prefix}{tensor}.weight")
    load_matrix("head", 0, AUDIO_TABLE)
    load_norm("final_norm", 0, f"{BACKBONE}norm.weight")
    rotation = rope_table(torch.arange(context_rows), config, _ROPE_ROUNDING)
    engine.load_values("rope", 0, torch.stack(rotation, dim=-1).float().flatten())
