"""The nodes in a real server: what runs, what it gives, and what is refused where."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from .comfyui import ROOT, PromptFailedError, PromptRefusedError
from .speaking import (
    ODD_NAME,
    STARTER,
    TINY,
    codes_of,
    decode,
    load,
    play,
    settings,
    sound_of,
    speak,
    speak_aloud,
)
from .workflow import to_prompt

WORKFLOWS = sorted((ROOT / "workflows").glob("*.json"))
pytestmark = pytest.mark.comfy


@pytest.fixture(scope="session")
def object_info(server):
    return server.object_info()


def refusal(server, prompt):
    with pytest.raises(PromptRefusedError) as caught:
        server.queue(prompt)
    return caught.value.messages


def failure(server, prompt):
    with pytest.raises(PromptFailedError) as caught:
        server.run(prompt)
    return str(caught.value)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_workflow_runs(server, object_info, file):
    prompt = to_prompt(json.loads(file.read_text("utf-8")), object_info)
    prompt["1"]["inputs"]["checkpoint"] = STARTER  # some ask for the real one, which is not here
    entry = server.run(prompt)
    players = [node for node, output in entry["outputs"].items() if "audio" in output]
    assert players
    sounds = [sound_of(server, entry, node) for node in players]
    for samples, rate in sounds:
        assert rate == 24000
        assert 1.0 < len(samples) / rate < 45.0
        assert np.abs(samples).max() > 0.05
    if file.stem == "save_and_redecode_codes":
        assert len(sounds) == 2
        assert np.array_equal(sounds[0][0], sounds[1][0])
        codes = codes_of(server, entry)
        assert (codes.sampling.seed, codes.stop_reason) == (7, "eoc")
        assert codes.text.startswith("Good morning!")
    if file.stem == "audiobook_chapter":
        check_chapter(codes_of(server, entry), sounds[0][0], str(entry["outputs"]))


def check_chapter(codes, samples, outputs):
    assert [each.gap_s for each in codes.utterances] == [0.8, 0.1, 0.5, 0.5, 0.5, 1.0, 0.0]
    assert codes.stop_reason == "eoc"
    assert len(samples) == 960 * len(codes.frames) + round(24000 * 3.4)
    pause_s = len(codes.utterances[0].frames) / 25 + np.array([0.01, 0.79])
    assert not samples[slice(*(24000 * pause_s).astype(int))].any()
    assert "One cold day in November, at seven thirty in the morning, the clock stopped." in outputs
    assert "00:00:00,000 --> 00:00:0" in outputs
    assert "not spoken, markdown: # **" in outputs
    assert "not spoken, pause: [pause:0.8] [pause:500ms] [pause:1]" in outputs


def test_the_preview_gives_the_same_sound_as_the_two_nodes(server):
    prompt = speak_aloud(max_seconds=1.6)
    preview = {"model": ["2", 0], **settings(max_seconds=1.6)}
    prompt["7"] = {"class_type": "LiveVoiceStreamingPreview", "inputs": preview}
    prompt["8"] = play(["7", 0])
    entry = server.run(prompt)
    two_nodes, one_node = (sound_of(server, entry, node)[0] for node in ("6", "8"))
    assert len(two_nodes) == 1.6 * 24000
    assert np.array_equal(two_nodes, one_node)


def test_folders_of_every_place_and_any_name_are_listed(object_info):
    described = object_info["LiveVoiceLoadModel"]
    kind, options = described["input"]["required"]["checkpoint"]
    names = options["options"] if kind == "COMBO" else kind
    assert names[0] == STARTER
    assert {f"{name}/model.safetensors" for name in (TINY, "elsewhere")} <= set(names)
    assert described["python_module"] == f"custom_nodes.{ODD_NAME}"


def test_a_checkpoint_of_extra_model_paths_speaks(server):
    elsewhere, here = (server.run(speak(name)) for name in ("elsewhere", TINY))
    assert codes_of(server, elsewhere).frames.equal(codes_of(server, here).frames)


def test_the_browser_gets_its_script(server):
    script = next(
        path for path in server.get("/extensions") if path.endswith("/livevoice/preview.js")
    )
    assert b"registerExtension" in server.request(script)


def test_text_without_a_word_is_refused_at_its_node(server):
    for text in ("", " \n ", "?!"):
        (message,) = [
            message for node, message in refusal(server, speak(text=text)).items() if node == "3"
        ]
        assert "nothing to speak" in message


def test_numbers_out_of_range_are_refused_at_their_node(server):
    for name, value in (("temperature", 5.0), ("top_p", 0.0), ("top_k", -1), ("seed", -1)):
        message = refusal(server, speak(**{name: value}))["3"]
        assert name in message
        assert "than m" in message  # smaller than min, bigger than max


def test_a_missing_checkpoint_is_refused_and_says_how_to_get_one(server):
    message = refusal(server, speak("higgs-audio-v3-tts-4b"))["1"]
    assert "no folder 'higgs-audio-v3-tts-4b'" in message
    assert "put bosonai/higgs-audio-v3-tts-4b" in message


def test_a_missing_file_of_codes_is_refused(server):
    for name in ("nowhere.safetensors", "../../outside.safetensors"):
        prompt = {
            "1": load(),
            "7": {"class_type": "LiveVoiceLoadCodes", "inputs": {"file": name}},
            "8": decode(["1", 0], ["7", 0]),
            "9": play(["8", 0]),
        }
        assert "no file" in refusal(server, prompt)["7"]


def test_a_truncated_checkpoint_is_listed_and_fails_at_its_loader(server):
    folder = server.base / "models" / "tts" / "cut off"
    shutil.copytree(server.base / "models" / "tts" / TINY, folder, dirs_exist_ok=True)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(200_000)
    message = failure(server, speak("cut off"))
    assert message.startswith("node 1 (LiveVoiceLoadModel): checkpoint: ")
    assert "is cut off: 200,000 of" in message
    assert "get it again" in message


def test_fp8_without_a_gpu_fails_at_the_loader(server):
    prompt = speak()
    prompt["1"] = load(precision="fp8")
    message = failure(server, prompt)
    assert message.startswith("node 1 (LiveVoiceLoadModel): precision fp8 needs")


def test_codes_of_another_codec_fail_at_the_decoder(server):
    prompt = speak_aloud()
    prompt["7"] = load(STARTER)
    prompt["5"] = decode(["7", 0], ["3", 0])
    message = failure(server, prompt)
    assert message.startswith("node 5 (LiveVoiceCodesToWaveform): codes: made with another codec")


def test_the_bar_moves_in_frames(server):
    with server.listen() as events:
        prompt_id = server.queue(speak(seed=77))
        entry = server.wait(prompt_id)
    assert entry["status"]["status_str"] == "success"
    seen = [
        (data["value"], data["max"])
        for kind, data in events.seen
        if kind == "progress" and data["node"] == "3"
    ]
    assert seen
    assert all(bar == (min(bar[0], 15), 15) for bar in seen)
