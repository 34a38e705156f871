"""Command line: ``python -m livevoice say | voice | check | status | bench``.

The one place that prints. A mistake of the caller is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import sys
import time
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .checkpoint import STARTER, check

_SERVER = "http://127.0.0.1:8188"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A console that can't show a letter shows an escape, instead of ending the run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print("livevoice: stopped", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        message = " ".join(str(error).split())
        print(f"livevoice: {message}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # one line, where argparse prints the usage too
        self.exit(2, f"livevoice: {message} (see --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m livevoice", description="Text to speech, Higgs Audio v3.")
    commands = parser.add_subparsers(required=True, metavar="say | voice | check | status | bench")
    say = commands.add_parser("say", help="speak a text into a sound file")
    say.add_argument("text", help="what to say; - reads standard input")
    say.add_argument("out", type=Path, help="sound file to write (.wav, 24 kHz, 16 bit)")
    say.add_argument("--voice", help="voice file, or one of the starter's: hibari, rms, slt")
    say.add_argument("--seed", type=int, default=0, help="same seed, same speech (default 0)")
    say.add_argument("--temperature", type=float, help="0 … 10; 0 takes the likeliest code")
    say.add_argument("--top-k", type=int, help="keep the k likeliest codes; 0 keeps all")
    say.add_argument("--top-p", type=float, help="keep this much probability; 1 keeps all")
    say.add_argument("--retries", type=int, default=2, help="tries more at speech without an end")
    _add_model_arguments(say)
    say.set_defaults(run=_say)

    _add_voice(commands)
    checks = commands.add_parser("check", help="list what is wrong with a checkpoint")
    checks.add_argument("model", nargs="?", default=STARTER, help="folder or name")
    checks.set_defaults(run=_check)
    shows = commands.add_parser("status", help="show who holds the memory of ComfyUI's device")
    shows.add_argument("--server", default=_SERVER, help=f"of ComfyUI (default {_SERVER})")
    shows.set_defaults(run=_status)
    _add_bench(commands)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=STARTER, help="folder of a checkpoint, or its name in models/tts"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16, fp8")


def _add_voice(commands: argparse._SubParsersAction) -> None:
    voice = commands.add_parser("voice", help="make a voice file of a recording")
    voice.add_argument("recording", type=Path, help="one person speaking, 1 to 100 s (.wav, PCM)")
    voice.add_argument("out", type=Path, help="file to write; its stem is the voice's name")
    voice.add_argument("--transcript", default="", help="what the recording says, word for word")
    voice.add_argument("--licence", default="", help="note on what the voice may be used for")
    _add_model_arguments(voice)
    voice.set_defaults(run=_clone)


def _add_bench(commands: argparse._SubParsersAction) -> None:
    from . import bench

    parser = commands.add_parser("bench", help="measure speed on this machine")
    bench.add_arguments(parser)
    parser.set_defaults(run=bench.run)


def _check(options: argparse.Namespace) -> int:
    problems = check(options.model)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{options.model}: fine")
    return 1 if problems else 0


def _status(options: argparse.Namespace) -> int:
    from .backend import choose
    from .checkpoint import Checkpoint
    from .status import status, status_of

    found = status_of(options.server)
    if found is not None:
        print(f"ComfyUI at {options.server}\n{found.text()}")
        return 0
    choice = choose(Checkpoint.open(STARTER), "auto", "auto")
    print(f"no ComfyUI with LiveVoice answers at {options.server}; this machine:")
    print(status((), choice.device).text())
    print(f"  backend: {choice.backend} {choice.precision}, {choice.reason}")
    return 0


def _say(options: argparse.Namespace) -> int:
    text = sys.stdin.read() if options.text == "-" else options.text
    _need_writable(options.out)
    from .engine import Engine
    from .generation import join

    start = time.monotonic()
    engine = Engine(options.model, options.device, options.precision)
    sampling = _sampling(options, engine.checkpoint.generation_defaults)
    voice = _voice(options.voice)
    with _Bar("frames") as bar:
        generation = engine.stream(
            text, sampling, voice=voice, retries=options.retries, on_frame=bar.show
        )
        with _Bar("B", unit_scale=True) as loading:
            engine.load(loading.show)
        loaded = time.monotonic()
        waveform = join(generation)
    codes, took = generation.codes, time.monotonic() - loaded
    _write_wav(options.out, waveform, engine.sample_rate)
    print(
        f"{options.out}: {codes.seconds:.2f} s of speech in {took:.2f} s "
        f"({codes.seconds / max(took, 1e-9):.1f} x real time), loading {loaded - start:.2f} s, "
        f"{engine.backend_reason}"
    )
    for note in codes.notes:
        print(f"livevoice: {note}", file=sys.stderr)
    for utterance in codes.utterances:
        if utterance.stop_reason != "eoc":
            print(
                f"livevoice: did not end by itself ({utterance.stop_reason}): {utterance.text}",
                file=sys.stderr,
            )
    return 0


def _sampling(options: argparse.Namespace, defaults: dict) -> object:
    """Parameters: the command line's, else the checkpoint's, else the engine's."""
    from .sampling import SamplingParams

    given = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p")}
    chosen = {name: defaults[name] for name in given if name in defaults}
    chosen |= {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**chosen, seed=options.seed)


def _voice(name: str | None) -> object:
    """The voice of that file or of that name among the starter's; None for None."""
    from .voice_file import load_voice, starter_voices

    return load_voice(starter_voices().get(name, Path(name))) if name else None


def _clone(options: argparse.Namespace) -> int:
    from .engine import Engine
    from .voice_file import save_voice

    waveform, sample_rate = _read_wav(options.recording)
    engine = Engine(options.model, options.device)
    voice = engine.voice(
        waveform, sample_rate, options.transcript, name=options.out.stem, licence=options.licence
    )
    save_voice(voice, options.out)
    seconds = voice.seconds(engine.checkpoint.codec_config.frame_rate_hz)
    print(f"{options.out}: {seconds:.2f} s of reference")
    for notice in voice.notices:
        print(f"livevoice: {notice}", file=sys.stderr)
    return 0


def _read_wav(path: Path) -> tuple[Tensor, int]:
    """Read integer PCM as float32 ``[channels, samples]``, and its sample rate."""
    try:
        with wave.open(str(path)) as file:
            n_channels, width, sample_rate, n_frames = file.getparams()[:4]
            data = np.frombuffer(file.readframes(n_frames), np.uint8)
    except (wave.Error, EOFError) as error:
        raise ValueError(f"can't read {path.name} as PCM .wav: {error}") from error
    if width == 1:
        samples = data.astype(np.float32) / 128 - 1
    else:  # the sample's bytes on top of a 32-bit integer
        wide = np.zeros((data.size // width, 4), np.uint8)
        wide[:, 4 - width :] = data.reshape(-1, width)
        samples = wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    return torch.from_numpy(samples.reshape(-1, n_channels).T.copy()), sample_rate


def _need_writable(path: Path) -> None:
    """Fail before the work, not after it."""
    if path.suffix.lower() != ".wav":
        raise ValueError(f"can write .wav only, got '{path.name}'")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, give a file name")
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ValueError(f"can't write {path}: {error.strerror}") from error
    if is_new:
        path.unlink()


def _write_wav(path: Path, waveform: Tensor, sample_rate: int) -> None:
    """Write float32 ``[samples]`` as 16-bit PCM; values beyond full scale are clamped."""
    samples = (waveform.clamp(-1, 1) * 32767).round().to(torch.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples.numpy().astype("<i2").tobytes())


class _Bar:
    """Progress, shown by tqdm on a terminal when it takes longer than a second."""

    def __init__(self, unit: str, **options: object) -> None:
        from tqdm import tqdm

        self._bar = tqdm(unit=unit, delay=1.0, leave=False, ascii=True, disable=None, **options)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.close()

    def show(self, done: int, total: int) -> None:
        """Move to ``done``. Of frames ``total`` is an upper bound: speech ends well before it."""
        self._bar.total = total
        self._bar.update(max(0, done - self._bar.n))
