"""A checkpoint of the real sizes with random weights: speed and rounding do not need trained ones.

Written by the benchmark and by tests on a GPU where the real checkpoint is not at hand. Knows the
shapes from the same functions that check a real one.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .checkpoint import (
    AUDIO_TABLE,
    BACKBONE,
    TEXT_EMBEDDING,
    backbone_shapes,
    codec_decoder_shapes,
    find,
)
from .config import CodecConfig, ModelConfig
from .voice import Voice

_HERE = Path(__file__).resolve().parent
_N_VOICE_FRAMES = 150  # a reference of six seconds
_TABLE_SCALE = 0.2  # logits with a standard deviation near 10, as a trained model's


def real_sizes() -> dict[str, Any]:
    """``config.json`` of bosonai/higgs-audio-v3-tts-4b, as far as the engine reads it."""
    return json.loads((_HERE / "bench_config.json").read_text(encoding="utf-8"))


def write_random(
    folder: Path, raw: dict[str, Any], device: torch.device | str, seed: int = 0
) -> Path:
    """Write a checkpoint for the sizes in ``raw`` (the layout of config.json); returns the folder.

    Weights are drawn on ``device``. Matrices keep the scale of their input; what is added to the
    residual stream is scaled down with the depth, so that activations behave like a trained
    model's: near 1, growing slowly.
    """
    config = ModelConfig.from_json(raw)
    codec_file = _HERE / "codec_config.json"
    codec = CodecConfig.from_json(json.loads(codec_file.read_text(encoding="utf-8")))
    generator = torch.Generator(device=device).manual_seed(seed)

    def values(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator, device=device)
        weights = _spread(name, shape, config) * noise + _centre(name)
        if name == f"{BACKBONE}norm.weight":
            # The head is the table that rows are embedded with: without other signs in between, the
            # codes that went in would come out again for ever.
            weights *= noise.sign()
        return weights.to(torch.bfloat16).cpu()

    shapes = backbone_shapes(config) | codec_decoder_shapes(codec)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: values(name, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    shutil.copy(codec_file, folder / "codec_config.json")
    shutil.copy(find("starter") / "tokenizer.json", folder)
    return folder


def random_voice(config: ModelConfig, transcript: str, seed: int = 0) -> Voice:
    """A voice of noise, six seconds long."""
    generator = torch.Generator().manual_seed(seed)
    shape = (_N_VOICE_FRAMES, config.n_codebooks)
    return Voice(torch.randint(0, config.codebook_size, shape, generator=generator), transcript)


def _centre(name: str) -> float:
    return 1.0 if name.endswith(("norm.weight", "alpha")) else 0.0


def _spread(name: str, shape: tuple[int, ...], config: ModelConfig) -> float:
    if name == TEXT_EMBEDDING:
        return 1.0
    if name == AUDIO_TABLE:
        return _TABLE_SCALE
    if len(shape) == 1 or name.endswith("alpha"):
        return 0.1
    spread = 1 / math.sqrt(math.prod(shape[1:]))
    is_added = name.endswith(("o_proj.weight", "down_proj.weight"))
    return spread / math.sqrt(2 * config.n_layers) if is_added else spread
