"""Voice files: one safetensors file a voice, small and exact, made to be passed around.

A file from a stranger is taken for hostile: its size, layout, values and texts are checked before
they are believed, and nothing in it is ever run or used as a path. Knows bytes; nothing of models.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from .checkpoint import STARTER_FOLDER
from .voice import Voice

SUFFIX = ".safetensors"
_FORMAT = "livevoice_voice"
_VERSION = 1
_TENSOR = "codes"
_MAX_BYTES = 1 << 20  # 100 s take 40 kB; the rest is room for texts
_MAX_FRAMES = 4096  # the reference's part of any prompt: beyond, there is no room for a text
_MAX_CODEBOOKS = 64
_TEXTS = {"transcript": 20_000, "licence": 20_000, "preview_text": 2_000, "codec_id": 64}
_WINDOWS_DEVICES = {"con", "prn", "aux", "nul"} | {
    f"{p}{n}" for p in ("com", "lpt") for n in "123456789"
}


def save_voice(voice: Voice, path: Path) -> None:
    """Write a voice: ``codes`` int16 ``[T, N]`` and JSON metadata; whole or not at all.

    Raises:
        ValueError: it has no name, which a file needs.
    """
    if not voice.name or voice.name.split(".")[0].casefold() in _WINDOWS_DEVICES:
        raise ValueError(f"voice: '{voice.name}' can't be saved under that name; give it another")
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": voice.name,
        "hash": voice.content_hash,
        **{key: getattr(voice, key) for key in _TEXTS},
    }
    codes = voice.codes.to("cpu", torch.int16).contiguous()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(save({_TENSOR: codes}, metadata={_FORMAT: json.dumps(header)}))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_voice(path: Path) -> Voice:
    """Read what :func:`save_voice` wrote.

    Raises:
        ValueError: not a voice file, a damaged or a changed one; one sentence says what is wrong.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"voice: no file {path}")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_FORMAT])
            _check_layout(file)
            codes = file.get_tensor(_TENSOR).to(torch.int64)
        return _from_header(header, codes)
    except KeyError as error:
        raise ValueError(f"voice: {path.name} is not a LiveVoice voice: no {error}") from error
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).removeprefix("voice: ").split())
        raise ValueError(f"voice: {path.name} is not a LiveVoice voice: {reason}") from error


def starter_voices() -> dict[str, Path]:
    """Files of the voices that come with the starter checkpoint, by name; none without it."""
    return {file.stem: file for file in sorted((STARTER_FOLDER / "voices").glob(f"*{SUFFIX}"))}


def _check_layout(file: Any) -> None:
    """Refuse another tensor, dtype or shape than a voice's, before any of it is read."""
    if list(file.keys()) != [_TENSOR]:
        raise ValueError(f"it must hold the one tensor '{_TENSOR}'")
    part = file.get_slice(_TENSOR)
    dtype, shape = part.get_dtype(), part.get_shape()
    if dtype != "I16":
        raise ValueError(f"codes must be int16, got {dtype}")
    bounds = (_MAX_FRAMES, _MAX_CODEBOOKS)
    if len(shape) != 2 or not all(1 <= n <= most for n, most in zip(shape, bounds, strict=True)):
        raise ValueError(f"codes must be [frames, codebooks] within {list(bounds)}, got {shape}")


def _from_header(header: Any, codes: torch.Tensor) -> Voice:
    if not isinstance(header, dict):
        raise ValueError("its metadata is not a JSON object")
    if header.get("version") != _VERSION:
        raise ValueError(f"version {header.get('version')!r}, this LiveVoice reads {_VERSION}")
    if bool((codes < 0).any()):
        raise ValueError("codes must not be negative")
    texts = {key: _text(header, key, most) for key, most in _TEXTS.items()}
    voice = Voice(codes, name=_text(header, "name", 200), **texts)
    if header.get("hash") != voice.content_hash:
        raise ValueError("its content does not match its hash; it was damaged or changed")
    return voice


def _text(header: dict[str, Any], key: str, most: int) -> str:
    text = header.get(key, "")
    if not isinstance(text, str) or len(text) > most or "\0" in text:
        raise ValueError(f"its {key} is not a text of at most {most} characters")
    return text
