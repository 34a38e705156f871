"""Which voices there are: the starter's, and files in the ``voices`` folders beside checkpoints.

A voice is a file that Save Voice wrote, or a recording with its transcript beside it: ``anna.wav``
and ``anna.txt`` (or ``anna.reference.txt``). Knows names and paths; what is in a file, and whether
it is to be believed, the engine says.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import folder_paths

from ..engine import check_name, starter_voices
from .checkpoints import FOLDER_TYPE

FOLDER = "voices"
SUFFIX = ".safetensors"
_RECORDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a")
_TRANSCRIPTS = (".reference.txt", ".txt")
_STARTER = "starter/"
_MAX_TRANSCRIPT_BYTES = 1 << 16


def name_problem(name: str | None) -> str | bool:
    """What validate_inputs says about a voice's name: True, or the engine's sentence.

    None is a name that comes over a wire, which is judged when it is there.
    """
    try:
        check_name((name or "").strip())
    except ValueError as error:
        return str(error)
    return True


@dataclass(frozen=True)
class VoiceFile:
    """Where one voice lies: a voice file, or a recording and its transcript."""

    path: Path
    transcript: Path | None = None

    @property
    def stamp(self) -> tuple:
        """Another value when a file was replaced."""
        files = [file for file in (self.path, self.transcript) if file is not None]
        return tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files)

    @property
    def name(self) -> str:
        """Name of the file, made fit to be a voice's."""
        try:
            check_name(self.path.stem)
        except ValueError:
            return re.sub(r"[^\w .-]", "_", self.path.stem)[:60].strip(" .")
        return self.path.stem

    def read_transcript(self) -> str:
        """What the recording says.

        Raises:
            ValueError: no text file of a sensible size in UTF-8.
        """
        if self.transcript is None:
            return ""
        if self.transcript.stat().st_size > _MAX_TRANSCRIPT_BYTES:
            raise ValueError(f"voice: {self.transcript.name} is too long for a transcript")
        try:
            return self.transcript.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"voice: {self.transcript.name} is not UTF-8 text; save it again as UTF-8"
            ) from error


def own_folder() -> Path:
    """Where voices are saved: ``models/tts/voices``, made when it is not there."""
    folder = Path(folder_paths.models_dir) / FOLDER_TYPE / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def names() -> list[str]:
    """What Load Voice offers: the starter's voices, then files by their path in ``voices``."""
    found = {
        file.relative_to(place).as_posix()
        for place in _places()
        for depth in ("*", "*/*")
        for file in place.glob(depth)
        if not file.name.startswith(".") and _voice_file(file) is not None
    }
    return [*(_STARTER + name for name in starter_voices()), *sorted(found, key=str.casefold)]


def find(name: str) -> VoiceFile:
    """The voice of that name, one of :func:`names`.

    Raises:
        ValueError: there is none, or the name leads out of the folders.
    """
    if name.startswith(_STARTER) and name.removeprefix(_STARTER) in starter_voices():
        return VoiceFile(starter_voices()[name.removeprefix(_STARTER)])
    for place in _places():
        file = place / name
        if file.is_relative_to(place) and ".." not in file.parts:
            found = _voice_file(file)
            if found is not None:
                return found
    looked = ", ".join(str(place) for place in _places())
    raise ValueError(
        f"voice: no '{name}' in {looked}; put voice files there, or recordings with their "
        "transcript (anna.wav and anna.txt), and reload the page"
    )


def place_for(name: str, may_replace: Callable[[Path], bool]) -> Path:
    """A file of :func:`own_folder`: ``name``, else ``name_2`` …, free or one to be replaced."""
    numbered = (f"{name}_{number}" if number > 1 else name for number in itertools.count(1))
    files = (own_folder() / f"{each}{SUFFIX}" for each in numbered)
    return next(file for file in files if not file.exists() or may_replace(file))


def _places() -> list[Path]:
    return [Path(place) / FOLDER for place in folder_paths.get_folder_paths(FOLDER_TYPE)]


def _voice_file(file: Path) -> VoiceFile | None:
    """What ``file`` is as a voice; None when it is none."""
    suffix = file.suffix.lower()
    if suffix not in (SUFFIX, *_RECORDINGS) or not file.is_file():
        return None
    if suffix == SUFFIX:
        return VoiceFile(file)
    for ending in _TRANSCRIPTS:
        transcript = file.with_name(file.stem + ending)
        if transcript.is_file():
            return VoiceFile(file, transcript)
    return None
