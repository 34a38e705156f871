"""Word errors of every precision, in two halves: the GPU and the recogniser may be on two machines.

    python -m tests.speech.heard speak FOLDER [fp8,bf16]     a GPU, or the CPU with fp32
    python -m tests.speech.heard judge FOLDER                the recogniser

Ten sentences that the starter was not trained on, each with several seeds. Sampling parts the
precisions after a few frames, so they say different things equally well: compare the rates.
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import torch
from livevoice.engine import Engine, SamplingParams

SEEDS = 3
SENTENCES = [
    "The old lighthouse keeper polished the brass lamp every evening.",
    "Please leave your muddy boots outside the kitchen door.",
    "She wrote a long letter to her brother in the city.",
    "The children built a small boat out of sticks and paper.",
    "Most of the students finished the exam before noon.",
    "My grandfather repaired clocks for almost fifty years.",
    "We watched the sun rise slowly over the quiet valley.",
    "Could you bring me another cup of coffee, please?",
    "It takes about twenty minutes to walk to the station.",
    "Every morning he feeds the birds in the park.",
]


def speak(folder: Path, precision: str) -> None:
    """Write ``folder/precision/seed-sentence.wav``, 16 bit."""
    engine = Engine("starter", "cpu" if precision == "fp32" else "cuda", precision)
    (folder / precision).mkdir(parents=True, exist_ok=True)
    for seed in range(SEEDS):
        for index, sentence in enumerate(SENTENCES):
            sampling = SamplingParams(**engine.checkpoint.generation_defaults, seed=seed)
            speech = engine.generate(sentence, sampling)
            if speech.codes.stop_reason != "eoc":
                print(f"{precision} {seed}-{index}: ended by {speech.codes.stop_reason}")
            samples = (speech.waveform.clamp(-1, 1) * 32767).short().numpy()
            with wave.open(str(folder / precision / f"{seed}-{index}.wav"), "wb") as file:
                file.setparams((1, 2, engine.sample_rate, 0, "NONE", ""))
                file.writeframes(samples.astype("<i2").tobytes())
    engine.unload()


def judge(folder: Path) -> None:
    """Print the word error rate of each precision that is there."""
    from .recogniser import hear, word_errors

    for precision in sorted(path for path in folder.iterdir() if path.is_dir()):
        errors = said = 0
        for path in sorted(precision.glob("*.wav")):
            with wave.open(str(path)) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
                heard = hear(torch.from_numpy(samples / np.float32(32768)), file.getframerate())
            wrong, n_words = word_errors(SENTENCES[int(path.stem.split("-")[1])], heard)
            errors, said = errors + wrong, said + n_words
        print(f"{precision.name}: {errors} of {said} words wrong, {errors / max(1, said):.1%}")


if __name__ == "__main__":
    command, target, *names = sys.argv[1:]
    if command == "speak":
        for name in (names or ["fp8,bf16"])[0].split(","):
            speak(Path(target), name)
    else:
        judge(Path(target))
