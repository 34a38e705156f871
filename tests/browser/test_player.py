"""The player alone in a real Chromium, without ComfyUI: whatever happens, each sample once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from .page import SAMPLE_RATE, TAP, Heard, Pause, recorded

pytestmark = pytest.mark.browser

SPEAK = """async ([chunks, speed]) => {
    const { PcmPlayer } = await import("/pcm_player.mjs");
    const player = (window.player ??= new PcmPlayer());
    forget();
    const noise = () => 0.05 + 0.9 * Math.random(); // never zero, never twice the same
    const clip = [];
    const beganMs = performance.now();
    const sleepUntil = (ms) =>
        new Promise((done) => setTimeout(done, beganMs + ms - performance.now()));
    player.reset(24000);
    player.playLive();
    for (const [atMs, n] of chunks) {
        await sleepUntil(atMs);
        const chunk = Float32Array.from({ length: n }, noise);
        clip.push(...chunk);
        player.append(chunk, { sentS: atMs / 1000, speed });
    }
    player.finish();
    while (player.state !== "stopped") await sleepUntil(performance.now() - beganMs + 20);
    return clip;
}"""
HOLD_UP = """(longestMs) => {
    for (const name of ["createBuffer", "createBufferSource"]) {
        const original = BaseAudioContext.prototype[name];
        BaseAudioContext.prototype[name] = function (...args) {
            const untilMs = performance.now() + longestMs * Math.random() ** 4;
            while (performance.now() < untilMs);
            return original.apply(this, args);
        };
    }
}"""


@pytest.fixture
def page(browser, serve_modules):
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(TAP)
    serve_modules(page, "http://localhost")
    page.evaluate("() => prepareTaps('/stage.mjs')")
    page.keyboard.press("Shift")
    page.evaluate("() => context.resume()")
    yield page
    context.close()


def speak(page, chunks: list[tuple[float, int]], speed: float) -> list[Pause]:
    """Play chunks of ``(arrival in ms, samples)``; the pauses, none of which the player made."""
    clip = np.array(page.evaluate(SPEAK, [chunks, speed]), np.float32)
    arrivals = page.evaluate("() => arrivals")
    pauses = recorded(page, "sources").pauses(clip)
    for pause in pauses:
        assert pause.is_due(arrivals), f"{pause} with {arrivals}"
    if not pauses:
        assert not recorded(page, "output").pauses(clip), "fades are silent where nothing is cut"
    return pauses


def paced(n_chunks: int, samples: int, speed: float) -> list[tuple[float, int]]:
    return [(1000 * k * samples / SAMPLE_RATE / speed, samples) for k in range(n_chunks)]


def test_growing_chunks_of_a_fast_machine(page):
    schedule = [(70, 3840), (110, 7680), (190, 15360), (295, 24000), (295, 5760)]
    for _ in range(3):
        speak(page, schedule, speed=8)


def test_chunks_smaller_than_a_source_may_be(page):
    speak(page, paced(200, 200, speed=3), speed=3)


def test_sound_that_ends_where_the_next_begins_to_come(page):
    """Each chunk arrives about when the one before has been played: in time, or just too late."""
    for _ in range(2):
        speak(page, paced(30, 1200, speed=1.0), speed=10)


@pytest.mark.parametrize("seed", range(3))
def test_any_chunks_at_any_time_in_a_page_that_is_held_up(page, seed):
    draw = random.Random(seed)
    page.evaluate(HOLD_UP, 120)
    at_ms, chunks = 0.0, []
    for _ in range(20):
        n_samples = draw.choice([50, 375, 960, 2000, 3840, 9600])
        at_ms += 1000 * n_samples / SAMPLE_RATE * draw.uniform(0.2, 1.4)
        chunks.append((at_ms, n_samples))
    speak(page, chunks, speed=4)


def test_a_long_clip_from_the_beginning_in_a_page_that_is_held_up(page):
    """Several sources at once: the first must not sound while the others are being made."""
    page.evaluate(HOLD_UP, 60)
    for _ in range(4):
        assert speak(page, [(0, 3 * SAMPLE_RATE)], speed=8) == []


def test_the_ear_of_the_tests_notices_what_is_wrong():
    clip = np.arange(1, 1001, dtype=np.float32)

    def hear(*pieces: np.ndarray) -> list[Pause]:
        return Heard([(5000, np.concatenate(pieces))]).pauses(clip)

    silence = np.zeros(100, np.float32)
    assert hear(silence, clip, silence) == []
    assert hear(clip[:300], silence, clip[300:]) == [Pause(300, 5300, 100 / SAMPLE_RATE)]
    for wrong in (
        [clip[:300], clip[301:]],
        [clip[:300], clip[290:]],
        [clip[:300], silence, clip[290:]],
        [clip[:300], clip[300:] + 1],
        [clip, clip[990:]],
        [clip, silence, clip[:10]],
        [clip[:990]],
    ):
        with pytest.raises(AssertionError):
            hear(*wrong)
    with pytest.raises(AssertionError, match="two pieces"):
        Heard([(0, clip), (128, clip)])
