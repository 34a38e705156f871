"""An hour of speech from one text, end to end: the figure that lanes are for.

Timed through the engine's own stream, the codec included, on whatever model is given. With random
weights no speech ends by itself: each piece is then cut by ``max_seconds``, at the length that the
text was cut for, so that the number of frames is known and is the hour. A trained model ends its
pieces itself; its hour is that of the frames it really spoke, and the seconds are scaled to 90,000.
"""

from __future__ import annotations

import time

from .bench_model import random_voice
from .engine import Engine
from .sampling import SamplingParams
from .script import Reading

HOUR_S = 3600.0
_PIECE_S = 12.0  # what the pieces of a long text come to, cut between sentences at up to 15 s
_SENTENCE = (
    "The train leaves the station at seven in the morning and we have to hurry, because the road "
    "through the valley is still closed and nobody in the village knows when it will open again."
)


def measure(engine: Engine, seconds: float = HOUR_S) -> dict[str, float]:
    """Wall seconds for an hour, by key; ``seconds`` of speech are asked for."""
    n_pieces = round(seconds / _PIECE_S)
    text = "\n\n".join([_SENTENCE] * n_pieces)
    engine.load()
    generation = engine.stream(
        text,
        SamplingParams(1.0, 50, 1.0, 0),
        voice=random_voice(engine.checkpoint.config, _SENTENCE),  # settled from the start
        max_seconds=_PIECE_S,
        reading=Reading(gap_s=0, paragraph_s=0),
    )
    start = time.perf_counter()
    n_samples = sum(len(chunk.waveform) for chunk in generation)
    took = time.perf_counter() - start
    reasons = [each.stop_reason for each in generation.codes.utterances]
    return {
        "hour_s": took * HOUR_S * engine.sample_rate / n_samples,
        "hour_measured_s": took,
        "hour_spoken_s": generation.codes.seconds,
        "hour_pieces": float(len(reasons)),
        "hour_pieces_cut": float(sum(reason != "eoc" for reason in reasons)),
    }
