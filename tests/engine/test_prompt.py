import pytest
import torch
from checkpoints import STARTER
from livevoice.engine import Voice
from livevoice.engine.checkpoint import Checkpoint, CheckpointError
from livevoice.engine.delay import delay
from livevoice.engine.prompt import AUDIO_SLOT, PromptBuilder
from qwen_tokenizer import write_qwen_tokenizer

TTS, AUDIO, TEXT, REF_AUDIO, REF_TEXT = 151667, 151670, 151672, 151679, 151680
REAL_VOCAB = 151936


@pytest.fixture(scope="module")
def starter() -> Checkpoint:
    return Checkpoint.open(STARTER)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, starter: Checkpoint) -> PromptBuilder:
    """A builder with the real model's vocabulary, made from Qwen's published token list."""
    import dataclasses

    folder = tmp_path_factory.mktemp("qwen")
    write_qwen_tokenizer(folder / "tokenizer.json")
    return PromptBuilder(folder, dataclasses.replace(starter.config, text_vocab=REAL_VOCAB))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("hello", [14990]),
        ("test", [1944]),
        (" hello", [23811]),
        ("我", [35946]),
        ("你好", [108386]),
        ("!", [0]),
        ("A", [32]),
    ],
)
def test_tokens_equal_the_published_vectors(real: PromptBuilder, text: str, ids: list[int]):
    assert real.tokens(text) == ids


def test_zero_shot_prompt_equals_the_published_vector(real: PromptBuilder):
    prompt = real.build("你好")
    assert prompt.ids.tolist() == [TTS, TEXT, 108386, AUDIO]
    assert prompt.rows.shape == (0, 8)


def test_clone_prompts_interleave_as_published(real: PromptBuilder, starter: Checkpoint):
    codes = torch.randint(0, 1024, (5, 8), generator=torch.Generator().manual_seed(0))
    slots = [AUDIO_SLOT] * (5 + 7)
    prompt = real.build("你好", Voice(codes, "hello"))
    assert prompt.ids.tolist() == [
        TTS, REF_TEXT, 14990, REF_AUDIO, *slots, TEXT, 108386, AUDIO,
    ]  # fmt: skip
    assert torch.equal(prompt.rows, delay(codes, starter.config))
    without = real.build("你好", Voice(codes))
    assert without.ids.tolist() == [TTS, REF_AUDIO, *slots, TEXT, 108386, AUDIO]


def test_control_tags_are_single_tokens(real: PromptBuilder):
    assert real.tokens("<|emotion:elation|>") == [151681]
    assert real.tokens("<|prosody:expressive_low|>") == [151726]
    assert real.tokens("a<|sfx:cough|>Ahem") == [*real.tokens("a"), 151707, *real.tokens("Ahem")]


@pytest.mark.parametrize(
    "typed", ["<|audio|>", "<|tts|>", "x<|text|>y", "<|im_end|>", "<|endoftext|>", "<tool_call>",
              "<|<|audio|>audio|>"],
)  # fmt: skip
def test_structural_tokens_typed_by_a_user_stay_text(real: PromptBuilder, typed: str):
    ids = real.tokens(typed)
    assert max(ids) < 151643
    assert real._tokenizer.decode(ids) == typed


def test_starter_prompt(starter: Checkpoint):
    builder = PromptBuilder(STARTER, starter.config)
    assert builder.build("Hi é").ids.tolist() == [280, 285, 104, 105, 32, 195, 169, 283]


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_empty_text_is_refused(real: PromptBuilder, text: str):
    with pytest.raises(ValueError, match="nothing to speak"):
        real.build(text)


def test_voice_of_another_codec_is_refused(real: PromptBuilder):
    with pytest.raises(ValueError, match="has 4 codebooks, the model speaks 8"):
        real.build("hi", Voice(torch.zeros(3, 4, dtype=torch.int64)))
    with pytest.raises(ValueError, match="at least one frame"):
        Voice(torch.zeros(0, 8, dtype=torch.int64))


def test_tokenizer_that_does_not_fit_the_embedding_is_refused(starter: Checkpoint, tmp_path):
    write_qwen_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match="text embedding has 512 rows"):
        PromptBuilder(tmp_path, starter.config)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="can't read"):
        PromptBuilder(tmp_path, starter.config)
