"""Checkpoints by the name of their weights, as ComfyUI's page knows models."""

from __future__ import annotations

import json

import folder_paths
import pytest
from livevoice.engine import CheckpointError
from livevoice.nodes import checkpoints
from livevoice.nodes.load_model import LoadModel

REAL = "higgs-audio-v3-tts-4b"


@pytest.fixture
def tts(tmp_path, monkeypatch):
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "tts", ([str(tmp_path)], set()))
    return tmp_path


def put(folder, *, model_type=None, weights="model.safetensors"):
    folder.mkdir(parents=True)
    (folder / weights).write_bytes(b"")
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


def test_a_checkpoint_of_one_file_is_called_by_it(tts):
    put(tts / "a", model_type="higgs_multimodal_qwen3")
    put(tts / "vendor" / "b", model_type="higgs_multimodal_qwen3")
    put(tts / "c", model_type="higgs_multimodal_qwen3", weights="model-00001-of-00002.safetensors")
    put(tts / "vits", model_type="vits")
    put(tts / "nameless")
    names = ["a/model.safetensors", "c", "vendor/b/model.safetensors"]
    assert checkpoints.names() == ["starter", *names]
    assert LoadModel.GET_SCHEMA().inputs[0].options == ["starter", *names]
    assert [checkpoints.path_of(name) for name in names] == [
        tts / "a",
        tts / "c",
        tts / "vendor" / "b",
    ]
    # The folder's name is what earlier workflows hold, and names the same checkpoint.
    assert checkpoints.path_of("a") == tts / "a"
    assert LoadModel.fingerprint_inputs("a") == LoadModel.fingerprint_inputs("a/model.safetensors")


def test_weights_alone_are_listed_and_say_what_is_missing(tts):
    put(tts / REAL)
    name = f"{REAL}/model.safetensors"
    assert checkpoints.names() == ["starter", name]
    assert LoadModel.validate_inputs(name) is True
    with pytest.raises(CheckpointError, match=rf"{REAL}.config\.json.*put bosonai/{REAL}"):
        LoadModel.execute(name, "cpu", "auto")


def test_weights_that_are_not_there_or_outside_are_refused(tts):
    put(tts.parent / "outside", model_type="higgs_multimodal_qwen3")
    for name in (f"{REAL}/model.safetensors", "../outside/model.safetensors"):
        with pytest.raises(CheckpointError, match="no folder"):
            checkpoints.path_of(name)
    assert "no folder 'x'" in LoadModel.validate_inputs("x/model.safetensors")
