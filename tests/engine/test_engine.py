import threading
from pathlib import Path

import pytest
import torch
from livevoice.engine import CheckpointError, Engine, SamplingParams, Voice, join
from livevoice.engine.reference import ReferenceBackend

TEXT = "Good morning, the train leaves at seven."
SAMPLING = SamplingParams(0.65, 30, 1.0, 7)


@pytest.fixture(scope="module")
def spoken(starter_engine: Engine):
    return starter_engine.generate(TEXT, SAMPLING)


def test_text_becomes_sound_that_ends_by_itself(spoken):
    (utterance,) = spoken.codes.utterances
    assert utterance.text == TEXT
    assert spoken.codes.stop_reason == "eoc"
    assert 1.5 < spoken.codes.seconds < 4.0
    assert len(spoken.waveform) == 960 * len(spoken.codes.frames)
    assert 0.02 < spoken.waveform.square().mean().sqrt() < 0.2


def test_streamed_and_collected_are_the_same_bits(starter_engine: Engine, spoken):
    chunks = list(starter_engine.stream(TEXT, SAMPLING))
    assert len(chunks) > 3
    assert torch.equal(join(chunks), spoken.waveform)
    codes = starter_engine.codes(TEXT, SAMPLING)
    assert torch.equal(codes.frames, spoken.codes.frames)
    assert torch.equal(starter_engine.decode(codes), spoken.waveform)


def test_seed_decides_and_nothing_else(starter_engine: Engine, spoken):
    torch.manual_seed(99)
    torch.rand(1000)
    before = torch.get_rng_state()
    starter_engine.codes("Something else first.", SamplingParams(1.0, 0, 1.0, 1))
    again = starter_engine.codes(TEXT, SAMPLING)
    assert torch.equal(again.frames, spoken.codes.frames)
    assert torch.equal(torch.get_rng_state(), before)
    other = starter_engine.codes(TEXT, SamplingParams(0.65, 30, 1.0, 8))
    assert not torch.equal(other.frames[:20], spoken.codes.frames[:20])


def test_unload_and_load_again_gives_the_same_codes(spoken):
    engine = Engine("starter", "cpu")
    assert not engine.is_loaded
    assert engine.resident_bytes == 0
    engine.load()
    assert engine.resident_bytes == engine.size_bytes
    for _ in range(2):
        assert torch.equal(engine.codes(TEXT, SAMPLING).frames, spoken.codes.frames)
        engine.unload()
        engine.unload()
        assert engine.resident_bytes == 0


def test_utterances_are_spoken_one_after_the_other(starter_engine: Engine):
    codes = starter_engine.codes("Yes.\n\nNo, thank you.", SAMPLING)
    assert [utterance.text for utterance in codes.utterances] == ["Yes.", "No, thank you."]
    assert len(starter_engine.decode(codes)) == 960 * len(codes.frames) + 12000  # blank line


def test_voice_changes_the_speech(starter_engine: Engine, spoken):
    voice = Voice(spoken.codes.frames, TEXT)
    assert not torch.equal(
        starter_engine.codes("And so it goes.", SAMPLING, voice=voice).frames[:10],
        starter_engine.codes("And so it goes.", SAMPLING).frames[:10],
    )


def test_what_on_frame_raises_ends_the_speech_and_keeps_what_was_made(
    starter_engine: Engine, spoken
):
    class StopError(BaseException):
        pass

    seen = []

    def on_frame(done: int, cap: int) -> None:
        seen.append((done, cap))
        if done == 20:
            raise StopError

    generation = starter_engine.stream(TEXT, SAMPLING, on_frame=on_frame)
    with pytest.raises(StopError):
        list(generation)
    assert [done for done, _ in seen] == list(range(1, 21))
    assert seen[0][1] > 60
    assert generation.codes.stop_reason == "cancelled"
    assert torch.equal(generation.codes.frames, spoken.codes.frames[:20])
    # The engine is free again.
    assert torch.equal(starter_engine.codes(TEXT, SAMPLING).frames, spoken.codes.frames)


def test_closing_cancels(starter_engine: Engine, spoken):
    generation = starter_engine.stream(TEXT, SAMPLING)
    chunks = iter(generation)
    first = next(chunks).waveform
    chunks.close()
    assert generation.codes.stop_reason == "cancelled"
    assert torch.equal(first, spoken.waveform[: len(first)])
    starter_engine.codes("Hi.", SAMPLING)


def test_one_generation_at_a_time(starter_engine: Engine):
    open_one = starter_engine.stream(TEXT, SAMPLING)
    frames = open_one.frames()
    next(frames)
    with pytest.raises(RuntimeError, match="another generation of this thread is still open"):
        starter_engine.codes("Hi.", SAMPLING)
    waiting = threading.Thread(target=starter_engine.codes, args=("Hi.", SAMPLING))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    open_one.close()
    waiting.join(60)
    assert not waiting.is_alive()
    with pytest.raises(RuntimeError, match="already started"):
        open_one.frames()


def test_unload_from_another_thread_ends_the_generation():
    engine = Engine("starter", "cpu")
    generation = engine.stream(TEXT * 3, SAMPLING)
    chunks = iter(generation)
    next(chunks)
    thread = threading.Thread(target=engine.unload)
    thread.start()
    thread.join(30)
    assert engine.resident_bytes == 0
    list(chunks)  # ends without an error
    assert generation.codes.stop_reason == "cancelled"
    assert len(generation.codes.frames) >= 7  # what the first chunk needs


def test_decoding_loads_and_says_when_it_was_unloaded(spoken):
    engine = Engine("starter", "cpu")
    assert torch.equal(engine.decode(spoken.codes), spoken.waveform)
    chunks = engine.decode_chunks(spoken.codes)
    next(chunks)
    engine.unload()
    with pytest.raises(RuntimeError, match="unloaded while it decoded"):
        list(chunks)


def test_failed_load_leaves_nothing_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch):
    engine = Engine("starter", "cpu")

    def fail(*_args: object) -> None:
        raise torch.cuda.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("livevoice.engine.codec.CodecDecoder.__init__", fail)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            engine.load()
    assert engine.resident_bytes == 0
    assert not engine.is_loaded
    engine.load()
    assert engine.is_loaded


class _Runaway:
    """Makes a backend that never ends in its first attempts, by taking EOC away from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_bad: int) -> None:
        self.n_calls = 0
        honest = ReferenceBackend.logits
        monkeypatch.setattr(ReferenceBackend, "prefill", self._counted(ReferenceBackend.prefill))

        def logits(backend: ReferenceBackend) -> torch.Tensor:
            values = honest(backend).clone()  # of inference mode: not to be changed in place
            if self.n_calls <= n_bad:
                values[0, backend.config.eoc] = -torch.inf
            return values

        monkeypatch.setattr(ReferenceBackend, "logits", logits)

    def _counted(self, prefill):
        def counted(backend: ReferenceBackend, prompt: object) -> None:
            self.n_calls += 1
            prefill(backend, prompt)

        return counted


def test_speech_without_an_end_is_cut(starter_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    _Runaway(monkeypatch, n_bad=100)
    codes = starter_engine.codes("Yes, please.", SAMPLING)
    assert codes.stop_reason in ("cap", "silence", "repeat")
    assert codes.seconds <= 5.0
    short = starter_engine.codes("Yes, please.", SAMPLING, max_seconds=0.8)
    assert short.stop_reason == "cap"
    assert len(short.frames) == 20


def test_retry_uses_a_sub_seed_and_is_reported(
    starter_engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    runaway = _Runaway(monkeypatch, n_bad=1)
    speech = starter_engine.generate("Yes, please.", SAMPLING, retries=2)
    (utterance,) = speech.codes.utterances
    assert runaway.n_calls == 2
    assert (utterance.stop_reason, utterance.attempt) == ("eoc", 1)
    assert len(speech.waveform) == 960 * len(utterance.frames)
    assert torch.equal(speech.waveform, starter_engine.decode(speech.codes))


def test_retries_are_bounded(starter_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    runaway = _Runaway(monkeypatch, n_bad=100)
    codes = starter_engine.codes("Yes.", SAMPLING, retries=2, max_seconds=0.5)
    assert runaway.n_calls == 3
    assert (codes.stop_reason, codes.utterances[0].attempt) == ("cap", 2)


def test_wrong_input_is_refused_before_any_work(starter_engine: Engine):
    for arguments, message in [
        (("",), "nothing to speak"),
        (("...",), "nothing to speak"),
    ]:
        with pytest.raises(ValueError, match=message):
            starter_engine.stream(*arguments)
    with pytest.raises(ValueError, match="retries must be"):
        starter_engine.stream("hi", retries=-1)
    with pytest.raises(ValueError, match="max_seconds must be"):
        starter_engine.stream("hi", max_seconds=0)
    with pytest.raises(CheckpointError, match="no folder 'nothing'"):
        Engine("nothing")


def test_codes_of_another_codec_are_refused(starter_engine: Engine, tiny: Path):
    codes = Engine(tiny, "cpu").codes("hi", SamplingParams(1.0, 0, 1.0, 0), max_seconds=0.4)
    with pytest.raises(ValueError, match="load the checkpoint that made them"):
        starter_engine.decode(codes)


def test_two_engines_at_once(starter_engine: Engine, tiny: Path, spoken):
    other = Engine(tiny, "cpu")
    mine, theirs = starter_engine.stream(TEXT, SAMPLING).frames(), other.stream("hello").frames()
    frames = []
    for frame in mine:
        frames.append(frame.codes)
        next(theirs, None)
    assert torch.equal(torch.stack(frames), spoken.codes.frames)
