"""One ruler for speed: loading, prefill, decode, first sound, codec, of any backend.

Times the same calls that the nodes make. Every figure is the median of several runs in this
process; nothing is asserted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from .backend import Backend
from .engine import Engine
from .prompt import Prompt
from .sampling import SamplingParams
from .voice import Voice

_TEXT = "Good morning, the train leaves at seven and we have to hurry."
_N_VOICE_FRAMES = 150  # a reference of six seconds
_N_ROWS = 50  # rows decoded in one timing: two seconds of speech


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the ``bench`` command."""
    parser.add_argument("--model", default="starter", help="folder of a checkpoint, or its name")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp8")
    parser.add_argument("--runs", type=int, default=5, help="timings of each figure (median)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    if options.runs < 1:
        raise ValueError(f"--runs must be 1 or more, got {options.runs}")
    engine = Engine(options.model, options.device, options.precision)
    print(f"{engine.checkpoint.path.name} on {_machine(engine.device)}, {engine.backend_reason}")
    figures = measure(engine, options.runs)
    for key, value in figures.items():
        print(f"{key:<28} {value:10.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(engine: Engine, runs: int) -> dict[str, float]:
    """All figures by their stable key; times in the unit that the key names."""
    start = time.perf_counter()
    engine.load()
    figures = {"load_s": time.perf_counter() - start}
    figures["resident_gb"] = engine.resident_bytes / 1e9
    figures |= _backend_figures(engine, runs)
    figures |= _speech_figures(engine, runs)
    return figures


def _backend_figures(engine: Engine, runs: int) -> dict[str, float]:
    """Prefill and decode at several positions, on random ids: contents don't change the time."""
    precision, limit = engine.precision, engine.context_rows - _N_ROWS
    figures = {}
    with engine.my_turn() as epoch, engine.current(epoch) as backend:
        for n_tokens in (13, 300):
            prompt = _random_prompt(engine, n_tokens)
            figures[f"prefill_ms.{n_tokens}"] = _median_ms(
                lambda prompt=prompt: backend.prefill(prompt), runs
            )
        figures |= _voice_figures(engine, backend, runs)
        for position in (100, 500, 1000):
            if position < limit:
                prompt = _random_prompt(engine, position)
                took = [_decode_ms(backend, prompt) for _ in range(runs)]
                figures[f"decode_ms.{precision}.pos{position}"] = statistics.median(took)
    return figures


def _voice_figures(engine: Engine, backend: Backend, runs: int) -> dict[str, float]:
    """Prefill behind a voice's prefix that is not in the KV cache, and behind one that is."""
    generator = torch.Generator().manual_seed(0)
    config = engine.checkpoint.config
    shape = (2, _N_VOICE_FRAMES, config.n_codebooks)
    codes = torch.randint(0, config.codebook_size, shape, generator=generator)
    one, other = (engine.prompts.build(_TEXT, Voice(each, _TEXT)) for each in codes)
    if len(one) >= engine.context_rows:
        return {}
    in_turn = itertools.cycle((one, other))
    return {
        "prefill_ms.voice_cold": _median_ms(lambda: backend.prefill(next(in_turn)), runs),
        "prefill_ms.voice_warm": _median_ms(lambda: backend.prefill(one), runs),
    }


def _decode_ms(backend: Backend, prompt: Prompt) -> float:
    """Milliseconds a row, sampling and embedding included, for rows right after ``prompt``."""
    backend.prefill(prompt)
    sampling = SamplingParams(1.0, 50, 1.0, 0)
    rows = backend.decode(sampling, stream=0, max_rows=_N_ROWS)
    next(rows)
    start = time.perf_counter()
    n_rows = sum(1 for _ in rows)
    return 1e3 * (time.perf_counter() - start) / max(1, n_rows)


def _speech_figures(engine: Engine, runs: int) -> dict[str, float]:
    """First sound, whole utterance and codec, through the calls of the nodes."""
    sampling = SamplingParams(0.65, 30, 1.0, 0)
    speech = engine.generate(_TEXT, sampling, max_seconds=10)

    def first_sound() -> None:
        chunks = iter(engine.stream(_TEXT, sampling, max_seconds=10))
        next(chunks)
        chunks.close()

    def whole() -> None:
        engine.generate(_TEXT, sampling, max_seconds=10)

    seconds = speech.codes.seconds
    codec_ms = _median_ms(lambda: engine.decode(speech.codes), runs)
    return {
        "first_audio_ms": _median_ms(first_sound, runs),
        "codec_ms_per_audio_s": codec_ms / seconds,
        "times_real_time": 1e3 * seconds / _median_ms(whole, runs),
    }


def _random_prompt(engine: Engine, n_tokens: int) -> Prompt:
    config = engine.checkpoint.config
    ids = torch.randint(0, 256, (n_tokens,), generator=torch.Generator().manual_seed(n_tokens))
    return Prompt(ids, torch.empty((0, config.n_codebooks), dtype=torch.int64))


def _median_ms(call: Callable[[], object], runs: int) -> float:
    call()  # warm
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} with {torch.get_num_threads()} threads"
