"""The nodes as ComfyUI reads and calls them, with its own modules and without its server."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import comfy.model_management as management
import comfy.utils
import folder_paths
import pytest
import torch
from livevoice.engine import HOW_TO_GET, CheckpointError, Codes, SamplingParams
from livevoice.engine import report as report_of
from livevoice.nodes import LiveVoiceExtension, checkpoints, load_codes, speech
from livevoice.nodes.audio import from_audio, to_audio
from livevoice.nodes.codes_to_waveform import CodesToWaveform
from livevoice.nodes.load_codes import LoadCodes
from livevoice.nodes.load_model import LoadModel
from livevoice.nodes.residency import EnginePatcher, patcher_of
from livevoice.nodes.save_codes import SaveCodes
from livevoice.nodes.text_to_codes import TextToCodes

NODES = asyncio.run(LiveVoiceExtension().get_node_list())
checkpoints.register_folder()
WEB = Path(checkpoints.__file__).parent / "web"
SETTINGS = {"seed": 3, "temperature": 0.65, "top_k": 30, "top_p": 1.0, "keep_partial": False}


@pytest.fixture(scope="module")
def model():
    return patcher_of("starter", "cpu", "auto")


@pytest.fixture
def tts(tmp_path, monkeypatch):
    """Two folders of the type, the first of which another pack has made."""
    places = [tmp_path / "models ü", tmp_path / "more"]
    monkeypatch.setitem(
        folder_paths.folder_names_and_paths, "tts", ([str(places[0]), str(places[1])], {".pt"})
    )
    return places


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Output and input folder of this test."""
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "output"))
    monkeypatch.setattr(folder_paths, "input_directory", str(tmp_path / "input"))
    return tmp_path / "output", tmp_path / "input"


@pytest.fixture
def interrupt_at(monkeypatch):
    """Presses cancel when the progress bar shows that many frames."""

    def arrange(n_frames):
        def hook(done_frames, *_args, **_options):
            if done_frames == n_frames:
                monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", None)
                management.interrupt_current_processing(True)

        monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", hook)
        # Every update, not one in a tenth of a second.
        monkeypatch.setattr(comfy.utils, "PROGRESS_THROTTLE_MIN_INTERVAL", 0, raising=False)

    yield arrange
    management.interrupt_current_processing(False)


def write_config(folder, **content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))


def codes_of(model, **changed):
    spoken = {"text": "Good morning to you all.", "max_seconds": 0.6, "retries": 0}
    return TextToCodes.execute(model, **{**spoken, **SETTINGS, **changed}).args


def test_schemas_are_complete():
    assert len({node.GET_SCHEMA().node_id for node in NODES}) == len(NODES) >= 6
    for node in NODES:
        schema = node.GET_SCHEMA()
        assert schema.node_id == f"LiveVoice{node.__name__}"
        assert schema.display_name.startswith("LiveVoice ")
        assert schema.category == "audio/LiveVoice"
        assert schema.description.endswith(".")
        for put in (*schema.inputs, *schema.outputs):
            assert put.tooltip.endswith("."), f"{schema.node_id}: {put.id}"
        assert (
            (WEB / "docs" / f"{schema.node_id}.md")
            .read_text()
            .startswith(f"# {schema.display_name}\n")
        )


def test_help_pages_describe_every_input():
    for node in NODES:
        schema = node.GET_SCHEMA()
        page = (WEB / "docs" / f"{schema.node_id}.md").read_text()
        if schema.node_id != "LiveVoiceStreamingPreview":  # refers to Text to Codes
            assert [put.id for put in schema.inputs if f"| {put.id} |" not in page] == []


def test_defaults_are_the_engines():
    inputs = TextToCodes.GET_SCHEMA().inputs
    wires = ("model", "voice", "reading")
    defaults = {put.id: put.default for put in inputs if put.id not in wires}
    engine = vars(SamplingParams())
    assert {name: defaults[name] for name in engine} == engine
    seed = next(put for put in TextToCodes.GET_SCHEMA().inputs if put.id == "seed")
    assert (seed.min, seed.max, seed.control_after_generate) == (0, 2**64 - 1, True)
    assert speech.text_problem(defaults["text"]) is True


def test_audio_goes_both_ways():
    waveform = torch.linspace(-1, 1, 50)
    audio = to_audio(waveform, 24000)
    assert audio["waveform"].shape == (1, 1, 50)
    assert audio["waveform"].dtype == torch.float32
    back, rate = from_audio(audio)
    assert torch.equal(back, waveform)
    assert rate == 24000


def test_stereo_becomes_mono():
    stereo = torch.stack([torch.ones(8), torch.zeros(8)])[None]
    waveform, rate = from_audio({"waveform": stereo, "sample_rate": 44100})
    assert torch.equal(waveform, torch.full((8,), 0.5))
    assert rate == 44100


def test_audio_that_is_none_or_empty_is_refused():
    with pytest.raises(ValueError, match="there is none"):
        from_audio(None)
    with pytest.raises(ValueError, match="is empty"):
        from_audio({"waveform": torch.zeros(1, 2, 0), "sample_rate": 1})
    with pytest.raises(ValueError, match=r"got \[2, 1, 5\]"):
        from_audio({"waveform": torch.zeros(2, 1, 5), "sample_rate": 1})
    with pytest.raises(ValueError, match="nothing was spoken"):
        to_audio(torch.empty(0), 24000)


def test_checkpoints_of_every_place_are_listed(tts):
    write_config(tts[0] / "Größe b", model_type="higgs_multimodal_qwen3")
    write_config(tts[1] / "vendor" / "a", model_type="higgs_multimodal_qwen3")
    write_config(tts[1] / "vits", model_type="vits")
    write_config(tts[1] / "starter", model_type="higgs_multimodal_qwen3")
    (tts[1] / "cut off").mkdir()
    (tts[1] / "cut off" / "config.json").write_text('{"model_ty')
    (tts[0] / "empty").mkdir()
    assert checkpoints.names() == ["starter", "cut off", "Größe b", "vendor/a"]
    assert LoadModel.GET_SCHEMA().inputs[0].options == checkpoints.names()
    assert checkpoints.path_of("vendor/a") == tts[1] / "vendor" / "a"
    assert checkpoints.path_of("Größe b") == tts[0] / "Größe b"


def test_an_incomplete_checkpoint_says_what_is_missing(tts):
    write_config(tts[0] / "half", model_type="higgs_multimodal_qwen3")
    assert LoadModel.validate_inputs("half") is True
    with pytest.raises(CheckpointError, match=r"half.*config\.json: "):
        LoadModel.execute("half", "cpu", "auto")


def test_a_checkpoint_that_is_not_there_says_how_to_get_it(tts):
    (tts[0].parent / "outside").mkdir()
    for name in ("nowhere", "", "../outside", str(tts[0].parent / "outside")):
        assert HOW_TO_GET in LoadModel.validate_inputs(name)
        with pytest.raises(CheckpointError, match="no folder"):
            checkpoints.path_of(name)


def test_the_loader_notices_replaced_files(tts):
    write_config(tts[0] / "a", model_type="higgs_multimodal_qwen3")
    before = LoadModel.fingerprint_inputs("a", device="auto", precision="auto")
    assert before == LoadModel.fingerprint_inputs("a", device="cpu", precision="fp8")
    write_config(tts[0] / "a", model_type="higgs_multimodal_qwen3", more=1)
    assert before != LoadModel.fingerprint_inputs("a", device="auto", precision="auto")
    assert LoadModel.fingerprint_inputs(None, device="auto", precision="auto") is None


def test_the_folder_is_added_to_an_entry_that_exists(tts):
    checkpoints.register_folder()
    checkpoints.register_folder()
    places, extensions = folder_paths.folder_names_and_paths["tts"]
    assert places == [*map(str, tts), str(Path(folder_paths.models_dir) / "tts")]
    assert extensions == {".pt", ".safetensors"}


def test_an_entry_that_takes_every_file_goes_on_taking_every_file(monkeypatch):
    monkeypatch.delitem(folder_paths.folder_names_and_paths, "tts", raising=False)
    checkpoints.register_folder()
    assert folder_paths.folder_names_and_paths["tts"][1] == set()


def test_text_without_a_word_is_refused():
    assert "nothing to speak" in TextToCodes.validate_inputs(" ?! ")
    assert TextToCodes.validate_inputs("a") is True
    assert TextToCodes.validate_inputs(None) is True  # over a wire, judged later


def test_bad_settings_are_refused_before_anything_is_loaded():
    patcher = EnginePatcher.over(SimpleNamespace(device=torch.device("cpu"), unload=lambda: None))
    for bad in ({"temperature": math.nan}, {"top_k": -1}, {"top_p": 0.0}, {"seed": 2**64}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
            codes_of(patcher, **bad)


def test_empty_text_over_a_wire_is_refused_before_loading(model):
    management.unload_all_models()
    with pytest.raises(ValueError, match="nothing to speak"):
        TextToCodes.execute(model, "", max_seconds=0, retries=0, **SETTINGS)
    assert not model.engine.is_loaded


def test_codes_come_with_a_report(model):
    codes, report, spoken = codes_of(model, text="Good morning to 2 of you. 😀")
    assert codes.seconds == 0.6
    assert spoken == "Good morning to two of you."
    assert report.splitlines() == [
        "0.60 s, 1 utterances, cap; listen to 1",
        "1: 0.00 - 0.60 s, 15 frames, cap, attempt 1, as expected: Good morning to two of you.",
        "not spoken, emoji: 😀",
    ]


def test_retries_are_reported(model):
    codes, report, _ = codes_of(model, retries=1)
    assert codes.utterances[0].attempt == 1
    assert "attempt 2" in report


def test_cancel_ends_within_a_frame_and_leaves_the_weights(model, interrupt_at):
    interrupt_at(5)
    with pytest.raises(management.InterruptProcessingException):
        codes_of(model)
    assert model.engine.is_loaded
    assert codes_of(model)[0].seconds == 0.6


def test_cancel_keeps_what_was_spoken_when_asked(model, interrupt_at):
    whole = codes_of(model)[0]
    interrupt_at(8)
    partial, report, _ = codes_of(model, keep_partial=True)
    n_frames = len(partial.frames)
    assert 0 < n_frames <= 9  # pressed during frame 9, heard when it is done
    assert torch.equal(partial.frames, whole.frames[:n_frames])
    assert partial.stop_reason == "cancelled"
    assert "cancelled" in report
    audio = CodesToWaveform.execute(model, partial).args[0]
    assert audio["waveform"].shape == (1, 1, 960 * n_frames)


def test_an_unload_while_speaking_is_an_error(model, monkeypatch):
    def unload(done_frames, *_args, **_options):
        if done_frames == 3:
            model.detach(True)

    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", unload)
    monkeypatch.setattr(comfy.utils, "PROGRESS_THROTTLE_MIN_INTERVAL", 0, raising=False)
    with pytest.raises(RuntimeError, match="unloaded while it spoke"):
        codes_of(model)


def test_decoding_piece_by_piece_is_decoding(model):
    codes = codes_of(model, text="One. \n\n Two, three.")[0]
    assert len(codes.utterances) == 2
    audio = CodesToWaveform.execute(model, codes).args[0]
    assert torch.equal(audio["waveform"][0, 0], model.engine.decode(codes))


def test_codes_without_a_frame_are_refused(model):
    codes = replace(codes_of(model)[0], utterances=())
    with pytest.raises(ValueError, match="nothing was spoken"):
        CodesToWaveform.execute(model, codes)


def test_codes_survive_saving(model, folders):
    codes = codes_of(model)[0]
    names = [SaveCodes.execute(codes, "deep/er/Größe").args[1] for _ in range(2)]
    assert names == [f"deep/er/Größe_0000{number}_.safetensors" for number in (1, 2)]
    loaded, report = LoadCodes.execute(names[0]).args
    assert torch.equal(loaded.frames, codes.frames)
    assert torch.equal(loaded.frames, Codes.load(folders[0] / names[1]).frames)
    assert (loaded.text, loaded.sampling, loaded.stop_reason) == (
        codes.text,
        codes.sampling,
        codes.stop_reason,
    )
    assert report == report_of(codes).text()


def test_codes_are_loaded_from_input_too(model, folders):
    folders[1].mkdir()
    codes_of(model)[0].save(folders[1] / "mine.safetensors")
    assert LoadCodes.validate_inputs("mine.safetensors") is True
    assert LoadCodes.execute("mine.safetensors").args[0].seconds == 0.6
    assert LoadCodes.fingerprint_inputs("mine.safetensors")


def test_codes_come_from_nowhere_else(model, folders):
    for folder in (*folders, folders[0].parent / "other"):
        folder.mkdir()
    outside = folders[0].parent / "other" / "a.safetensors"
    codes_of(model)[0].save(outside)
    (folders[0] / "link.safetensors").symlink_to(outside)
    for name in (str(outside), "../other/a.safetensors", "link.safetensors", "", "."):
        assert "no file" in LoadCodes.validate_inputs(name)
        with pytest.raises(ValueError, match="no file"):
            load_codes._find(name)
    with pytest.raises(Exception, match="outside the output folder"):
        SaveCodes.execute(codes_of(model)[0], "../other/b")


def test_a_file_of_something_else_is_refused(folders):
    folders[0].mkdir()
    (folders[0] / "a.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a LiveVoice codes file"):
        LoadCodes.execute("a.safetensors")
