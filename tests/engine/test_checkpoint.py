import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import STARTER, tiny_config, write_tiny
from livevoice.engine.checkpoint import (
    AUDIO_TABLE,
    CODEC,
    TEXT_EMBEDDING,
    Checkpoint,
    CheckpointError,
    check,
    find,
)
from safetensors.torch import load_file, save_file


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may break."""
    return Path(shutil.copytree(tiny, tmp_path / "broken"))


def change_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_starter_is_whole_and_is_read_from_shards():
    assert check("starter") == []
    checkpoint = Checkpoint.open("starter")
    assert len({checkpoint.entry(name).file for name in checkpoint.names}) == 2
    assert checkpoint.has_encoder
    assert checkpoint.generation_defaults == {"temperature": 0.65, "top_k": 30, "top_p": 1.0}


def test_single_file_equals_shards(tiny: Path, tmp_path: Path):
    tensors = load_file(tiny / "model.safetensors")
    shards = Path(shutil.copytree(tiny, tmp_path / "shards"))
    (shards / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, shards / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = Checkpoint.open(shards)
    assert all(torch.equal(checkpoint.tensor(name), tensors[name]) for name in names)
    (shards / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors is missing"):
        Checkpoint.open(shards)


def test_entry_tells_where_the_bytes_are(tiny: Path):
    checkpoint = Checkpoint.open(tiny)
    entry = checkpoint.entry(TEXT_EMBEDDING)
    data = entry.file.read_bytes()[entry.offset : entry.offset + entry.n_bytes]
    raw = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(entry.shape)
    assert entry.dtype == "BF16"
    assert torch.equal(raw, checkpoint.tensor(TEXT_EMBEDDING))


def test_extra_tensors_and_untied_heads_are_ignored(folder: Path):
    def add(tensors: dict) -> None:
        tensors["tied.head.text_head.weight"] = torch.zeros(3, 3)
        tensors["tied.head.modality_heads.0.weight"] = torch.zeros(3, 3)
        tensors["left.over"] = torch.zeros(1)

    change_tensors(folder, add)
    assert check(folder) == []


def test_missing_and_misshapen_tensors_are_all_listed(folder: Path):
    def spoil(tensors: dict) -> None:
        del tensors["body.layers.1.mlp.up_proj.weight"]
        del tensors[f"{CODEC}fc2.bias"]
        tensors[AUDIO_TABLE] = tensors[AUDIO_TABLE][:-1].clone()

    change_tensors(folder, spoil)
    problems = check(folder)
    assert len(problems) == 2
    assert "2 of " in problems[0]
    assert "first body.layers.1.mlp.up_proj.weight" in problems[0]
    assert "has shape [8207, 48], config.json asks for [8208, 48]" in problems[1]
    with pytest.raises(CheckpointError, match=r"\(1 more; run `check`\)"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named_with_what_to_do(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing; put bosonai/higgs-audio-v3"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("kept", [0, 5, 900, 100_000])
def test_truncated_file_is_refused(folder: Path, kept: int):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"cut off|no safetensors header|broken header"):
        Checkpoint.open(folder)


def test_one_missing_byte_is_noticed(folder: Path):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cut off"):
        Checkpoint.open(folder)


def test_garbage_is_refused(folder: Path):
    (folder / "model.safetensors").write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(CheckpointError, match="no safetensors header"):
        Checkpoint.open(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"can't read .*config.json"):
        Checkpoint.open(folder)


def test_v2_checkpoint_is_refused(folder: Path):
    (folder / "config.json").write_text(json.dumps(tiny_config() | {"model_type": "higgs_audio"}))
    with pytest.raises(CheckpointError, match="Higgs Audio v2 checkpoint"):
        Checkpoint.open(folder)


def test_tokenizer_without_special_tokens_is_refused(folder: Path):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = [
        token for token in tokenizer["added_tokens"] if token["content"] != "<|ref_audio|>"
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=r"has no <\|ref_audio\|>"):
        Checkpoint.open(folder)


def test_unreadable_folder_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no folder"):
        find(tmp_path / "nowhere")
    (tmp_path / "config.json").mkdir()  # reading it fails, as without permission
    with pytest.raises(CheckpointError, match="can't read"):
        Checkpoint.open(tmp_path)


def test_codec_id_tells_codecs_apart(tiny: Path, tmp_path: Path):
    other = write_tiny(tmp_path / "other", seed=1)
    ids = [Checkpoint.open(path).codec_id for path in (tiny, other, STARTER, tiny)]
    assert ids[0] == ids[3]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    "name",
    [
        "quantizer.quantizers.1.codebook.embed",
        "quantizer.quantizers.7.codebook.embed",
        "quantizer.quantizers.0.project_out.weight",
        "quantizer.quantizers.7.project_out.bias",
        "fc2.weight",
        "fc2.bias",
    ],
)
def test_codec_id_is_of_every_codebook(tiny: Path, tmp_path: Path, name: str):
    other = shutil.copytree(tiny, tmp_path / "other")
    tensors = load_file(tiny / "model.safetensors")
    tensors[CODEC + name].view(-1)[-1] += 1
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    assert Checkpoint.open(other).codec_id != Checkpoint.open(tiny).codec_id


def test_small_tensors_are_the_same_as_by_safetensors(tiny: Path):
    checkpoint = Checkpoint.open(tiny)
    for name, expected in load_file(tiny / "model.safetensors").items():
        assert torch.equal(checkpoint.tensor(name), expected), name


def test_a_file_that_shrinks_after_it_was_opened_is_one_sentence(folder: Path):
    checkpoint = Checkpoint.open(folder)
    last = max(checkpoint.names, key=lambda name: checkpoint.entry(name).offset)
    file = checkpoint.entry(last).file
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=r"can't read .*: the file is cut off"):
        checkpoint.tensor(last)
