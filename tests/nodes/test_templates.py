"""The templates as files: what ComfyUI's page lists them with, and offers to download for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "workflows"
TEMPLATES = sorted(FOLDER.glob("*.json"))
# Kept by the page's rules: a node declares a model by name, url and directory, the value of one of
# its widgets is that name, and only files with such an ending and from such a host are offered.
MODEL = {
    "name": "higgs-audio-v3-tts-4b/model.safetensors",
    "url": "https://huggingface.co/bosonai/higgs-audio-v3-tts-4b/resolve/main/model.safetensors",
    "directory": "tts",
}
NEED_THE_REAL_MODEL = {"clone_a_voice", "real_voice"}


def nodes(file, kind):
    workflow = json.loads(file.read_text("utf-8"))
    return [node for node in workflow["nodes"] if node["type"] == kind]


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_each_template_declares_its_model_and_says_whether_it_is_needed(file):
    (loader,) = nodes(file, "LiveVoiceLoadModel")
    assert loader["properties"]["models"] == [MODEL]
    needs = file.stem in NEED_THE_REAL_MODEL
    assert loader["widgets_values"][0] == (MODEL["name"] if needs else "starter")
    (note,) = nodes(file, "MarkdownNote")
    (text,) = note["widgets_values"]
    assert ("9.3 GB" in text) == needs
    assert ("nothing has to be downloaded" in text) == (not needs)
    if needs:
        assert "research and non-commercial" in text


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_each_template_has_a_small_picture(file):
    picture = file.with_suffix(".jpg").read_bytes()
    assert picture[:3] == b"\xff\xd8\xff"
    assert len(picture) < 60_000


def test_no_picture_without_a_template():
    pictures = {path.stem for path in FOLDER.glob("*.jpg")}
    assert pictures == {path.stem for path in TEMPLATES}


def test_ids_differ():
    ids = [json.loads(file.read_text("utf-8"))["id"] for file in TEMPLATES]
    assert len(set(ids)) == len(ids)
