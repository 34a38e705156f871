"""The Python half of the native backend, over a stand-in for the extension: runs without a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from livevoice.engine import Engine, backend, native
from livevoice.engine.checkpoint import TEXT_EMBEDDING, Checkpoint, backbone_shapes
from livevoice.engine.prompt import AUDIO_SLOT, Prompt
from livevoice.engine.sampling import SamplingParams

N, V = 8, 1026


class FakeEngine:
    """Notes what it is given; speaks twelve rows of code 5, then EOC in codebook 0."""

    def __init__(
        self, *, sizes: dict, precision: str, device: int, overlap: bool, step: str
    ) -> None:
        self.step_reason = lambda: step
        self.sizes, self.precision, self.device, self.overlap = sizes, precision, device, overlap
        self.loaded: list[tuple[str, int]] = []
        self.prefilled: list[tuple[int, int]] = []
        self.resident_bytes, self.arena_bytes, self.is_finished = 1000, [("weights", 1000)], False
        self.row = 0

    def load_file(self, name, layer, path, offset, rows, columns):
        assert offset + 2 * rows * columns <= Path(path).stat().st_size
        self.loaded.append((name, layer))

    def load_values(self, name, layer, values):
        assert values.dtype == torch.float32
        assert values.is_contiguous()
        self.loaded.append((name, layer))

    def finish_loading(self):
        self.is_finished = True

    def prefill(self, text, codes, first):
        assert text.shape == (len(codes), self.sizes["hidden"])
        assert text.dtype == torch.bfloat16
        self.prefilled.append((len(codes), first))

    def start(self, *sampling_and_max_rows):
        self.row = 0
        self.max_rows = sampling_and_max_rows[-1]

    def next_row(self):
        self.row += 1
        if self.row > self.max_rows:
            return None
        return [V - 1 if self.row > 12 else 5, *[5] * (N - 1)]

    def unload(self):
        self.resident_bytes = 0


class FakeCodec:
    def __init__(self, *, sizes: dict, device: int) -> None:
        self.sizes, self.device, self.resident_bytes, self.names = sizes, device, 10, []

    def load_values(self, name, values):
        self.names.append(name)
        assert values.dtype == torch.float32
        assert values.dim() == 1

    def decode(self, codes, waveform):
        assert codes.dtype == torch.int32
        hop = len(waveform) // len(codes)
        waveform.copy_(torch.arange(len(codes)).repeat_interleave(hop))

    def unload(self):
        self.resident_bytes = 0


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch):
    fake = SimpleNamespace(
        Engine=FakeEngine,
        Codec=FakeCodec,
        codec_values=lambda _: ["tables", "first.weight", "snake"],
    )
    monkeypatch.setattr(native, "_extension", lambda: fake)
    choice = backend.Choice("native", torch.device("cpu"), "bf16", "a test")
    monkeypatch.setattr(backend, "choose", lambda *_: choice)
    return fake


@pytest.fixture
def made(extension):  # noqa: ARG001
    return native.NativeBackend(Checkpoint.open("starter"), torch.device("cpu"), "bf16", 512)


@pytest.mark.usefixtures("extension")
def test_the_engine_speaks_through_it():
    engine = Engine("starter")
    progress = []
    engine.load(lambda done, total: progress.append((done, total)))
    assert progress[-1][0] == progress[-1][1]
    speech = engine.generate("hello", SamplingParams(), max_seconds=4)
    assert speech.codes.stop_reason == "eoc"
    assert len(speech.codes.frames) == 12
    assert len(speech.waveform) == 12 * engine.checkpoint.codec_config.hop_samples
    engine.unload()
    assert engine.resident_bytes == 0


def test_every_tensor_is_loaded_once(made):
    config = made.config
    tensors = backbone_shapes(config).keys() - {TEXT_EMBEDDING}
    loaded = made._engine.loaded
    assert len(loaded) == len(set(loaded)) == len(tensors) + 1  # and the rotation table
    assert made._engine.is_finished


@pytest.mark.usefixtures("extension")
def test_a_failure_while_loading_unloads(monkeypatch: pytest.MonkeyPatch):
    kept = []

    def fail(self):
        kept.append(self)
        raise MemoryError("out of GPU memory")

    monkeypatch.setattr(FakeEngine, "finish_loading", fail)
    with pytest.raises(MemoryError):
        native.NativeBackend(Checkpoint.open("starter"), torch.device("cpu"), "bf16", 512)
    assert kept[0].resident_bytes == 0


def test_a_voice_is_read_once(made):
    def prompt(ids: list[int], rows: list[int]) -> Prompt:
        rows = torch.tensor([[row] * N for row in rows]).reshape(-1, N)
        return Prompt(torch.tensor(ids), rows, 4 if len(rows) else 0)

    made.prefill(prompt([1, 2, AUDIO_SLOT, AUDIO_SLOT, 3], [7, 8]))
    made.prefill(prompt([1, 2, AUDIO_SLOT, AUDIO_SLOT, 4, 5], [7, 8]))
    assert made._engine.prefilled == [(4, 0), (1, 4), (2, 4)]
    made.prefill(prompt([1, 2, AUDIO_SLOT, AUDIO_SLOT, 4, 5], [7, 9]))
    made.prefill(prompt([1, 2, AUDIO_SLOT, AUDIO_SLOT, 4, 5], [7, 9]))
    assert made._engine.prefilled[3:] == [(4, 0), (2, 4), (2, 4)]
    made.prefill(prompt([1, 2, 3], []))
    made.prefill(prompt([1, 2, AUDIO_SLOT, AUDIO_SLOT, 4], [7, 9]))
    assert made._engine.prefilled[6:] == [(3, 0), (4, 0), (1, 4)]


def test_a_voice_that_was_not_read_to_its_end_is_read_again(made, monkeypatch: pytest.MonkeyPatch):
    prompt = Prompt(torch.tensor([1, AUDIO_SLOT, 3]), torch.full((1, N), 7), 2)
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "prefill", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            made.prefill(prompt)
    made.prefill(prompt)
    assert made._engine.prefilled == [(2, 0), (1, 2)]


def test_windows_of_the_codec_keep_their_context(made):
    codec = native.NativeCodec(Checkpoint.open("starter"), made)
    hop = codec.config.hop_samples
    for T, lead, tail in [(5, 0, 0), (30, 10, 10), (400, 3, 7)]:
        waveform = codec.decode_window(torch.zeros(T, N, dtype=torch.int64), lead, tail)
        assert len(waveform) == (T - lead - tail) * hop
    with pytest.raises(ValueError, match="none to decode"):
        codec.decode_window(torch.zeros(4, N, dtype=torch.int64), 2, 2)


def test_bytes_of_a_frame_are_the_weights_and_the_cache(made):
    config = made.config
    matrices = sum(
        shape[0] * shape[1]
        for name, shape in backbone_shapes(config).items()
        if len(shape) == 2 and name != TEXT_EMBEDDING
    )
    kv = 4 * config.n_layers * config.n_kv_heads * config.head_dim
    assert made.frame_bytes(100) == 2 * matrices + 100 * kv


def test_models_that_the_kernels_do_not_take_are_left_to_the_reference(extension, tiny: Path):
    def engine_bytes(sizes: dict, _precision: str) -> int:
        if sizes["hidden"] % 64:
            raise ValueError(f"hidden size {sizes['hidden']} must be a multiple")
        return 1

    extension.engine_bytes = engine_bytes
    extension.check_device = lambda _index: None
    gpu, starter = torch.device("cuda", 0), Checkpoint.open("starter").config
    assert backend.native_obstacle(gpu, starter) is None
    narrow = dataclasses.replace(starter, hidden=48)
    assert "hidden size 48" in backend.native_obstacle(gpu, narrow)
    assert "heads of 16 values" in backend.native_obstacle(gpu, Checkpoint.open(tiny).config)
    extension.check_device = lambda _index: (_ for _ in ()).throw(RuntimeError("no driver"))
    assert backend.native_obstacle(gpu, starter) == "no driver"
