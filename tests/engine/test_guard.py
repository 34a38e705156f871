import torch
from livevoice.engine.guard import HOLD_FRAMES, REPEAT_FRAMES, SILENCE_FRAMES, RunawayGuard

N = 8


def frame(code: int) -> tuple[int, ...]:
    return (code,) * N


def loud(codes: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(codes) * 10)


def silent(codes: torch.Tensor) -> torch.Tensor:
    return torch.full((len(codes) * 10,), 1e-4)


def test_ordinary_speech_passes_at_once():
    guard = RunawayGuard(loud)
    for t in range(300):
        assert guard.push(frame(t % 40)) == [frame(t % 40)]
    assert guard.verdict is None
    assert guard.flush() == []


def test_endless_repetition_is_cut_and_most_of_it_is_dropped():
    guard, out = RunawayGuard(loud), []
    for t in range(5):
        out += guard.push(frame(t))
    n_repeats = 0
    while not guard.verdict:
        out += guard.push(frame(99))
        n_repeats += 1
    assert guard.verdict == "repeat"
    assert n_repeats == REPEAT_FRAMES
    assert len(out) == 5 + HOLD_FRAMES


def test_a_short_repetition_leaves_whole_and_in_order():
    guard, sent, out = RunawayGuard(loud), [], []
    for code in [1, *[7] * (REPEAT_FRAMES - 1), 2, 3, *[8] * 20]:
        sent.append(code)
        out += guard.push(frame(code))
    out += guard.flush()
    assert [f[0] for f in out] == sent
    assert guard.verdict is None


def test_long_silence_is_noticed_and_the_same_codes_loud_are_not():
    for decode, verdict in ((silent, "silence"), (loud, None)):
        guard = RunawayGuard(decode)
        for t in range(2 * SILENCE_FRAMES):
            guard.push(frame(t % 3))
            if guard.verdict:
                break
        assert guard.verdict == verdict


def test_the_codec_is_not_asked_about_lively_codes():
    def refuse(_codes: torch.Tensor) -> torch.Tensor:
        raise AssertionError("asked")

    guard = RunawayGuard(refuse)
    for t in range(3 * SILENCE_FRAMES):
        guard.push(frame(t))
    assert guard.verdict is None
