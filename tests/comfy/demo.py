"""Speaks once through a real ComfyUI: runs a workflow file, twice, and says how fast it was.

The second run is the one that a person at the browser sees from then on: the model is loaded and
only the seed is new.

As a program, from the repository's root: ``python -m tests.comfy.demo [text]``.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

from .comfyui import (
    ROOT,
    PromptFailedError,
    PromptRefusedError,
    Server,
    ServerError,
    device_flags,
    files,
)
from .workflow import to_prompt

Json = dict[str, Any]
WORKFLOW = ROOT / "workflows" / "text_to_speech.json"
SOUND = ROOT / "output" / "speech.flac"


@dataclass(frozen=True)
class Run:
    """One run of the workflow: its sound (a FLAC file), the sound's length, the time it took."""

    sound: bytes
    sound_s: float
    took_s: float

    def __str__(self) -> str:
        speed = self.sound_s / self.took_s
        return f"{self.sound_s:.2f} s of speech in {self.took_s:.2f} s, {speed:.2f} x real time"


def with_text(prompt: Json, text: str | None, *, seed_step: int = 0) -> Json:
    """Copy of a prompt whose speaking nodes say ``text`` (None keeps theirs) with a later seed."""
    changed = json.loads(json.dumps(prompt))
    spoken = 0
    for call in changed.values():
        inputs = call["inputs"]
        if isinstance(inputs.get("text"), str) and isinstance(inputs.get("seed"), int):
            inputs["text"] = text or inputs["text"]
            inputs["seed"] += seed_step
            spoken += 1
    if not spoken:
        raise ValueError("the workflow has no node with a text and a seed")
    return changed


def run_once(server: Server, prompt: Json) -> Run:
    """Run a prompt that ends in one sound."""
    entry = server.run(prompt, timeout_s=1800.0)
    at_ms = {kind: detail["timestamp"] for kind, detail in entry["status"]["messages"]}
    sound = server.view(files(entry)[0])
    took_s = (at_ms["execution_success"] - at_ms["execution_start"]) / 1000
    return Run(sound, _seconds(sound), took_s)


def _seconds(sound: bytes) -> float:
    import av  # ComfyUI requires it

    with av.open(io.BytesIO(sound)) as container:
        frames = [(frame.samples, frame.sample_rate) for frame in container.decode(audio=0)]
    return sum(samples for samples, _ in frames) / frames[0][1]


def main(text: str | None) -> int:
    """Speak, save, report; returns the exit code."""
    try:
        with Server(flags=device_flags()) as server:
            print(f"ComfyUI {server.version} runs; speaking ...", flush=True)
            prompt = to_prompt(json.loads(WORKFLOW.read_text("utf-8")), server.object_info())
            first = run_once(server, with_text(prompt, text))
            warm = run_once(server, with_text(prompt, text, seed_step=1))
    except (ServerError, PromptFailedError, PromptRefusedError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    SOUND.parent.mkdir(exist_ok=True)
    SOUND.write_bytes(first.sound)
    print(f"first run, loading included: {first}")
    print(f"second run, model loaded:    {warm}")
    print(f"the sound of the first run:  {SOUND}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
