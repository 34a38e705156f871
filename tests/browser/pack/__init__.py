"""Nodes of the browser tests: they stand around the product and are no part of it.

*Replay* makes an engine speak at a given speed, *Keep* writes an AUDIO to a file as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import Any

import folder_paths
import numpy as np
from comfy_api.latest import ComfyExtension, io

MODEL = io.Custom("LIVEVOICE_MODEL")
AHEAD_FRAMES = (6, 8, 10)  # after each chunk; SCHEDULE of engine/codec.py
SAMPLES_A_FRAME = 960


class Replay(io.ComfyNode):
    """Passes a model on whose engine says what it said first, at another speed.

    Speech is made once for each text, in earnest; each later run, of any seed, takes no time of the
    processor, so that a test does not depend on the machine. Speed 0 leaves the engine as it is.
    """

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TestReplay",
            category="test",
            inputs=[
                MODEL.Input("model"),
                io.Float.Input("speed", default=5.0, min=0.0, max=100.0, step=0.01),
                io.Float.Input("stall_at_s", default=0.0, min=0.0, max=100.0, step=0.01),
                io.Float.Input("stall_s", default=0.0, min=0.0, max=100.0, step=0.01),
            ],
            outputs=[MODEL.Output()],
        )

    @classmethod
    def execute(cls, model: Any, speed: float, stall_at_s: float, stall_s: float) -> io.NodeOutput:
        engine = model.engine
        vars(engine).pop("stream", None)
        if not speed:
            return io.NodeOutput(model)
        stream = engine.stream
        rate_hz = engine.checkpoint.codec_config.frame_rate_hz

        def replay(text: str, *args: Any, on_frame: Callable[[int, int], None], **options: Any):
            if text not in _said:
                generation = stream(text, *args, **options)
                _said[text] = (list(generation), generation.codes)

            def slowly(done_frames: int, cap_frames: int) -> None:
                made_s = done_frames / rate_hz
                late_s = stall_s if stall_s and made_s > stall_at_s else 0.0
                time.sleep(max(0.0, began_s + made_s / speed + late_s - time.monotonic()))
                on_frame(done_frames, cap_frames)

            began_s = time.monotonic()
            return Replayed(*_said[text], slowly)

        engine.stream = replay
        return io.NodeOutput(model)


_said: dict[str, tuple[list, Any]] = {}  # text → chunks and codes of its one utterance


class Replayed:
    """What the nodes use of a generation."""

    def __init__(self, chunks: list, codes: Any, on_frame: Callable[[int, int], None]) -> None:
        self._chunks = chunks
        self._codes = codes
        self._on_frame = on_frame
        self._n_frames = 0

    def __iter__(self) -> Iterator[Any]:
        total = len(self._codes.frames)
        ends = accumulate(len(chunk.waveform) // SAMPLES_A_FRAME for chunk in self._chunks)
        aheads = chain(AHEAD_FRAMES, repeat(AHEAD_FRAMES[-1]))
        for chunk, end, ahead in zip(self._chunks, ends, aheads, strict=False):
            while self._n_frames < min(total, end + ahead):
                self._n_frames += 1
                self._on_frame(self._n_frames, total)
            yield chunk

    @property
    def codes(self) -> Any:
        """What was made so far."""
        whole = self._codes.utterances[0]
        if self._n_frames == len(whole.frames):
            return self._codes
        part = replace(whole, frames=whole.frames[: self._n_frames], stop_reason="cancelled")
        return replace(self._codes, utterances=(part,))

    def close(self) -> None:
        """Nothing is held."""


class Keep(io.ComfyNode):
    """Writes the samples of an AUDIO as ``<name>.npy`` into the output folder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TestKeep",
            category="test",
            inputs=[io.Audio.Input("audio"), io.String.Input("name", default="kept")],
            outputs=[],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, audio: Any, name: str) -> io.NodeOutput:
        path = Path(folder_paths.get_output_directory()) / f"{name}.npy"
        np.save(path, audio["waveform"].numpy())
        return io.NodeOutput()


class Extension(ComfyExtension):
    """What ComfyUI gets."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [Replay, Keep]


async def comfy_entrypoint() -> Extension:
    """Return the extension (ComfyUI calls this once, at start)."""
    return Extension()
