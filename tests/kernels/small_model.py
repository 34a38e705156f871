"""Sizes of the random models that the native backend is tried on."""

from __future__ import annotations

import copy

from livevoice.engine.bench_model import real_sizes

SMALL = {
    "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048, "vocab_size": 512,
}  # fmt: skip
WIDE_HEADS = SMALL | {"head_dim": 128, "num_attention_heads": 6, "hidden_size": 320}


def config(sizes: dict) -> dict:
    """A checkpoint's config.json with these sizes of the backbone."""
    raw = copy.deepcopy(real_sizes())
    raw["text_config"] |= sizes
    raw["audio_encoder_config"]["out_dim"] = raw["text_config"]["hidden_size"]
    return raw
