"""Streamed against whole, the ends of a clip, and what the codec reads, holds and refuses."""

from __future__ import annotations

import gc
import itertools
import math
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from livevoice.engine.checkpoint import codec_decoder_shapes
from livevoice.engine.codec import (
    CONTEXT_FRAMES,
    CodecDecoder,
    CodecEncoder,
    decode_stream,
    decoder_bytes,
)
from tiny_codec import (
    MemoryCheckpoint,
    noise,
    piano,
    random_codec,
    random_codes,
    starter_codec,
    tiny_config,
)


@pytest.fixture(scope="module")
def tiny():
    return random_codec()


@pytest.fixture(scope="module")
def starter():
    return starter_codec()


@pytest.fixture(scope="module")
def decoder(tiny):
    return CodecDecoder(tiny[0])


@pytest.mark.parametrize("lead", [0, 1, 5, 10])
@pytest.mark.parametrize("tail", [0, 2, 10])
def test_context_is_only_cut_where_nothing_sees_it(decoder, lead, tail):
    codes = random_codes(lead + 3 + tail, decoder.config)
    whole = decoder.decode_window(codes)[lead * 960 : (lead + 3) * 960]
    part = decoder.decode_window(codes, lead, tail)
    assert part.shape == (3 * 960,)
    assert (part - whole).abs().max() < 1e-5


@pytest.mark.parametrize("schedule", [1, 2, 3, 7, 25, 1000, ((4, 10), (8, 10))])
def test_streamed_equals_one_shot(decoder, schedule):
    for n_frames in range(1, 31):
        codes = random_codes(n_frames, decoder.config, seed=n_frames)
        padded = torch.cat([codes, codes[-1:].expand(CONTEXT_FRAMES, -1)])
        one_shot = decoder.decode_window(padded, 0, CONTEXT_FRAMES)
        chunks = list(decoder.decode_stream(iter(codes), schedule))
        assert all(len(chunk) % 960 == 0 and len(chunk) for chunk in chunks)
        streamed = torch.cat(chunks)
        assert streamed.shape == (960 * n_frames,)
        assert (streamed - one_shot).abs().max() < 1e-5


def test_the_starter_s_sound_does_not_depend_on_the_chunks(starter):
    decoder, codes = CodecDecoder(starter[0]), piano()
    one_shot = torch.cat(list(decoder.decode_stream(codes, len(codes))))
    for chunk_frames in (1, 7, 25):
        streamed = torch.cat(list(decoder.decode_stream(codes, chunk_frames)))
        assert (streamed - one_shot).abs().max() < 1e-6


def db(waveform: torch.Tensor) -> float:
    return 20 * math.log10(float(waveform.abs().max()) + 1e-12)


def test_the_first_chunks_are_nearly_exact_and_the_rest_is(starter):
    """Of the default schedule, wherever in speech a clip begins."""
    decoder, speech = CodecDecoder(starter[0]), piano()
    at_begin = []
    for begin in range(0, len(speech) - 20, 2):
        codes = speech[begin:]
        exact = torch.cat(list(decoder.decode_stream(codes, len(codes))))
        first, second, rest = (decoder.decode(codes) - exact).split([960, 1920, len(exact) - 2880])
        assert db(first) < -55
        assert db(second) < -85
        assert rest.abs().max() < 1e-6
        at_begin.append(db(first))
    assert at_begin[0] < -115


def test_decode_is_bit_identical_to_the_default_stream(decoder):
    codes = random_codes(90, decoder.config)
    sizes = [len(chunk) // 960 for chunk in decoder.decode_stream(codes)]
    assert sizes == [1, 2, 4, 8, 16, 25, 34]
    assert [len(chunk) // 960 for chunk in decoder.decode_stream(codes[:12])] == [1, 2, 9]
    streamed = torch.cat(list(decoder.decode_stream(iter(codes))))
    assert torch.equal(decoder.decode(codes), streamed)
    assert torch.equal(decoder.decode(codes), streamed)
    assert decoder.decode(codes[:0]).shape == (0,)


def test_the_end_does_not_turn_to_hiss(starter):
    """Cut in the middle of speech, the last 300 ms sound as they would if the speech went on."""
    decoder, codes = CodecDecoder(starter[0]), piano()
    whole = decoder.decode(codes)
    for n_frames in (15, 22, 30):
        end = slice(n_frames * 960 - 7200, n_frames * 960)
        cut = decoder.decode(codes[:n_frames])
        spectra = (torch.fft.rfft(sound[end]).abs().square() for sound in (cut, whole))
        hiss, treble = (spectrum[7200 * 8000 // 24000 :].sum() for spectrum in spectra)
        assert hiss < 2 * treble  # 3 dB above 8 kHz


def test_streaming_holds_one_window_and_waits_for_no_more(tiny):
    config = tiny[0].codec_config
    windows, taken = [], itertools.count()
    codes = random_codes(200, config)

    def decode_window(window, lead, tail):
        windows.append((len(window), lead, tail))
        return torch.zeros(960 * (len(window) - lead - tail))

    def frames():
        for frame in codes:
            next(taken)
            yield frame

    stream = decode_stream(decode_window, frames(), config, ((4, 6), (8, 10)))
    next(stream)
    assert next(taken) == 4 + 6
    assert sum(len(chunk) for chunk in stream) == 196 * 960
    assert max(n for n, _, _ in windows[:-1]) == CONTEXT_FRAMES + 8 + CONTEXT_FRAMES
    assert windows[-1][0] < CONTEXT_FRAMES + (8 + 10) + CONTEXT_FRAMES
    assert [tail for _, _, tail in windows[:2]] == [6, CONTEXT_FRAMES]
    assert [lead for _, lead, _ in windows[:3]] == [0, 4, CONTEXT_FRAMES]


def test_a_closed_stream_frees_its_source_and_its_codec(tiny):
    decoder = CodecDecoder(tiny[0])
    closed = []

    def frames():
        try:
            yield from random_codes(100, decoder.config)
        finally:
            closed.append(True)

    stream = decoder.decode_stream(frames())
    next(stream)
    network = weakref.ref(decoder._network)
    stream.close()
    assert closed == [True]
    decoder.unload()
    gc.collect()
    assert network() is None


# --- what it reads and holds ---


def test_only_tensors_for_decoding_are_read(tiny):
    checkpoint = MemoryCheckpoint(tiny_config(), tiny[1].state_dict())
    CodecDecoder(checkpoint)
    assert checkpoint.read == set(codec_decoder_shapes(checkpoint.codec_config))


def test_bytes_before_and_after_unload(tiny, starter):
    for checkpoint in (tiny[0], starter[0]):
        decoder = CodecDecoder(checkpoint)
        assert decoder.resident_bytes == decoder_bytes(checkpoint.codec_config) > 0
        decoder.unload()
        decoder.unload()
        assert decoder.resident_bytes == 0
        with pytest.raises(RuntimeError, match="after unload"):
            decoder.decode_window(random_codes(2, checkpoint.codec_config))
    encoder = CodecEncoder(tiny[0])
    assert encoder.resident_bytes > 0
    encoder.unload()
    assert encoder.resident_bytes == 0
    with pytest.raises(RuntimeError, match="after unload"):
        encoder.encode(noise(24000), 24000)


def test_waveforms_are_ordinary_tensors_also_of_a_codec_loaded_in_inference_mode(tiny, decoder):
    codes = random_codes(3, decoder.config)
    with torch.inference_mode():  # as ComfyUI runs nodes
        loaded_inside = CodecDecoder(tiny[0])
        inside = loaded_inside.decode_window(codes)
    outside = loaded_inside.decode_window(codes)
    assert torch.equal(inside, decoder.decode_window(codes))
    assert torch.equal(inside, outside)
    assert not outside.requires_grad
    assert not outside.is_inference()
    outside.mul_(0.5)


@pytest.mark.cuda
def test_cuda_decodes_and_encodes_as_the_cpu_does(starter):
    on_cpu, on_gpu = CodecDecoder(starter[0]), CodecDecoder(starter[0], "cuda")
    waveform = on_gpu.decode(piano())
    assert waveform.device.type == "cpu"
    assert torch.equal(waveform, on_gpu.decode(piano()))
    # TF32, torch's default for convolutions, would be off by 1e-4.
    assert (waveform - on_cpu.decode(piano())).abs().max() < 5e-6
    codes = CodecEncoder(starter[0], "cuda").encode(waveform, 24000)
    assert torch.equal(codes, CodecEncoder(starter[0]).encode(waveform, 24000))


def test_decoding_needs_neither_transformers_nor_torchaudio():
    script = """
        import sys
        sys.modules["transformers"] = sys.modules["torchaudio"] = None  # can't be imported
        import torch
        from livevoice.engine.checkpoint import Checkpoint
        from livevoice.engine.codec import CodecDecoder, CodecEncoder
        checkpoint = Checkpoint.open("starter")
        assert CodecDecoder(checkpoint).decode(torch.zeros(2, 8, dtype=torch.long)).shape == (1920,)
        try:
            CodecEncoder(checkpoint)
        except RuntimeError as error:
            assert "pip install -U transformers" in str(error)
        else:
            raise AssertionError("encoding went on without transformers")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


# --- refusals ---


@pytest.mark.parametrize("code", [32, 1025, -1])
def test_codes_out_of_range_name_frame_and_codebook(decoder, code):
    codes = random_codes(40, decoder.config)
    codes[33, 2] = code
    message = f"frame 33, codebook 2: code {code} is outside 0 … 31"
    with pytest.raises(ValueError, match=message):
        decoder.decode_window(codes)
    with pytest.raises(ValueError, match=message):
        decoder.decode(codes)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(3, 8, dtype=torch.long), "must be .frames, 4., got shape .3, 8."),
        (torch.zeros(4, dtype=torch.long), "must be .frames, 4."),
        (torch.zeros(3, 4), "must be integers, got torch.float32"),
        (torch.zeros(0, 4, dtype=torch.long), "a window of 0 frames"),
    ],
)
def test_wrong_codes(decoder, codes, message):
    with pytest.raises(ValueError, match=message):
        decoder.decode_window(codes)


def test_windows_and_chunks_need_a_frame(decoder):
    codes = random_codes(5, decoder.config)
    for lead, tail in ((3, 2), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="has none to decode"):
            decoder.decode_window(codes, lead, tail)
    for schedule in (0, -1, (), ((4, 10), (0, 10)), ((4, 11),), ((4, -1),)):
        with pytest.raises(ValueError, match="1 frame or more"):
            decoder.decode_stream(codes, schedule)


@pytest.mark.parametrize("waveform", [torch.zeros(0), torch.zeros(2, 9), torch.tensor([torch.nan])])
def test_encode_refuses_what_is_not_mono_sound(tiny, waveform):
    with pytest.raises(ValueError, match="audio: waveform"):
        CodecEncoder(tiny[0]).encode(waveform, 24000)


def test_weights_of_another_codec_are_refused(tiny):
    state = dict(tiny[1].state_dict())
    state["acoustic_decoder.conv1.weight"] = torch.zeros(64, 16, 5)
    state["fc.weight"] = torch.zeros(1, 1)
    checkpoint = MemoryCheckpoint(tiny_config(), state)
    with pytest.raises(ValueError, match=r"conv1.weight has shape .64, 16, 5., .* .64, 16, 7."):
        CodecDecoder(checkpoint)
    with pytest.raises(ValueError, match=r"fc.weight has shape .1, 1."):
        CodecEncoder(checkpoint)


def test_strides_that_need_more_context_are_refused():
    raw = tiny_config()
    raw["acoustic_model_config"]["upsampling_ratios"] = [2, 2]
    config = MemoryCheckpoint(raw, {})
    with pytest.raises(ValueError, match=r"strides \[2, 2\] need 34 frames of context"):
        CodecDecoder(config)
