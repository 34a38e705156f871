"""The nodes for long texts: options, reports, re-rolls, and what is shown while they run."""

from __future__ import annotations

import json

import pytest
import torch
from livevoice.engine import Reading
from livevoice.nodes import progress
from livevoice.nodes.codes_to_waveform import CodesToWaveform
from livevoice.nodes.plan_text import PlanText
from livevoice.nodes.report import Report
from livevoice.nodes.reroll import Reroll
from livevoice.nodes.residency import patcher_of
from livevoice.nodes.text_options import TextOptions
from livevoice.nodes.text_to_codes import TextToCodes

SETTINGS = {"seed": 3, "temperature": 0.65, "top_k": 30, "top_p": 1.0, "keep_partial": False}


@pytest.fixture(scope="module")
def model():
    return patcher_of("starter", "cpu", "auto")


def speak(model, text, **changed):
    return TextToCodes.execute(
        model, text, **{"max_seconds": 0.6, "retries": 0, **SETTINGS, **changed}
    ).args[0]


def test_defaults_of_the_options_are_the_engines():
    defaults = {put.id: put.default for put in TextOptions.GET_SCHEMA().inputs}
    assert TextOptions.execute(**defaults).args == (Reading(),)
    crossfaded = TextOptions.execute(**{**defaults, "joining": "crossfade"}).args[0]
    assert crossfaded == Reading(crossfade_s=0.05)


def test_options_reach_the_text(model):
    reading = Reading(normalise=False, limit_s=1.0, paragraph_s=0.25)
    codes = speak(model, "Good morning 2 you.\n\nYes.", reading=reading)
    assert codes.text == "Good morning\n2 you.\nYes."
    assert [each.gap_s for each in codes.utterances] == [0.0, 0.25, 0.0]


def test_report_as_text_json_and_subtitles(model):
    codes = speak(model, "One.\n\nTwo.")
    text, as_json, srt, seconds = Report.execute(codes).args
    assert text.splitlines()[0].startswith("1.70 s, 2 utterances, cap")
    assert [each["start_s"] for each in json.loads(as_json)["utterances"]] == [0.0, 1.1]
    assert "00:00:01,100 --> 00:00:01,700\nTwo." in srt
    audio = CodesToWaveform.execute(model, codes).args[0]
    assert audio["waveform"].shape[-1] == round(seconds * 24000)


def test_a_plan_needs_no_model():
    spoken, notes, seconds, as_json = PlanText.execute("Hi 2 **you**.\n\n[pause:3]Bye.").args
    assert spoken == "Hi two you.\nBye."
    assert notes == "not spoken, markdown: **\nnot spoken, pause: [pause:3]"
    assert seconds == pytest.approx(4.0, abs=0.3)
    assert [each["gap_s"] for each in json.loads(as_json)["utterances"]] == [3.0, 0.0]
    assert "nothing to speak" in PlanText.validate_inputs("...")


def test_reroll_leaves_the_others(model):
    codes = speak(model, "[pause:1]One.\n\nTwo.")
    again, report = Reroll.execute(model, codes, piece=2, take=3, retries=0).args
    assert [each.attempt for each in again.utterances] == [0, 0, 3]
    assert torch.equal(again.utterances[1].frames, codes.utterances[1].frames)
    assert "attempt 4" in report
    with pytest.raises(ValueError, match="no utterance 3, they are 1 … 2"):
        Reroll.execute(model, codes, piece=3, take=1, retries=0)


def test_silence_alone_needs_no_weights(model):
    codes = speak(model, "[pause:2]")
    audio = CodesToWaveform.execute(model, codes).args[0]
    assert audio["waveform"].shape[-1] == 48000
    assert not audio["waveform"].any()


def test_time_left_is_told_once_a_second_and_only_when_it_is_long():
    told = []
    now = iter(range(0, 100_000, 100))
    clock = progress.Clock(told.append, lambda: next(now) / 1000)  # ten frames a second
    for done in range(1, 31):
        clock.tick(done, 1000)
    assert told == ["1 %, about 1 min 39 s to go", "2 %, about 1 min 38 s to go"]
    told.clear()
    clock = progress.Clock(told.append, lambda: next(now) / 1000)
    for done in range(1, 31):
        clock.tick(done, 40)
    assert told == []
