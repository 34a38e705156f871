"""One ruler for speed: loading, prefill, decode, first sound, codec, of any backend.

Times the same calls that the nodes make. Every figure is the median of several runs in this
process; nothing is asserted. Decoding one sequence is bound by reading the weights once a frame: on
a GPU the floor, those bytes over the read bandwidth measured in the same run, stands beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from . import bench_hour, bench_model, bench_peers
from .backend import Backend
from .engine import Engine
from .prompt import Prompt
from .sampling import SamplingParams

_TEXT = "Good morning, the train leaves at seven and we have to hurry."
_SHORT_TEXTS = ("Good night", "Come along")  # 13 tokens with the prompt's, in bytes
_N_ROWS = 50  # rows decoded in one timing: two seconds of speech
_POSITIONS = (100, 500, 1000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the ``bench`` command."""
    parser.add_argument("--model", default="starter", help="folder of a checkpoint, or its name")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp8, or fp8,bf16")
    parser.add_argument(
        "--random", action="store_true", help="random weights at the sizes of the real model"
    )
    parser.add_argument(
        "--peers", action="store_true", help="also time transformers and a captured torch graph"
    )
    parser.add_argument(
        "--hour", action="store_true", help="also time an hour of speech from one text"
    )
    parser.add_argument("--runs", type=int, default=5, help="timings of each figure (median)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def run(options: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    if options.runs < 1:
        raise ValueError(f"--runs must be 1 or more, got {options.runs}")
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if options.random:
            model = bench_model.write_random(
                Path(folder), bench_model.real_sizes(), _any_device(options.device)
            )
        figures = _all_precisions(options, model)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def _all_precisions(options: argparse.Namespace, model: str | Path) -> dict[str, float]:
    """Figures of each precision; those without it in their key get it from the second one on."""
    figures: dict[str, float] = {}
    for i, precision in enumerate(options.precision.split(",")):
        engine = Engine(model, options.device, precision)
        print(
            f"{engine.checkpoint.path.name} on {_machine(engine.device)}, {engine.backend_reason}"
        )
        measured = measure(engine, options.runs)
        if options.hour:
            measured |= bench_hour.measure(engine)
        engine.unload()
        if i > 0:
            measured = {_with_precision(key, precision): each for key, each in measured.items()}
        figures |= _shown(measured)
    if options.peers and engine.device.type == "cuda":
        config = engine.checkpoint.config
        peers = bench_peers.measure(config, engine.device, position=500, runs=options.runs)
        figures |= _shown(peers)
    return figures


def _shown(figures: dict[str, float]) -> dict[str, float]:
    for key, value in figures.items():
        print(f"{key:<34} {value:10.3f}")
    return figures


def _with_precision(key: str, precision: str) -> str:
    return key if precision in key.split(".") else f"{key}.{precision}"


def measure(engine: Engine, runs: int) -> dict[str, float]:
    """All figures by their stable key; times in the unit that the key names."""
    start = time.perf_counter()
    with _PeakMemory(engine.device) as peak:
        engine.load()
        figures = {"load_s": time.perf_counter() - start}
        figures["resident_gb"] = engine.resident_bytes / 1e9
        figures |= _speech_figures(engine, runs)
    if engine.device.type == "cuda":
        figures[f"peak_vram_gb.{engine.precision}"] = peak.n_bytes / 1e9
    return figures | _backend_figures(engine, runs)


class _PeakMemory:
    """Most device memory taken at a time while it is open, as the driver sees it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.n_bytes = 0

    def __enter__(self) -> _PeakMemory:
        if self._device.type == "cuda":
            self._free = torch.cuda.mem_get_info(self._device)[0]
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.005):
            taken = self._free - torch.cuda.mem_get_info(self._device)[0]
            self.n_bytes = max(self.n_bytes, taken)


def _backend_figures(engine: Engine, runs: int) -> dict[str, float]:
    """Prefill and decode at several positions, on random ids: contents don't change the time."""
    precision, limit = engine.precision, engine.context_rows - _N_ROWS
    figures = {}
    with engine.my_turn() as epoch, engine.current(epoch) as backend:
        for n_tokens in (13, 300):
            # Another text each time: what the last prompt began with too is not read again.
            seeds = itertools.count()
            figures[f"prefill_ms.{n_tokens}"] = _median_ms(
                lambda n=n_tokens, seeds=seeds: _prefill(
                    backend, _random_prompt(engine, n, next(seeds))
                ),
                runs,
            )
        figures |= _voice_figures(engine, backend, runs)
        for position in _POSITIONS:
            if position < limit:
                prompt = _random_prompt(engine, position)
                took = [_decode_ms(backend, prompt) for _ in range(runs)]
                figures[f"decode_ms.{precision}.pos{position}"] = statistics.median(took)
        if backend.name == "native":
            figures |= _floor_figures(backend, limit, runs)
            figures |= _lane_figures(backend, runs)
    return figures


def _prefill(backend: Backend, prompt: Prompt) -> None:
    backend.prefill(prompt)
    backend.logits()  # waits for it


def _floor_figures(backend: Backend, limit: int, runs: int) -> dict[str, float]:
    """Time of a step on the GPU alone, and its floor: bytes that must be read over bandwidth."""
    precision, bandwidth = backend.precision, backend.read_bandwidth()
    figures = {"read_tb_s": bandwidth / 1e12}
    for position in _POSITIONS:
        if position < limit:
            took = statistics.median(backend.time_step_ms(position) for _ in range(3 * runs))
            floor = 1e3 * backend.frame_bytes(position) / bandwidth
            figures[f"step_gpu_ms.{precision}.pos{position}"] = took
            figures[f"floor_ms.{precision}.pos{position}"] = floor
            figures[f"share_of_floor.{precision}.pos{position}"] = floor / took
    return figures


def _lane_figures(backend: Backend, runs: int) -> dict[str, float]:
    """Time of a step of all lanes on the GPU alone, as many lanes as there may be."""
    figures, position = {}, 500
    n_lanes = backend.max_lanes(0, position + 1)
    if n_lanes > 1:
        took = (backend.time_lanes_ms(n_lanes, position) for _ in range(3 * runs))
        key = f"lanes_ms.{backend.precision}.{n_lanes}.pos{position}"
        figures[key] = statistics.median(took)
    return figures


def _voice_figures(engine: Engine, backend: Backend, runs: int) -> dict[str, float]:
    """Prefill behind a voice that is not in the KV cache, and behind one that is, always new text.

    The prompts share nothing but what they have to: a backend may find any common beginning.
    """
    config = engine.checkpoint.config
    one, other = (bench_model.random_voice(config, f"{n} {_TEXT}", seed=n) for n in range(2))
    build = engine.prompts.build
    first, second, third = build(_TEXT, one), build(f"Oh! {_TEXT}", one), build(_TEXT, other)
    if len(second) >= engine.context_rows:
        return {}
    cold, warm = itertools.cycle((first, third)), itertools.cycle((first, second))
    return {
        "prefill_ms.voice_cold": _median_ms(lambda: _prefill(backend, next(cold)), runs),
        "prefill_ms.voice_warm": _median_ms(lambda: _prefill(backend, next(warm)), runs),
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

    texts = itertools.cycle(_SHORT_TEXTS)

    def first_sound() -> None:
        chunks = iter(engine.stream(next(texts), sampling, max_seconds=10))
        next(chunks)
        chunks.close()

    def whole() -> None:
        engine.generate(_TEXT, sampling, max_seconds=10)

    seconds = speech.codes.seconds
    codec_ms = _median_ms(lambda: engine.decode(speech.codes), runs)
    return {
        "first_audio_ms": _median_ms(first_sound, runs),
        "codec_ms_per_audio_s": codec_ms / seconds,
        "spoken_s": seconds,
        "times_real_time": 1e3 * seconds / _median_ms(whole, runs),
    }


def _random_prompt(engine: Engine, n_tokens: int, seed: int = 0) -> Prompt:
    config = engine.checkpoint.config
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (n_tokens,), generator=generator)
    return Prompt(ids, torch.empty((0, config.n_codebooks), dtype=torch.int64))


def _median_ms(call: Callable[[], object], runs: int) -> float:
    call()  # warm
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took)


def _any_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} with {torch.get_num_threads()} threads"
