"""The straight line from text to sound, and the life of the weights behind it.

    text → utterances → prompt → prefill → decode rows → undelay → frames → codec → waveform

The line itself is :class:`.generation.Generation`; this file owns who may use the weights, and
when. Knows nothing of ComfyUI, files of sound, or CUDA.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import backend as backends
from .checkpoint import Checkpoint
from .clone import Cloning, MakeRoom
from .codec import OnStep, decode_stream
from .codes import Codes
from .dialogue import SpokenTurns
from .generation import Generation, OnFrame, Request, Superseded, join
from .joining import Joiner
from .prompt import PromptBuilder
from .sampling import SamplingParams
from .script import Reading, Utterance
from .speaking import LAST_ATTEMPT
from .text import plan
from .voice import Voice


@dataclass(frozen=True)
class Speech:
    """A whole text as sound: float32 ``[samples]`` and the codes that it was decoded from."""

    waveform: Tensor
    sample_rate: int
    codes: Codes


class Engine:
    """One checkpoint on one device.

    Building one reads headers and the tokenizer; :meth:`load` reads the weights. Any thread may
    call :meth:`unload` at any time: a running generation then ends as ``cancelled``.

    Args:
        path_or_name: directory of the checkpoint, or "starter".
        device: "auto", "cpu", "cuda" or "cuda:1".
        precision: "auto", "fp32", "bf16" or "fp8".
        context_rows: positions of the KV cache, prompt and speech together.

    Raises:
        CheckpointError: the checkpoint can't be used.
        ValueError: device or precision that does not exist.
        RuntimeError: a device that is not there.
    """

    def __init__(
        self,
        path_or_name: str | Path = "starter",
        device: str = "auto",
        precision: str = "auto",
        *,
        context_rows: int = backends.DEFAULT_CONTEXT_ROWS,
    ) -> None:
        self.checkpoint = Checkpoint.open(path_or_name)
        self.context_rows = min(context_rows, self.checkpoint.config.max_positions)
        self.prompts = PromptBuilder(self.checkpoint.path, self.checkpoint.config)
        self._choice = backends.choose(self.checkpoint, device, precision)
        self.cloning = Cloning(self.checkpoint, self._choice.device)
        self.spoken = SpokenTurns()
        self._backend: backends.Backend | None = None
        self._codec = None
        self._step = threading.RLock()  # held while weights are in use, for one row or one window
        self._turn = threading.Lock()  # held by the running generation
        self._turn_owner: int | None = None
        self._epoch = 0  # counts unloads: a generation of an older epoch ends

    @property
    def device(self) -> torch.device:
        """Where the weights live when loaded."""
        return self._choice.device

    @property
    def precision(self) -> str:
        """Format of the weights: "fp32", "bf16" or "fp8"."""
        return self._choice.precision

    @property
    def is_fallback(self) -> bool:
        """Whether plain PyTorch runs on a GPU, for the reason given."""
        return self._choice.is_fallback

    @property
    def backend_reason(self) -> str:
        """Which backend runs and why, for people."""
        return f"{self._choice.backend} ({self._choice.precision}): {self._choice.reason}"

    @property
    def sample_rate(self) -> int:
        """Samples per second of the sound."""
        return self.checkpoint.codec_config.sample_rate

    @property
    def is_loaded(self) -> bool:
        """Whether the weights are there."""
        return self._backend is not None

    @property
    def resident_bytes(self) -> int:
        """Bytes held on the device now."""
        with self._step:
            return sum(part.resident_bytes for part in (self._backend, self._codec) if part)

    @property
    def arena_bytes(self) -> dict[str, int]:
        """Bytes held on the device now, by what they are for; empty when nothing is held."""
        with self._step:
            parts = self._backend.arena_bytes if self._backend else {}
            if self._codec:
                parts = parts | {"codec": self._codec.resident_bytes}
        return {name: n_bytes for name, n_bytes in parts.items() if n_bytes}

    @property
    def size_bytes(self) -> int:
        """Bytes that :meth:`load` will hold."""
        return backends.size_bytes(self._choice, self.checkpoint, self.context_rows)

    def load(self, on_progress: backends.OnProgress | None = None) -> None:
        """Read the weights; does nothing when they are there. On failure nothing stays behind."""
        with self._step:
            if self._backend is not None:
                return
            try:
                self._backend = backends.create(
                    self._choice, self.checkpoint, self.context_rows, on_progress
                )
                self._codec = backends.create_codec(self._choice, self.checkpoint, self._backend)
            except BaseException:
                self.unload()
                raise

    def unload(self) -> None:
        """Free every byte on the device. Idempotent, from any thread, never raises.

        A running generation ends as ``cancelled`` with its next row.
        """
        self._epoch += 1
        with self._step:
            parts = (self._codec, self._backend)
            self._backend = self._codec = None
            for part in parts:
                if part is not None:
                    part.unload()

    def voice(
        self,
        waveform: Tensor,
        sample_rate: int,
        transcript: str = "",
        *,
        name: str = "",
        licence: str = "",
        preview_text: str = "",
        make_room: MakeRoom | None = None,
        on_step: OnStep | None = None,
    ) -> Voice:
        """Make a voice of a recording; a recording seen before is not encoded again.

        Loads the encoder for as long as it encodes; the engine itself need not be loaded.

        Args:
            waveform: float ``[samples]`` or ``[channels, samples]``, full scale at 1; its channels
                are averaged, silent ends cut off, and only the first 100 s are taken.
            sample_rate: in Hz, any.
            transcript: what it says, word for word; may be empty, at a cost in likeness.
            name: of the voice.
            licence: note on what the voice may be used for.
            preview_text: what it is tried out with.
            make_room: called with the bytes that encoding takes, just before it takes them.
            on_step: called while encoding; what it raises ends it, and nothing is left.

        Raises:
            CheckpointError: this checkpoint has no encoder.
            ValueError: the recording can't be used, or the name can't be one.
        """
        return self.cloning.voice(
            waveform, sample_rate, transcript, make_room, on_step,
            name=name, licence=licence, preview_text=preview_text,
        )  # fmt: skip

    def stream(
        self,
        text: str,
        sampling: SamplingParams | None = None,
        *,
        voice: Voice | None = None,
        max_seconds: float | None = None,
        retries: int = 0,
        on_frame: OnFrame | None = None,
        reading: Reading | None = None,
    ) -> Generation:
        """Speak ``text``; iterate the result for chunks of sound as they are made.

        Args:
            text: any length; may hold control tags and pauses, see :mod:`.text`.
            sampling: parameters and seed.
            voice: reference to speak like.
            max_seconds: cap on each utterance; None derives it from the text.
            retries: further attempts, each with its own sub-seed, at an utterance that did not end
                by itself.
            on_frame: called once a frame; what it raises ends the generation and propagates.
            reading: how the text is read.

        Raises:
            ValueError: nothing to speak, parameters out of range, or a voice of another codec.
        """
        reading = reading or Reading()
        script = plan(text, reading, has_voice=voice is not None)
        request = Request(
            utterances=script.utterances,
            sampling=sampling or SamplingParams(),
            voice=voice,
            max_seconds=max_seconds,
            retries=retries,
            on_frame=on_frame or (lambda _done, _cap: None),
            same_voice=reading.same_voice,
            notes=script.notes,
        )
        return self.generation(request)

    def reroll(
        self, codes: Codes, index: int, take: int = 1, *, on_frame: OnFrame | None = None, **options
    ) -> Generation:
        """Speak one utterance of ``codes`` again, by another sub-seed; the others stay.

        The result's :attr:`~.generation.Generation.codes` are whole when its
        :meth:`~.generation.Generation.frames` are exhausted. Iterated for sound it gives the one
        utterance only: decode the codes for all.

        Args:
            codes: as spoken, or loaded.
            index: of the utterance, from 0.
            take: how many sub-seeds further, from 1.
            on_frame: as in :meth:`stream`.
            options: ``voice``, ``max_seconds``, ``retries`` as in :meth:`stream`; ``same_voice``
                as in :class:`.script.Reading`.

        Raises:
            ValueError: no such utterance or no words in it, codes of another codec, or parameters
                out of range.
        """
        self._check_codec(codes)
        kept = dict(enumerate(codes.utterances))
        old = kept.pop(index, None)
        if old is None or not old.text:
            spoken = ", ".join(str(i + 1) for i, each in enumerate(codes.utterances) if each.text)
            raise ValueError(f"codes: utterance {index + 1} has no words; there are {spoken}")
        if take < 1 or old.attempt + take > LAST_ATTEMPT:
            raise ValueError(f"take must be 1 … {LAST_ATTEMPT - old.attempt}, got {take}")
        request = Request(
            utterances=tuple(Utterance(each.text, gap_s=each.gap_s) for each in codes.utterances),
            sampling=codes.sampling,
            voice=options.pop("voice", None),
            max_seconds=options.pop("max_seconds", None),
            retries=options.pop("retries", 0),
            on_frame=on_frame or (lambda _done, _cap: None),
            kept=kept,
            first_attempt=old.attempt + take,
            same_voice=options.pop("same_voice", True),
            notes=codes.notes,
        )
        if options:
            raise TypeError(f"reroll: unknown options {sorted(options)}")
        return self.generation(request)

    def generation(self, request: Request) -> Generation:
        """What :meth:`stream` returns, of a request made elsewhere; errors as there."""
        config, codec_id = self.checkpoint.config, self.checkpoint.codec_id
        for voice in (request.voice, *(role.voice for role in request.roles.values())):
            if voice is not None:
                voice.check_fits(config.n_codebooks, config.codebook_size, codec_id)
        if request.retries < 0:
            raise ValueError(f"retries must be 0 or more, got {request.retries}")
        if request.max_seconds is not None and not request.max_seconds > 0:
            raise ValueError(f"max_seconds must be above 0, got {request.max_seconds}")
        return Generation(self, request)

    def codes(self, text: str, sampling: SamplingParams | None = None, **options) -> Codes:
        """Speak ``text`` into codes, without the codec; options as :meth:`stream`."""
        generation = self.stream(text, sampling, **options)
        for _ in generation.frames():
            pass
        return generation.codes

    def generate(self, text: str, sampling: SamplingParams | None = None, **options) -> Speech:
        """Speak ``text`` into sound: what :meth:`stream` yields, joined; options as there."""
        generation = self.stream(text, sampling, **options)
        return Speech(join(generation), self.sample_rate, generation.codes)

    def decode(self, codes: Codes) -> Tensor:
        """Decode codes into a waveform, float32 ``[samples]``; the same bits as streaming them.

        Raises:
            ValueError: the codes are of another codec.
        """
        return torch.cat([torch.empty(0), *self.decode_chunks(codes)])

    def decode_chunks(self, codes: Codes) -> Iterator[Tensor]:
        """Decode codes piece by piece, in the memory of one window; joined it is :meth:`decode`.

        Raises:
            ValueError: the codes are of another codec.
        """
        self._check_codec(codes)
        joiner = Joiner(self.sample_rate)
        last = len(codes.utterances) - 1
        for index, utterance in enumerate(codes.utterances):
            joiner.begin(utterance.gap_s)
            for waveform in self._decoded(utterance.frames):
                yield joiner.push(waveform)
            yield joiner.end(index == last)

    def _check_codec(self, codes: Codes) -> None:
        if codes.codec_id != self.checkpoint.codec_id:
            raise ValueError(
                f"codes: made with another codec (checkpoint '{codes.checkpoint}'), this is "
                f"'{self.checkpoint.path.name}'; load the checkpoint that made them"
            )

    def decode_voice(self, voice: Voice) -> Tensor:
        """Decode a voice's reference, float32 ``[samples]``: what the model hears of it."""
        return torch.cat(list(self._decoded(voice.codes)))

    def _decoded(self, frames: Tensor) -> Iterator[Tensor]:
        """Finished frames, int64 ``[T, N]``, as chunks of waveform; loads the weights if needed."""
        self.load()
        try:
            yield from self.decode_stream(iter(frames))
        except Superseded as signal:
            raise RuntimeError(
                "engine: the model was unloaded while it decoded; run it again"
            ) from signal

    def decode_stream(self, frames: Iterable[Tensor]) -> Iterator[Tensor]:
        """Frames int64 ``[N]`` of one utterance → chunks of waveform, float32 ``[samples]``."""
        return decode_stream(self.decode_window, frames, self.checkpoint.codec_config)

    def decode_window(self, codes: Tensor, lead: int = 0, tail: int = 0) -> Tensor:
        """The codec on a window, as :meth:`.backend.Codec.decode_window`, the weights held."""
        with self._step:
            if self._codec is None:
                raise Superseded
            return self._codec.decode_window(codes, lead, tail)

    @contextmanager
    def current(self, epoch: int) -> Iterator[backends.Backend]:
        """The backend, for one row; raises Superseded when it is not that of ``epoch`` any more."""
        with self._step:
            if self._backend is None or self._epoch != epoch:
                raise Superseded
            yield self._backend

    @contextmanager
    def my_turn(self) -> Iterator[int]:
        """One generation at a time, another thread's waits; yields the epoch, weights loaded."""
        me = threading.get_ident()
        if self._turn_owner == me and self._turn.locked():
            raise RuntimeError(
                "engine: another generation of this thread is still open; exhaust or close it first"
            )
        with self._turn:
            self._turn_owner = me
            try:
                with self._step:
                    self.load()
                    epoch = self._epoch
                yield epoch
            finally:
                self._turn_owner = None


def load(
    path_or_name: str | Path = "starter", device: str = "auto", precision: str = "auto"
) -> Engine:
    """Open a checkpoint and load its weights; arguments and errors as :class:`Engine`."""
    engine = Engine(path_or_name, device, precision)
    engine.load()
    return engine
