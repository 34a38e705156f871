"""Checkpoints and recordings for voices: a tiny random checkpoint with a whole encoder, sounds."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import tiny_codec
import torch
from checkpoints import STARTER, random_tensors, tiny_config
from livevoice.engine.checkpoint import backbone_shapes
from livevoice.engine.config import ModelConfig
from safetensors.torch import save_file


def write_with_encoder(folder: Path) -> Path:
    """Write a checkpoint whose codec is that of :func:`tiny_codec.random_codec`."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = tiny_config()
    codec = tiny_codec.random_codec()[0]
    config = codec.codec_config
    raw["audio_encoder_config"] |= {
        "num_codebooks": config.n_codebooks,
        "vocab_size": config.codebook_size + 2,
    }
    tensors = random_tensors(backbone_shapes(ModelConfig.from_json(raw)), seed=1)
    tensors |= {name: tensor.clone().contiguous() for name, tensor in codec.state.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "codec_config.json").write_text(json.dumps(config.raw))
    shutil.copy(STARTER / "tokenizer.json", folder)
    return folder


def speechlike(seconds: float, rate: int = 24000, seed: int = 0) -> torch.Tensor:
    """Harmonics of a gliding pitch under a syllable rhythm, float32 ``[samples]``, peak 0.5."""
    t = torch.arange(round(seconds * rate)) / rate
    generator = torch.Generator().manual_seed(seed)
    f0, depth = 110 + 60 * torch.rand(1, generator=generator), 20
    phase = 2 * math.pi * (f0 * t - depth / (2 * math.pi * 2) * torch.cos(2 * math.pi * 2 * t))
    voiced = sum(torch.sin(k * phase) / k for k in range(1, 6))
    rhythm = 0.6 + 0.4 * torch.sin(2 * math.pi * 3.5 * t + seed)
    wave = voiced * rhythm
    return 0.5 * wave / wave.abs().max()
