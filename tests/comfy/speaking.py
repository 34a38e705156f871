"""Prompts of this pack's nodes, and what comes back from running them."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import soundfile
from livevoice.engine import Codes

from .comfyui import files

if TYPE_CHECKING:
    import numpy as np

    from .comfyui import Server

TINY = "tiny ü"
"""Folder of the tiny random checkpoint in the servers of conftest.py: babbles, never ends."""
STARTER = "starter"
ODD_NAME = "Live Voice ä"
"""What this pack's folder is called there."""

_nonce = itertools.count()


def load(checkpoint: str = TINY, **changed: str) -> dict[str, Any]:
    inputs = {"checkpoint": checkpoint, "device": "auto", "precision": "auto", **changed}
    return {"class_type": "LiveVoiceLoadModel", "inputs": inputs}


def settings(**changed: Any) -> dict[str, Any]:
    return {
        "text": "Good morning to you all.",
        "seed": 5,
        "temperature": 0.65,
        "top_k": 30,
        "top_p": 1.0,
        "max_seconds": 0.6,
        "keep_partial": False,
        **changed,
    }


def speak(checkpoint: str = TINY, fault: str = "none", **changed: Any) -> dict[str, Any]:
    """1 load · 2 a fault, or none, but anew at every call · 3 text to codes · 4 save."""
    spoken = {"model": ["2", 0], **settings(retries=0, **changed)}
    fault_inputs = {"model": ["1", 0], "fault": fault, "nonce": next(_nonce)}
    saved = {"codes": ["3", 0], "filename_prefix": "codes/Größe a"}
    return {
        "1": load(checkpoint),
        "2": {"class_type": "TrialFault", "inputs": fault_inputs},
        "3": {"class_type": "LiveVoiceTextToCodes", "inputs": spoken},
        "4": {"class_type": "LiveVoiceSaveCodes", "inputs": saved},
    }


def speak_aloud(*arguments: str, **changed: Any) -> dict[str, Any]:
    """As `speak`, then 5 decode · 6 play."""
    heard = {"5": decode(["2", 0], ["4", 0]), "6": play(["5", 0])}
    return {**speak(*arguments, **changed), **heard}


def decode(model: list, codes: list) -> dict[str, Any]:
    return {"class_type": "LiveVoiceCodesToWaveform", "inputs": {"model": model, "codes": codes}}


def play(audio: list) -> dict[str, Any]:
    return {"class_type": "PreviewAudio", "inputs": {"audio": audio}}


def codes_of(server: Server, entry: dict[str, Any]) -> Codes:
    """The codes that a run has saved."""
    (saved,) = files(entry, "codes")
    return Codes.load(server.base / "output" / saved["subfolder"] / saved["filename"])


def sound_of(server: Server, entry: dict[str, Any], node: str) -> tuple[np.ndarray, int]:
    """What a player node shows: samples ``[n]`` or ``[n, channels]``, and their rate in Hz."""
    (file,) = entry["outputs"][node]["audio"]
    return soundfile.read(io.BytesIO(server.view(file)), dtype="float32")
