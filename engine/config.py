"""Sizes of the model and of the codec, as the checkpoint's JSON files give them.

Knows JSON keys and nothing of tensors. Every size that other files use comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODEL_TYPE = "higgs_multimodal_qwen3"
"""What ``config.json`` calls a model of this kind."""


def _need(section: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in section or section[key] is None:
        raise ValueError(f"config.json: {where} has no '{key}'")
    return section[key]


def _rope_theta(text: Mapping[str, Any]) -> float:
    """Rotary base from ``rope_parameters`` (transformers 5) or the older ``rope_theta``."""
    parameters = text.get("rope_parameters") or {}
    theta = parameters.get("rope_theta", text.get("rope_theta"))
    if theta is None:
        raise ValueError(
            "config.json: text_config has neither rope_parameters.rope_theta nor rope_theta; "
            "a default would give wrong speech"
        )
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"config.json: rope_type '{kind}' is not supported, only 'default'")
    return float(theta)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the Qwen3 backbone and of the audio table.

    Axis letters: H hidden, F ffn, Q query heads, K key/value heads, D head width, N codebooks,
    V entries per codebook (codec entries, then BOC, then EOC).
    """

    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    text_vocab: int
    rope_theta: float
    rms_eps: float
    max_positions: int
    n_codebooks: int
    codebook_vocab: int

    @property
    def codebook_size(self) -> int:
        """Entries that the codec knows: ids 0 … codebook_size - 1."""
        return self.codebook_vocab - 2

    @property
    def boc(self) -> int:
        """Begin-of-codebook id, fills the ramp before a delayed codebook starts."""
        return self.codebook_vocab - 2

    @property
    def eoc(self) -> int:
        """End-of-codebook id; sampled by codebook 0 it ends the speech."""
        return self.codebook_vocab - 1

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read ``config.json`` of the ``higgs_multimodal_qwen3`` layout.

        Raises:
            ValueError: another model, a missing size, or sizes that contradict each other.
        """
        _refuse_other_models(config)
        text, audio = config["text_config"], config["audio_encoder_config"]
        where = "text_config"
        sizes = cls(
            n_layers=int(_need(text, "num_hidden_layers", where)),
            hidden=int(_need(text, "hidden_size", where)),
            n_heads=int(_need(text, "num_attention_heads", where)),
            n_kv_heads=int(_need(text, "num_key_value_heads", where)),
            head_dim=int(_need(text, "head_dim", where)),
            ffn=int(_need(text, "intermediate_size", where)),
            text_vocab=int(_need(text, "vocab_size", where)),
            rope_theta=_rope_theta(text),
            rms_eps=float(_need(text, "rms_norm_eps", where)),
            max_positions=int(_need(text, "max_position_embeddings", where)),
            n_codebooks=int(_need(audio, "num_codebooks", "audio_encoder_config")),
            codebook_vocab=int(_need(audio, "vocab_size", "audio_encoder_config")),
        )
        sizes._check(text, audio)
        return sizes

    def _check(self, text: Mapping[str, Any], audio: Mapping[str, Any]) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"config.json: {self.n_heads} attention heads are not a multiple of "
                f"{self.n_kv_heads} key/value heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"config.json: head_dim must be even, got {self.head_dim}")
        if audio.get("out_dim", self.hidden) != self.hidden:
            raise ValueError(
                f"config.json: audio out_dim {audio['out_dim']} differs from hidden {self.hidden}"
            )
        if text.get("attention_bias") or text.get("use_sliding_window"):
            raise ValueError("config.json: attention_bias and sliding windows are not supported")
        if text.get("hidden_act", "silu") != "silu":
            raise ValueError(f"config.json: hidden_act '{text['hidden_act']}' is not supported")


def _refuse_other_models(config: Mapping[str, Any]) -> None:
    kind = config.get("model_type")
    if kind == MODEL_TYPE and "text_config" in config:
        if "audio_encoder_config" not in config:
            raise ValueError("config.json: audio_encoder_config is missing")
        return
    if isinstance(kind, str) and kind.startswith("higgs_audio"):
        raise ValueError(
            f"config.json: this is a Higgs Audio v2 checkpoint (model_type '{kind}'); "
            "LiveVoice speaks with v3, get bosonai/higgs-audio-v3-tts-4b"
        )
    raise ValueError(
        f"config.json: model_type is '{kind}', expected '{MODEL_TYPE}'; "
        "get bosonai/higgs-audio-v3-tts-4b"
    )


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of the neural codec (DAC-style, residual vector quantiser), 24 kHz, 25 frames a second.

    ``raw`` keeps the whole dictionary in the layout of transformers' HiggsAudioV2TokenizerConfig.
    """

    sample_rate: int
    semantic_sample_rate: int
    downsample_factor: int
    codebook_size: int
    codebook_dim: int
    n_codebooks: int
    acoustic_hidden: int
    encoder_hidden: int
    decoder_hidden: int
    semantic_hidden: int
    downsampling_ratios: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    raw: Mapping[str, Any]

    @property
    def hop_samples(self) -> int:
        """Samples of one frame."""
        hop = 1
        for ratio in self.upsampling_ratios:
            hop *= ratio
        return hop

    @property
    def frame_rate_hz(self) -> int:
        """Frames per second of audio."""
        return self.sample_rate // self.hop_samples

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> CodecConfig:
        """Read a codec configuration; raises ValueError where it contradicts itself."""
        where = "codec config"
        acoustic = _need(config, "acoustic_model_config", where)
        semantic = _need(config, "semantic_model_config", where)
        sizes = cls(
            sample_rate=int(_need(config, "sample_rate", where)),
            semantic_sample_rate=int(_need(config, "semantic_sample_rate", where)),
            downsample_factor=int(_need(config, "downsample_factor", where)),
            codebook_size=int(_need(config, "codebook_size", where)),
            codebook_dim=int(_need(config, "codebook_dim", where)),
            n_codebooks=_n_codebooks(config, acoustic),
            acoustic_hidden=int(_need(acoustic, "hidden_size", where)),
            encoder_hidden=int(_need(acoustic, "encoder_hidden_size", where)),
            decoder_hidden=int(_need(acoustic, "decoder_hidden_size", where)),
            semantic_hidden=int(_need(semantic, "hidden_size", where)),
            downsampling_ratios=tuple(_need(acoustic, "downsampling_ratios", where)),
            upsampling_ratios=tuple(_need(acoustic, "upsampling_ratios", where)),
            raw=config,
        )
        if sizes.sample_rate % sizes.hop_samples:
            raise ValueError(
                f"codec config: {sizes.hop_samples} samples a frame do not divide "
                f"{sizes.sample_rate} Hz"
            )
        return sizes


def _n_codebooks(config: Mapping[str, Any], acoustic: Mapping[str, Any]) -> int:
    """Quantisers at the highest bandwidth: floor(1000 · kbps / (frame rate · bits per code))."""
    hop = 1
    for ratio in acoustic["downsampling_ratios"]:
        hop *= ratio
    frame_rate = -(-config["sample_rate"] // hop)
    bits = (config["codebook_size"] - 1).bit_length()
    return int(1000 * config["target_bandwidths"][-1] // (frame_rate * bits))
