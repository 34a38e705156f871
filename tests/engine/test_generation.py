"""Long texts: gaps, one voice, progress, re-rolls, cancels; with the starter on the CPU."""

import json
from pathlib import Path

import pytest
import torch
from livevoice.engine import Codes, Engine, SamplingParams, SpokenUtterance, join
from livevoice.engine.generation import Progress
from livevoice.engine.joining import Joiner
from livevoice.engine.report import report
from livevoice.engine.script import Reading

SAMPLING = SamplingParams(0.65, 30, 1.0, 7)
TEXT = "[pause:0.25]The kitchen door is open. [pause:1.5] Good morning.\n\nYes, please."


@pytest.fixture(scope="module")
def spoken(starter_engine: Engine):
    return starter_engine.generate(TEXT, SAMPLING)


def test_pauses_are_exact_and_survive_the_file(starter_engine: Engine, spoken, tmp_path):
    assert [each.gap_s for each in spoken.codes.utterances] == [0.25, 1.5, 0.5, 0.0]
    hop = starter_engine.checkpoint.codec_config.hop_samples
    place = 0
    for each in spoken.codes.utterances:
        place += hop * len(each.frames)
        n = round(each.gap_s * starter_engine.sample_rate)
        assert not spoken.waveform[place : place + n].any()
        place += n
    assert place == len(spoken.waveform)
    spoken.codes.save(tmp_path / "a.safetensors")
    loaded = Codes.load(tmp_path / "a.safetensors")
    assert torch.equal(starter_engine.decode(loaded), spoken.waveform)


def test_streamed_joined_and_decoded_are_the_same_bits(starter_engine: Engine, spoken):
    assert torch.equal(starter_engine.decode(spoken.codes), spoken.waveform)
    reading = Reading(limit_s=1.5, crossfade_s=0.08)
    text = "The kitchen door is open. Good morning. Yes, please."
    chunks = list(starter_engine.stream(text, SAMPLING, reading=reading))
    codes = starter_engine.codes(text, SAMPLING, reading=reading)
    assert [each.gap_s for each in codes.utterances] == [-0.08, -0.08, -0.08, 0.0]
    assert torch.equal(join(chunks), starter_engine.decode(codes))


def test_silence_alone_needs_no_weights():
    engine = Engine("starter", "cpu")
    speech = engine.generate("[pause:2]")
    assert not engine.is_loaded
    assert len(speech.waveform) == 2 * engine.sample_rate
    assert not speech.waveform.any()
    assert speech.codes.stop_reason == "eoc"


def test_the_first_utterance_is_the_voice_of_the_others(starter_engine: Engine, monkeypatch):
    voices = []
    build = starter_engine.prompts.build
    monkeypatch.setattr(
        starter_engine.prompts,
        "build",
        lambda text, voice=None: voices.append(voice) or build(text, voice),
    )
    text = "Oh.\n\nThe kitchen door is open and the lamp is on.\n\nYes, please.\n\nGood morning."
    codes = starter_engine.codes(text, SAMPLING)
    assert voices[:2] == [None, None]  # the first one is too short to be a voice
    for voice in voices[2:]:
        assert torch.equal(voice.codes, codes.utterances[1].frames)
        assert voice.transcript == "The kitchen door is open and the lamp is on."
    voices.clear()
    starter_engine.codes(text, SAMPLING, reading=Reading(same_voice=False))
    assert voices == [None] * 4


def test_reroll_changes_one_utterance_only(starter_engine: Engine, spoken):
    generation = starter_engine.reroll(spoken.codes, 2)
    n_new = len(list(generation.frames()))
    again = generation.codes
    assert n_new == len(again.utterances[2].frames)
    assert again.utterances[2].attempt == 1
    assert not torch.equal(again.utterances[2].frames[:5], spoken.codes.utterances[2].frames[:5])
    for index in (0, 1, 3):
        assert again.utterances[index] is spoken.codes.utterances[index]
    second = starter_engine.reroll(spoken.codes, 2)
    list(second.frames())
    assert torch.equal(second.codes.frames, again.frames)
    for index, take in ((0, 1), (9, 1), (1, 0), (1, 256)):
        with pytest.raises(
            ValueError, match=r"has no words; there are 2, 3, 4|take must be 1 … 255"
        ):
            starter_engine.reroll(spoken.codes, index, take)


def test_progress_grows_to_its_end_and_knows_the_whole_text(starter_engine: Engine):
    seen = []
    starter_engine.codes(TEXT, SAMPLING, on_frame=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert all(done <= total for done, total in seen)
    assert seen[0][1] == pytest.approx(len(seen), rel=0.6)
    assert seen[-1][1] == pytest.approx(len(seen), rel=0.3)


def test_progress_learns_the_pace():
    progress = Progress([100.0, 100.0, 0.0, 50.0])
    assert progress.at(0, 10) == (10, 250)
    assert progress.at(0, 140) == (140, 290)
    progress.finish(0, 200)
    assert progress.at(1, 20) == (220, 500)
    progress.finish(1, 200)
    assert progress.at(3, 100) == (500, 500)


def test_cancel_keeps_the_finished_part(starter_engine: Engine, spoken):
    generation = starter_engine.stream(TEXT, SAMPLING)
    chunks = []
    for chunk in generation:
        chunks.append(chunk)
        if chunk.utterance == 2:
            break
    generation.close()
    codes = generation.codes
    assert torch.equal(codes.utterances[1].frames, spoken.codes.utterances[1].frames)
    assert codes.utterances[2].stop_reason == "cancelled"
    heard = join(chunks)
    assert torch.equal(heard, spoken.waveform[: len(heard)])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_an_hour_is_decoded_in_flat_memory(starter_engine: Engine, monkeypatch):
    hop = starter_engine.checkpoint.codec_config.hop_samples

    def silence(codes: torch.Tensor, lead: int = 0, tail: int = 0) -> torch.Tensor:
        return torch.zeros((len(codes) - lead - tail) * hop)

    monkeypatch.setattr(starter_engine, "decode_window", silence)
    frames = torch.zeros(375, 8, dtype=torch.int64)
    utterance = SpokenUtterance("Fifteen seconds.", frames, "eoc", gap_s=0.1)
    codes = Codes((utterance,) * 240, SAMPLING, starter_engine.checkpoint.codec_id)
    n_samples, pages = 0, []
    for chunk in starter_engine.decode_chunks(codes):
        n_samples += len(chunk)
        pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
    assert n_samples == 240 * (375 * hop + 2400)
    assert 4096 * (max(pages) - pages[0]) < 20e6  # the sound is 345 MB


def test_joiner_joins_without_clicks():
    """A constant signal shows each ramp: its largest step is that of the ramp."""
    ones = torch.ones(2400)
    for gap_s, n_out in ((0.0, 4800), (0.1, 4800 + 2400), (-0.05, 4800 - 1200)):
        joiner, parts = Joiner(24000), []
        for is_last in (False, True):
            joiner.begin(0.0 if is_last else gap_s)
            parts += [joiner.push(part) for part in ones.split(700)]
            parts.append(joiner.end(is_last))
        sound = torch.cat(parts)
        assert len(sound) == n_out
        assert float(sound.diff().abs().max()) < 0.02
        assert torch.equal(sound[:1000], ones[:1000])
        assert torch.equal(sound[-1000:], ones[:1000])
        if gap_s < 0:
            assert torch.allclose(sound, torch.ones(n_out), atol=1e-6)


def test_joiner_takes_utterances_shorter_than_the_crossfade():
    joiner, n = Joiner(24000), 0
    for length, gap_s, is_last in ((960, -0.5, False), (480, -0.5, False), (0, 0.0, True)):
        joiner.begin(gap_s)
        n += len(joiner.push(torch.ones(length))) + len(joiner.end(is_last))
    assert n == 960


def test_a_void_attempt_leaves_no_trace():
    def run(attempts: list[float]) -> torch.Tensor:
        joiner, parts = Joiner(24000), []
        joiner.begin(-0.05)
        parts += [joiner.push(torch.ones(4800)), joiner.end(False)]
        for level in attempts:
            joiner.begin(0.0)
            kept = [joiner.push(torch.full((4800,), level))]
        return torch.cat([*parts, *kept, joiner.end(True)])

    assert torch.equal(run([0.3, 0.7]), run([0.7]))


def test_report_times_are_those_of_the_sound(spoken):
    found = report(spoken.codes)
    assert [each.number for each in found.utterances] == [1, 2, 3]
    assert found.seconds == pytest.approx(len(spoken.waveform) / 24000, abs=1e-3)
    first, second, _ = found.utterances
    assert first.start_s == 0.25
    assert second.start_s == pytest.approx(0.25 + first.seconds + 1.5)
    fields = json.loads(found.json())["utterances"][0]
    assert {"text", "seconds", "frames", "seed", "attempt", "stop_reason", "plausibility"} <= {
        *fields
    }
    lines = found.srt().splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("00:00:00,250 --> 00:00:0")
    assert lines[2] == "The kitchen door is open."
    assert found.text().splitlines()[0].endswith("3 utterances, eoc")
    assert "not spoken, pause: [pause:0.25] [pause:1.5]" in found.text()


def test_report_doubts_what_is_too_short_or_too_long():
    def one(n_frames: int, stop_reason: str = "eoc") -> str:
        text = "Good morning, the train leaves at seven."
        frames = torch.zeros(n_frames, 8, dtype=torch.int64)
        codes = Codes((SpokenUtterance(text, frames, stop_reason),), SAMPLING, "x")
        assert len(report(codes).text().splitlines()) == 2
        return report(codes).summary()

    assert one(65) == "2.60 s, 1 utterances, eoc"
    assert "shorter than expected" in one(20)
    assert "longer than expected" in one(150)
    assert "listen to 1" in one(65, "cap")
