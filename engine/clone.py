"""From a recording to a voice: the life of the encoder's weights, and recordings seen before.

The weights are there while a recording is encoded, and at no other time. What a recording must be
is decided in ``recording.py``, before. Knows nothing of files.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .checkpoint import CODEC, HOW_TO_GET, STARTER, Checkpoint, CheckpointError, find
from .codec import CodecEncoder, OnStep
from .recording import MAX_S, Recording, prepare, transcript_notices
from .voice import Voice

logger = logging.getLogger(__name__)

MakeRoom = Callable[[int], object]
"""Called before the encoder is loaded, with the bytes that encoding takes on the device."""

_CACHED = 32  # recordings; the codes of the longest take 160 kB
_ENCODER = ("acoustic_encoder.", "semantic_model.", "encoder_semantic.", "fc.", "quantizer.")
_ACTIVATION_BYTES_PER_S = 48 << 20  # while encoding: 64 channels at 24 kHz, several at a time


def need_encoder(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that can't encode; reads nothing.

    Raises:
        CheckpointError: says how to get one that can.
    """
    if not checkpoint.has_encoder:
        raise CheckpointError(
            f"voice: '{checkpoint.path.name}' has no encoder, cloning a voice needs the real "
            f"checkpoint; {HOW_TO_GET}"
        )


class Cloning:
    """Makes voices with one checkpoint's encoder.

    Args:
        checkpoint: read when something is encoded.
        device: where the encoder runs.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._lock = threading.Lock()  # one encoder at a time
        self._codes: OrderedDict[str, Tensor] = OrderedDict()

    def voice(
        self,
        waveform: Tensor,
        sample_rate: int,
        transcript: str,
        make_room: MakeRoom | None = None,
        on_step: OnStep | None = None,
        **labels: str,
    ) -> Voice:
        """Make a voice; arguments and errors as :meth:`.engine.Engine.voice`."""
        need_encoder(self._checkpoint)
        recording = prepare(waveform, sample_rate)
        codec_id = self._checkpoint.codec_id
        key = _fingerprint(waveform, sample_rate, codec_id)
        transcript = transcript.strip()
        notices = [
            *recording.notices,
            *transcript_notices(transcript, recording.seconds),
            *_starter_notices(self._checkpoint),
        ]
        for notice in notices:
            logger.warning("LiveVoice: %s", notice)
        codes = self._encode(key, recording, make_room, on_step)
        return Voice(codes, transcript, codec_id=codec_id, notices=tuple(notices), **labels)

    def need_bytes(self, seconds: float) -> int:
        """Device bytes that encoding takes for a while: weights in float32 and activations."""
        shapes = [
            self._checkpoint.shape(name)
            for name in self._checkpoint.names
            if name.startswith(tuple(CODEC + part for part in _ENCODER))
        ]
        weights = 4 * sum(torch.Size(shape).numel() for shape in shapes)
        return weights + int(min(seconds, MAX_S) * _ACTIVATION_BYTES_PER_S)

    def _encode(
        self,
        key: str,
        recording: Recording,
        make_room: MakeRoom | None,
        on_step: OnStep | None,
    ) -> Tensor:
        with self._lock:
            if key not in self._codes:
                if make_room is not None:
                    make_room(self.need_bytes(recording.seconds))
                # Not as inference tensors, which could not be changed in place later.
                with (
                    torch.inference_mode(False),
                    _encoder(self._checkpoint, self._device) as encoder,
                ):
                    self._codes[key] = encoder.encode(
                        recording.waveform, recording.sample_rate, on_step
                    )
            self._codes.move_to_end(key)
            if len(self._codes) > _CACHED:
                self._codes.popitem(last=False)
            with torch.inference_mode(False):
                return self._codes[key].clone()


@contextmanager
def _encoder(checkpoint: Checkpoint, device: torch.device) -> Iterator[CodecEncoder]:
    """An encoder whose memory is given back, to the driver as well, also after an error."""
    encoder = None
    try:
        encoder = CodecEncoder(checkpoint, device)
        yield encoder
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # their activations would outlive this
        raise
    finally:
        if encoder is not None:
            encoder.unload()
        if device.type == "cuda":
            _give_back()


def _give_back() -> None:
    """Return torch's cached memory to the driver, its matrix library's workspaces too.

    Those lie in the middle of the cached blocks and would keep them; they come back by themselves.
    The semantic model has reference cycles: what they hold goes only when they are collected.
    """
    gc.collect()
    clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear_workspaces is not None:
        clear_workspaces()
    torch.cuda.empty_cache()


def _fingerprint(waveform: Tensor, sample_rate: int, codec_id: str) -> str:
    """Hash of every sample, the layout, the rate and the codec."""
    digest = hashlib.sha256(f"{list(waveform.shape)} {sample_rate} {codec_id}".encode())
    digest.update(waveform.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _starter_notices(checkpoint: Checkpoint) -> list[str]:
    if checkpoint.path != find(STARTER):
        return []
    return [
        "voice: the starter knows its own three voices and can't imitate another; cloning needs "
        f"the real checkpoint: {HOW_TO_GET}"
    ]
