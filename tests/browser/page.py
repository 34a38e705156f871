"""ComfyUI in a real Chromium: opening it, running a workflow, hearing what reaches the speakers.

Owns what every browser test needs of a page. What listens inside it is tap.js.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A name that is not localhost makes an insecure page, as a LAN address over http does.
    "--host-resolver-rules=MAP insecure.test 127.0.0.1",
]
SAMPLE_RATE = 24000

LEAD_FRAMES, GRAIN_FRAMES = 480, 375  # of the player, which starts sources on grains
TAP = (Path(__file__).parent / "tap.js").read_text("utf-8")


class ComfyPage:
    """One tab."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.trouble: list[str] = []
        page.add_init_script(TAP)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("console", lambda message: self._hear(message))

    def open(self, *, again: bool = False) -> ComfyPage:
        """Load ComfyUI, or reload it, and wait until this pack's nodes are there."""
        self.page.reload() if again else self.page.goto(self.url)
        self.wait_until(
            "() => !!(window.app && window.app.extensionManager && window.LiteGraph"
            ".registered_node_types['LiveVoiceStreamingPreview'])"
        )
        stage = self.page.evaluate(
            "() => performance.getEntriesByType('resource').map((it) => it.name)"
            ".find((name) => name.endsWith('/stage.mjs'))"
        )
        self.page.evaluate("(stage) => prepareTaps(stage)", stage)
        return self

    def load(self, workflow: Json) -> None:
        """Open a UI workflow."""
        self.page.evaluate("(workflow) => app.loadGraphData(workflow)", workflow)
        self.page.evaluate("() => app.extensionManager.command.execute('Comfy.Canvas.FitView')")

    def run(self) -> None:
        """Queue what is open, as the Run button does, after a gesture of the person."""
        self.gesture()
        self.page.evaluate("() => app.queuePrompt(0, 1)")

    def gesture(self) -> None:
        """Press a key that does nothing: the browser lets sound out from now on."""
        self.page.keyboard.press("Shift")

    def player(self, index: int = 0) -> Any:
        """The player on the page with that number."""
        return self.page.locator(".livevoice-player").nth(index)

    def state(self, index: int = 0) -> str:
        """The player's state, as its element says."""
        return self.player(index).get_attribute("data-state")

    def status(self, index: int = 0) -> str:
        """The player's line of words."""
        return self.player(index).locator("[data-part=status]").inner_text()

    def wait_for_state(self, *states: str, index: int = 0, timeout_s: float = 30.0) -> None:
        """Wait until the player is in one of these states."""
        wait(lambda: self.state(index) in states, timeout_s, lambda: self.describe(index))

    def wait_for_end(self, index: int = 0, timeout_s: float = 60.0) -> None:
        """Wait until the speech has been spoken and heard."""
        wait(
            lambda: self.state(index) == "stopped" and "poken" in self.status(index),
            timeout_s,
            lambda: self.describe(index),
        )

    def describe(self, index: int = 0) -> str:
        """What the player says, for the message of a failure."""
        return f"player {index}: {self.state(index)}, {self.status(index)!r}; {self.trouble}"

    def wait_for_words(self, words: str, timeout_s: float = 30.0) -> None:
        """Wait until a player says this."""
        found = self.page.locator(".livevoice-player [data-part=status]", has_text=words)
        found.first.wait_for(timeout=timeout_s * 1000)

    def wait_until(self, probe: str, timeout_s: float = 30.0) -> None:
        """Wait for a JavaScript function to be true."""
        self.page.wait_for_function(probe, timeout=timeout_s * 1000)

    def heard(self, tap: str = "output") -> Heard:
        """All samples that have passed a tap: "sources", "output" or "started"."""
        return recorded(self.page, tap)

    def forget(self) -> None:
        """Begin to listen anew."""
        self.page.evaluate("() => forget()")

    def arrivals(self) -> list[tuple[float, float]]:
        """When sound came: samples that were there and the audio clock then, in frames."""
        return self.page.evaluate("() => window.arrivals")

    def messages(self) -> list[Json]:
        """This pack's events that came through the websocket."""
        return self.page.evaluate("() => window.messages")

    def cancel(self) -> float:
        """Cancel what runs, as ComfyUI's button does; the audio clock then, in seconds."""
        return self.page.evaluate(
            """() => {
                app.extensionManager.command.execute("Comfy.Interrupt");
                return context.currentTime;
            }"""
        )

    def _hear(self, message: Any) -> None:
        # The front end asks a hub for the size of its default workflow's models, which the content
        # policy of --disable-api-nodes forbids, and for files that are not always there.
        usual = ("404", "huggingface.co", "before initialization")
        if message.type == "error" and not any(it in message.text for it in usual):
            self.trouble.append(message.text)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def recorded(page: Any, tap: str) -> Heard:
    """What tap.js has recorded in a page: "sources", "output" or "started"."""
    pieces = page.evaluate("(name) => heard(name)", tap)
    return Heard([(frame, np.frombuffer(base64.b64decode(text), "<f4")) for frame, text in pieces])


@dataclass(frozen=True)
class Pause:
    """A silence that is not in the clip."""

    sample: int
    """Of the clip, that comes after it."""
    frame: int
    """Of the audio clock, at which it began."""
    seconds: float

    def is_due(self, arrivals: list[tuple[float, float]]) -> bool:
        """Whether the sound after it had not come in time for the player to go on.

        Args:
            arrivals: samples that are there and the audio clock then, in frames, as in tap.js.
        """
        needed = self.sample + GRAIN_FRAMES
        came = next(frame for n_samples, frame in arrivals if n_samples >= needed)
        return came + LEAD_FRAMES > self.frame


class Heard:
    """What has passed a tap: pieces of sound on the frames of the audio clock."""

    def __init__(self, parts: list[tuple[float, np.ndarray]]) -> None:
        parts = sorted(((round(frame), samples) for frame, samples in parts), key=lambda it: it[0])
        self.first_frame = parts[0][0] if parts else 0
        end = parts[-1][0] + len(parts[-1][1]) if parts else 0
        self.sound = np.zeros(end - self.first_frame, np.float32)
        done = self.first_frame
        for frame, samples in parts:
            assert frame >= done, f"two pieces of sound on frame {frame}"
            at, done = frame - self.first_frame, frame + len(samples)
            self.sound[at : at + len(samples)] = samples

    @property
    def last_frame(self) -> int:
        """Frame of the last sample that was not zero."""
        return self.first_frame + int(np.flatnonzero(self.sound)[-1])

    def pauses(self, clip: np.ndarray) -> list[Pause]:
        """The silences with which the clip was heard, all else being equal.

        Raises:
            AssertionError: samples are missing, repeated, changed or added.
        """
        pauses = []
        at, done = int(np.flatnonzero(self.sound)[0]), int(np.flatnonzero(clip)[0])
        while True:
            n = min(len(self.sound) - at, len(clip) - done)
            differs = np.flatnonzero(self.sound[at : at + n] != clip[done : done + n])
            same = int(differs[0]) if len(differs) else n
            at, done = at + same, done + same
            if not np.any(clip[done:]):
                assert not np.any(self.sound[at:]), "there is sound after the end"
                return pauses
            rest = np.flatnonzero(self.sound[at:])
            assert len(rest), f"sample {done} of {len(clip)} and what follows was not heard"
            ahead = int(np.flatnonzero(clip[done:])[0])
            assert rest[0] > ahead, f"sample {done} of {len(clip)} was heard changed"
            frame = self.first_frame + at
            pauses.append(Pause(done, frame, float(rest[0] - ahead) / SAMPLE_RATE))
            at, done = at + int(rest[0]), done + ahead


def find(heard: Heard, clip: np.ndarray, start: int = 0) -> int:
    """Where a clip lies in what was heard, sample for sample; -1 when it does not."""
    sound, solid = heard.sound, np.flatnonzero(clip)
    for at in np.flatnonzero(sound[start:] == clip[solid[0]]) + start - solid[0]:
        first = max(0, -at)  # zeros in front of the first sound are not recorded
        last = min(len(clip), len(sound) - at)
        if np.array_equal(sound[at + first : at + last], clip[first:last]) and not np.any(
            clip[last:]
        ):
            return int(at)
    return -1


def settings(server: Any, **values: Any) -> None:
    """Set settings of the front end; a page reads them when it opens."""
    for name, value in values.items():
        server.request(f"/settings/{name.replace('_', '.')}", json.dumps(value).encode())


def wait(
    probe: Callable[[], Any], timeout_s: float = 30.0, describe: Callable[[], str] = str
) -> Any:
    """First true answer of a probe."""
    end_s = time.monotonic() + timeout_s
    while not (found := probe()):
        assert time.monotonic() < end_s, f"it did not come in {timeout_s:.0f} s: {describe()}"
        time.sleep(0.1)
    return found
