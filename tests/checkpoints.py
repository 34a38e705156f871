"""Tiny random checkpoints in the real format, written to a folder."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import torch
from livevoice.engine.checkpoint import (
    AUDIO_TABLE,
    backbone_shapes,
    codec_decoder_shapes,
    find,
)
from livevoice.engine.config import CodecConfig, ModelConfig
from safetensors.torch import save_file

STARTER = find("starter")


def tiny_config(**text: object) -> dict:
    """The starter's config.json with smaller numbers; ``text`` overrides fields of text_config."""
    raw = json.loads((STARTER / "config.json").read_text())
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "layer_types": ["full_attention"] * 3,
        "max_position_embeddings": 512,
    }
    raw["text_config"] |= sizes | text
    raw["audio_encoder_config"]["out_dim"] = raw["text_config"]["hidden_size"]
    return raw


def tiny_codec_config() -> dict:
    """The starter's codec config with a narrow decoder."""
    raw = json.loads((STARTER / "codec_config.json").read_text())
    raw["acoustic_model_config"] |= {"decoder_hidden_size": 64, "hidden_size": 24}
    return raw


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Random bf16 values that keep activations near 1: norms near 1, matrices 1/sqrt(fan in)."""
    generator = torch.Generator().manual_seed(seed)

    def values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight") or name.endswith("alpha"):
            return 1 + 0.1 * noise
        if len(shape) == 1:
            return 0.1 * noise
        if "embedding" in name:
            return noise * (2.0 if name == AUDIO_TABLE else 1.0) / math.sqrt(8)
        return noise / math.sqrt(math.prod(shape[1:]))

    return {name: values(name, shape).to(torch.bfloat16) for name, shape in shapes.items()}


def write_tiny(folder: Path, *, seed: int = 0, config: dict | None = None) -> Path:
    """Write a checkpoint of random weights with the starter's tokenizer; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    raw, codec_raw = config or tiny_config(), tiny_codec_config()
    shapes = backbone_shapes(ModelConfig.from_json(raw))
    shapes |= codec_decoder_shapes(CodecConfig.from_json(codec_raw))
    save_file(random_tensors(shapes, seed), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "codec_config.json").write_text(json.dumps(codec_raw))
    shutil.copy(STARTER / "tokenizer.json", folder)
    return folder
