import copy
import json

import pytest
from checkpoints import STARTER, tiny_config
from livevoice.engine.config import CodecConfig, ModelConfig


def test_sizes_come_from_the_file():
    config = ModelConfig.from_json(tiny_config())
    assert (config.hidden, config.n_layers, config.head_dim, config.ffn) == (48, 3, 16, 80)
    assert (config.boc, config.eoc, config.codebook_size) == (1024, 1025, 1024)


def test_rope_theta_is_read_in_both_styles_and_never_guessed():
    raw = tiny_config()
    assert ModelConfig.from_json(raw).rope_theta == 1_000_000
    del raw["text_config"]["rope_parameters"]
    with pytest.raises(ValueError, match=r"neither rope_parameters\.rope_theta nor rope_theta"):
        ModelConfig.from_json(raw)
    raw["text_config"]["rope_theta"] = 5e5
    assert ModelConfig.from_json(raw).rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "higgs_audio"}, "Higgs Audio v2"),
        ({"model_type": "llama"}, "expected 'higgs_multimodal_qwen3'"),
        ({"audio_encoder_config": None}, "audio_encoder_config"),
    ],
)
def test_other_models_are_refused(change: dict, message: str):
    raw = tiny_config() | change
    if raw["audio_encoder_config"] is None:
        del raw["audio_encoder_config"]
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_json(raw)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"num_key_value_heads": 4}, "not a multiple"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}, "rope_type"),
    ],
)
def test_contradictions_are_refused(text: dict, message: str):
    raw = copy.deepcopy(tiny_config())
    raw["text_config"] |= text
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_json(raw)


def test_codec_sizes():
    config = CodecConfig.from_json(json.loads((STARTER / "codec_config.json").read_text()))
    assert (config.sample_rate, config.hop_samples, config.frame_rate_hz) == (24000, 960, 25)
    assert (config.n_codebooks, config.codebook_size) == (8, 1024)
