import pytest
import torch
from checkpoints import tiny_config
from livevoice.engine.config import ModelConfig
from livevoice.engine.delay import EndOfSpeech, Undelay, delay, force_boc, undelay

CONFIG = ModelConfig.from_json(tiny_config())
N, BOC, EOC = CONFIG.n_codebooks, CONFIG.boc, CONFIG.eoc


def random_codes(n_frames: int) -> torch.Tensor:
    return torch.randint(0, 1024, (n_frames, N), generator=torch.Generator().manual_seed(n_frames))


def test_layout_by_definition():
    codes = random_codes(5)
    rows = delay(codes, CONFIG)
    assert rows.shape == (5 + N - 1, N)
    for j in range(len(rows)):
        for n in range(N):
            if j < n:
                assert rows[j, n] == BOC
            elif j >= n + 5:
                assert rows[j, n] == EOC
            else:
                assert rows[j, n] == codes[j - n, n]


@pytest.mark.parametrize("n_frames", [1, 2, 7, 8, 9, 40])
def test_undelay_reverts_delay_at_once_and_streamed(n_frames: int):
    codes = random_codes(n_frames)
    rows = delay(codes, CONFIG)
    assert torch.equal(undelay(rows), codes)
    stream = Undelay(CONFIG)
    frames = [frame for row in rows.tolist() if (frame := stream.push(row)) is not None]
    assert frames == [tuple(frame) for frame in codes.tolist()]


def test_undelay_needs_one_frame():
    with pytest.raises(ValueError, match="one frame needs 8 rows, got 7"):
        undelay(torch.zeros(7, N, dtype=torch.int64))


def test_special_ids_never_leave_as_codes():
    stream, rows = Undelay(CONFIG), torch.full((N, N), EOC)
    rows[0, 0] = 7
    frames = [stream.push(row) for row in rows.tolist()]
    assert frames[:-1] == [None] * (N - 1)
    assert frames[-1] == (7, *[0] * (N - 1))


def test_ramp_in():
    for j in range(12):
        row = force_boc(torch.arange(N), j, BOC)
        assert row.tolist() == [n if n <= j else BOC for n in range(N)]


def test_end_of_speech_keeps_the_row_of_the_last_codebook():
    # EOC of codebook 0 in row r ends the speech with row r + 6: r frames.
    for r in (N, 20):
        end, n_rows = EndOfSpeech(CONFIG), 0
        for j in range(100):
            n_rows += 1
            row = torch.zeros(N, dtype=torch.int64)
            row[0] = EOC if j >= r else 5
            if end.push(row):
                break
        assert n_rows == r + N - 1
        assert n_rows - (N - 1) == r


def test_eoc_is_ignored_in_the_ramp_in_and_on_other_codebooks():
    end = EndOfSpeech(CONFIG)
    for _ in range(N):
        assert not end.push(torch.full((N,), EOC))
    for _ in range(30):
        row = torch.full((N,), EOC)
        row[0] = 3
        assert not end.push(row)
    assert not end.is_ending
