"""Codecs for tests: tiny random ones under the checkpoint's names, the starter's, real codes."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

import torch
from livevoice.engine import codec
from livevoice.engine.checkpoint import CODEC, Checkpoint
from livevoice.engine.config import CodecConfig

REAL = json.loads((Path(codec.__file__).parent / "codec_config.json").read_text())

# 45 frames of the starter's main voice, "My piano needs to be tuned.": 8 codes of 10 bits a frame.
_PIANO = (
    "nEA6tnLRTj8YJxOwQ2V/ziXaUdsfbDGKTU325Q4CaVDfE4Tng8/heC+vnDPRmguEXrVGtVsghiM9dK04Qf3VgzkHKYBq"
    "q5gmhep/sdlQ3w86UJZJRGyC5QcB7zQvy09MziDugRZ0NLyMxrPwIz0ZEBBj6oWjafUflAJAlIiY8bZWaKj2fRBVSKAG"
    "YXgv/4C7riDWn4hQb3jp6E1Q7Nt2ZiuaB7AIApviecN4bIYoYq6EkWaMbDT6cYtW3H4YqgS8jC00UvaIsMk47f8Z4/6A"
    "P7zQjga36RJ41NGL3mne5XkRh41v1IVlqHJVcUYF/QKLXeF0lKr1XiubRV0RXfEkxla1sQBquN9a/5UwWS+zU4NW6jBD"
    "OB4C9/3oxqW7deT3xxaKDs/zhIzvL0atvsgaB72IEcZc1rKZ5W6VhFdcp9avnsUCJrL6glZ9dqipHHUkTS/WA1N7724W"
    "x51J3E5Ssk3uHuJdOpszDI7Twd6xMhh5fg9HsIE6Ia46YXcs4XfVwcXzPoiLW8yX2r8fNUtHfrsPbbexdqCYLC8gPfu6"
    "wxARg+10AevatAO7qu3CKnCO9rpRh2JKn6ScVzdtze58Rmxk"
)


def tiny_config() -> dict:
    """The real layout with small widths: 4 codebooks of 32, two HuBERT layers."""
    raw = json.loads(json.dumps(REAL))
    raw |= {"codebook_size": 32, "codebook_dim": 8, "target_bandwidths": [0.25, 0.5]}
    raw["acoustic_model_config"] |= {
        "encoder_hidden_size": 4,
        "decoder_hidden_size": 64,
        "hidden_size": 16,
    }
    raw["semantic_model_config"] |= {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "conv_dim": [12] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    return raw


def oracle(raw: dict):
    """transformers' codec; fails where transformers or its torchaudio is missing."""
    from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel

    return HiggsAudioV2TokenizerModel(HiggsAudioV2TokenizerConfig(**raw)).eval()


class MemoryCheckpoint:
    """Tensors of a state dict under the checkpoint's names; remembers which were read."""

    def __init__(self, raw: dict, state: dict[str, torch.Tensor]):
        self.codec_config = CodecConfig.from_json(raw)
        self.state = {CODEC + name: tensor for name, tensor in state.items()}
        self.read: set[str] = set()

    def tensor(self, name: str, device: str = "cpu") -> torch.Tensor:
        self.read.add(name)
        return self.state[name].to(device)


def randomise(model: torch.nn.Module) -> None:
    """Random weights that keep every branch alive and activations near 1."""
    generator = torch.Generator().manual_seed(7)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("alpha"):
            noise = 1 + 0.3 * noise.clamp(-2, 2)
        elif name.endswith(("embed", "original1")):
            pass
        elif name.endswith(("norm.weight", "original0")):
            noise = 1 + 0.1 * noise
        elif tensor.ndim < 2:
            noise *= 0.1
        else:
            # Residual branches are small: a loud Snake network is chaos and amplifies rounding.
            noise *= (0.3 if "res_unit" in name else 1) / tensor[0].numel() ** 0.5
        tensor.copy_(noise)


@cache
def random_codec():
    """(checkpoint, transformers' model) with the same tiny random weights."""
    model = oracle(tiny_config())
    randomise(model)
    return MemoryCheckpoint(tiny_config(), model.state_dict()), model


@cache
def starter_codec():
    """(checkpoint, transformers' model) with the starter's weights."""
    checkpoint = Checkpoint.open("starter")
    model = oracle(dict(checkpoint.codec_config.raw))
    names = model.state_dict()
    model.load_state_dict({name: checkpoint.tensor(CODEC + name).float() for name in names})
    return checkpoint, model


def piano() -> torch.Tensor:
    """Real codes of the starter, int64 [45, 8]."""
    bits = "".join(f"{byte:08b}" for byte in base64.b64decode(_PIANO))
    return torch.tensor([int(bits[i : i + 10], 2) for i in range(0, len(bits), 10)]).view(-1, 8)


def random_codes(n_frames: int, config: CodecConfig, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.codebook_size, (n_frames, config.n_codebooks), generator=generator)


def noise(n: int, seed: int = 0) -> torch.Tensor:
    return 0.5 * torch.randn(n, generator=torch.Generator().manual_seed(seed))
