"""The neural codec: frames of codes to sound, whole or while they are made, and sound to codes.

Owns the codec's weights on a device, the windows of streamed decoding and the treatment of a clip's
ends. Knows nothing of text, delay patterns or files of sound. Decoding needs torch alone; encoding
takes the semantic model (HuBERT) from transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, count, repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .audio import check_waveform, resample
from .checkpoint import CODEC, Checkpoint
from .codec_model import DacDecoder, Encoder, settle
from .config import CodecConfig

CONTEXT_FRAMES = 10
"""Frames on either side that a frame's samples depend on.

The receptive field of the real strides is 9.85 frames before and 9.83 after (kernel extents, and
measured by a test): 10 frames of context make a window equal to the whole clip, 9 do not.
"""

SCHEDULE = ((1, 6), (2, 8), (4, 10), (8, 10), (16, 10), (25, 10))
"""Default chunks of streamed decoding: (frames of 40 ms, frames after them to wait for); the last
one repeats.

Each chunk waits for at most twice as many new frames as the one before it, so that the next one is
ready before the last has been played where speech is made a few times faster than it is spoken.
From 25 frames on the recomputed context costs a tenth of the work; at 1 frame it is most of it.

The first sound is what somebody waits for, so the first two chunks see less of what follows them.
On the starter's speech that changes their samples by at most -59 and -88 dB of full scale where a
clip were to begin in the middle of a loud syllable, and by -127 and -97 dB where it really begins
(a test measures it). Everything from the fourth frame on is exact.
"""

Schedule = Sequence[tuple[int, int]]

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Linear)  # nearly all of the work

DecodeWindow = Callable[[Tensor, int, int], Tensor]
"""``(codes [lead + T + tail, N], lead, tail) -> float32 [T · hop]``, see CodecDecoder."""

OnStep = Callable[[int, int], None]
"""Called with (steps done, steps in all); what it raises ends the work and propagates."""


class CodecDecoder:
    """Codes to sound, in float32.

    Args:
        checkpoint: only the tensors that decoding needs are read.
        device: where they go.

    Raises:
        ValueError: a tensor of wrong shape, or strides that need more context than CONTEXT_FRAMES.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> None:
        self.config = checkpoint.codec_config
        self.device = torch.device(device)
        with torch.device("meta"):
            network = DacDecoder(self.config)
        if network.halos[0] > CONTEXT_FRAMES:
            raise ValueError(
                f"codec: strides {list(self.config.upsampling_ratios)} need {network.halos[0]} "
                f"frames of context, decoding in windows gives {CONTEXT_FRAMES}"
            )
        prefix = f"{CODEC}acoustic_decoder."
        self._network: DacDecoder | None = _load(network, checkpoint, prefix, self.device)
        self._table, self._bias = (part.to(self.device) for part in _fold(checkpoint))

    @property
    def resident_bytes(self) -> int:
        """Bytes held on the device now."""
        return _n_bytes(self._network, self._table, self._bias)

    def unload(self) -> None:
        """Free the weights. Idempotent, never raises; decoding afterwards is a RuntimeError."""
        self._network = None
        self._table = self._bias = torch.empty(0)

    def decode_window(self, codes: Tensor, lead: int = 0, tail: int = 0) -> Tensor:
        """Decode a window as the network does it: beyond the window everything is zero.

        Equal to transformers' ``decode`` when ``lead`` and ``tail`` are 0.

        Args:
            codes: int64 ``[lead + T + tail, N]``.
            lead: frames at the beginning that are context, not returned.
            tail: frames at the end that are context, not returned.

        Returns:
            float32 ``[T · hop]`` on the CPU. Values may exceed ±1.

        Raises:
            ValueError: wrong shape, no frame, or a code that the codebooks do not have.
            RuntimeError: the codec was unloaded.
        """
        _check_codes(codes, self.config)
        if lead < 0 or tail < 0 or len(codes) <= lead + tail:
            raise ValueError(
                f"codec: a window of {len(codes)} frames has none to decode between {lead} frames "
                f"before and {tail} after"
            )
        network = self._network
        if network is None:
            raise RuntimeError("codec: decoding after unload(); build the decoder again")
        # no_grad, not inference_mode: a waveform made in inference mode can't be changed in place.
        with torch.no_grad(), _exact(self.device):
            entries = torch.arange(self.config.n_codebooks) * self.config.codebook_size
            index = (codes.cpu() + entries).to(self.device)
            latent = functional.embedding_bag(index, self._table, mode="sum") + self._bias
            return network(latent.t().unsqueeze(0), lead, tail).cpu()

    def decode_stream(
        self, frames: Iterable[Tensor], schedule: int | Schedule = SCHEDULE
    ) -> Iterator[Tensor]:
        """Decode frames while they are made; see :func:`decode_stream`."""
        return decode_stream(self.decode_window, frames, self.config, schedule)

    def decode(self, codes: Tensor) -> Tensor:
        """Decode a clip, int64 ``[T, N]`` to float32 ``[T · hop]``: the bits of a stream."""
        return torch.cat([torch.empty(0), *self.decode_stream(codes)])


def decode_stream(
    decode_window: DecodeWindow,
    frames: Iterable[Tensor],
    config: CodecConfig,
    schedule: int | Schedule = SCHEDULE,
) -> Iterator[Tensor]:
    """Decode frames while they are made; the same schedule gives the same bits.

    Holds one window of codes and nothing else. Chunks of any size that see CONTEXT_FRAMES frames
    after them give the same samples up to the rounding of floats.

    The clip's ends: after the last frame the network sees that frame again and again, not zeros:
    with the real weights zeros make the last 300 ms run into hiss. (The starter has no hiss either
    way; of speech cut off, the repeated frame comes 1 dB nearer to the uncut sound.) Before the
    first frame it sees zeros, as in training. Repeating the first frame there was measured on the
    starter and not taken: clips begin in the same silence either way (-76.7 and -77.2 dB in the
    first frame), and the first chunk would cost nearly as much again, just when somebody waits.

    Args:
        decode_window: of a codec.
        frames: int64 ``[N]`` each.
        config: of that codec.
        schedule: frames a chunk, exact; or see SCHEDULE.

    Yields:
        float32 ``[n · hop]`` for chunks of n frames, as scheduled until the frames end, then of all
        that is left; ``hop`` samples a frame in all.

    Raises:
        ValueError: no positive chunk size, a look-ahead that is negative or more than
            CONTEXT_FRAMES, or a code that the codebooks do not have.
    """
    steps = ((schedule, CONTEXT_FRAMES),) if isinstance(schedule, int) else tuple(schedule)
    if not steps or not all(n > 0 and 0 <= ahead <= CONTEXT_FRAMES for n, ahead in steps):
        raise ValueError(
            "codec: chunks need 1 frame or more and a look-ahead of at most "
            f"{CONTEXT_FRAMES} frames, got {schedule}"
        )

    def checked(window: list[Tensor], n_before: int) -> Tensor:
        codes = torch.stack(window)
        _check_codes(codes, config, first_frame=n_before)
        return codes

    return _decode_chunks(decode_window, _of_one_shape(frames, config), steps, checked)


def _decode_chunks(
    decode_window: DecodeWindow,
    frames: Iterable[Tensor],
    steps: Schedule,
    checked: Callable[[list[Tensor], int], Tensor],
) -> Iterator[Tensor]:
    window: list[Tensor] = []
    lead = n_before = 0  # frames before the window
    steps = chain(steps, repeat(steps[-1]))
    size, ahead = next(steps)
    for frame in frames:
        window.append(frame)
        if len(window) == lead + size + ahead:
            yield decode_window(checked(window, n_before), lead, ahead)
            done = lead + size
            lead = min(done, CONTEXT_FRAMES)
            del window[: done - lead]
            n_before += done - lead
            size, ahead = next(steps)
    if len(window) > lead:
        window += [window[-1]] * CONTEXT_FRAMES
        yield decode_window(checked(window, n_before), lead, CONTEXT_FRAMES)


def _of_one_shape(frames: Iterable[Tensor], config: CodecConfig) -> Iterator[Tensor]:
    """Frames that make a window; what is in them is looked at by the window, which costs less."""
    shape, dtype = (config.n_codebooks,), torch.int64
    for index, frame in enumerate(frames):
        if frame.shape != shape or frame.dtype != dtype:
            _check_codes(frame.unsqueeze(0), config, first_frame=index)
        yield frame


class CodecEncoder:
    """Sound to codes, in float32: what a voice is made of.

    Args:
        checkpoint: only the tensors that encoding needs are read.
        device: where they go.

    Raises:
        ValueError: a tensor that is missing or of wrong shape.
        RuntimeError: transformers is not installed.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> None:
        self.config = checkpoint.codec_config
        self.device = torch.device(device)
        hubert = _hubert(self.config.raw["semantic_model_config"])
        with torch.device("meta"):
            network = Encoder(self.config, hubert)
        self._network: Encoder | None = _load(network, checkpoint, CODEC, self.device)

    @property
    def resident_bytes(self) -> int:
        """Bytes held on the device now."""
        return _n_bytes(self._network)

    def unload(self) -> None:
        """Free the weights. Idempotent, never raises; encoding afterwards is a RuntimeError."""
        self._network = None

    def encode(self, waveform: Tensor, sample_rate: int, on_step: OnStep | None = None) -> Tensor:
        """Turn sound into codes. The loudness is left as it is.

        The clip is encoded whole: its parts depend on each other, by attention and normalisation.

        Args:
            waveform: mono, float ``[samples]``; less than a second is padded to one with silence.
            sample_rate: of the waveform, in Hz; any.
            on_step: called before the first layer of the network and after each.

        Returns:
            int64 ``[T, N]`` on the CPU, one row per 40 ms.

        Raises:
            ValueError: not mono, empty, or not finite.
            RuntimeError: the codec was unloaded.
        """
        check_waveform(waveform)
        network = self._network
        if network is None:
            raise RuntimeError("codec: encoding after unload(); build the encoder again")
        rate, semantic_rate = self.config.sample_rate, self.config.semantic_sample_rate
        with torch.no_grad(), _exact(self.device), _steps(network, on_step):
            waveform = resample(waveform.to(self.device, torch.float32), sample_rate, rate)
            waveform = functional.pad(waveform, (0, max(0, rate - len(waveform))))
            return network(waveform, resample(waveform, rate, semantic_rate)).cpu()


def decoder_bytes(config: CodecConfig) -> int:
    """Device bytes that a decoder of these sizes holds."""
    with torch.device("meta"):
        network = DacDecoder(config)
    n_entries = config.n_codebooks * config.codebook_size
    table = torch.empty(n_entries + 1, config.acoustic_hidden, device="meta")
    return _n_bytes(network, table)


def _check_codes(codes: Tensor, config: CodecConfig, first_frame: int = 0) -> None:
    """Refuse codes that are not integer ``[T, N]`` in 0 … codebook_size - 1."""
    if codes.ndim != 2 or codes.shape[1] != config.n_codebooks:
        raise ValueError(
            f"codec: codes must be [frames, {config.n_codebooks}], got shape {list(codes.shape)}"
        )
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise ValueError(f"codec: codes must be integers, got {codes.dtype}")
    wrong = (codes < 0) | (codes >= config.codebook_size)
    if wrong.any():
        t, n = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"codec: frame {first_frame + t}, codebook {n}: code {codes[t, n].item()} is outside "
            f"0 … {config.codebook_size - 1}"
        )


def _fold(checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """Fold look-up, ``project_out`` and ``fc2`` into one table, since all of it is linear.

    Returns:
        float32 ``[N · codebook_size, acoustic_hidden]`` whose rows a frame sums, and the bias
        ``[acoustic_hidden]``; folded in float64, so that folding costs no accuracy.
    """

    def read(name: str) -> Tensor:
        return checkpoint.tensor(CODEC + name).double()

    fc2, bias = read("fc2.weight"), read("fc2.bias")
    tables = []
    for q in range(checkpoint.codec_config.n_codebooks):
        book = f"quantizer.quantizers.{q}."
        tables.append(read(f"{book}codebook.embed") @ (fc2 @ read(f"{book}project_out.weight")).t())
        bias = bias + fc2 @ read(f"{book}project_out.bias")
    return torch.cat(tables).float(), bias.float()


def _hubert(config: dict[str, Any]) -> nn.Module:
    """The semantic model without weights, from transformers, which is needed here only."""
    try:
        from transformers import HubertConfig, HubertModel
    except (ImportError, RuntimeError) as error:  # what it raises of its own parts
        raise RuntimeError(
            "codec: encoding a voice needs transformers 4.46 or newer; pip install -U transformers "
            f"({error})"
        ) from error
    with torch.device("meta"):
        return HubertModel(HubertConfig(**config))


def _load(network: nn.Module, checkpoint: Checkpoint, prefix: str, device: torch.device) -> Any:
    """Fill a network of the meta device from the checkpoint, in float32."""
    weights = {}
    for name, wanted in network.state_dict().items():
        weight = checkpoint.tensor(prefix + name, str(device))
        if weight.shape != wanted.shape:
            raise ValueError(
                f"codec: {prefix}{name} has shape {list(weight.shape)}, the codec config asks for "
                f"{list(wanted.shape)}; file and config are not of one codec"
            )
        weights[name] = weight.float()
    network.load_state_dict(weights, assign=True)
    return settle(network)


@contextmanager
def _steps(network: nn.Module, on_step: OnStep | None) -> Iterator[None]:
    """Tell of every layer that a network has computed; each of them is computed once."""
    if on_step is None:
        yield
        return
    layers = [part for part in network.modules() if isinstance(part, _LAYERS)]
    done, total = count(1), len(layers)
    hooks = [layer.register_forward_hook(lambda *_: on_step(next(done), total)) for layer in layers]
    try:
        on_step(0, total)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _n_bytes(network: nn.Module | None, *tensors: Tensor) -> int:
    parameters = network.parameters() if network is not None else ()
    return sum(tensor.nbytes for tensor in (*parameters, *tensors))


def _exact(device: torch.device) -> AbstractContextManager[Any]:
    """True float32 and the same bits every time: cuDNN would take TF32 and the fastest sum."""
    if device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
