"""Which checkpoint folders there are: ComfyUI's model folders of the type ``tts``.

Knows names and paths. What is inside a folder, and whether it is whole, the engine says.
"""

from __future__ import annotations

import json
from pathlib import Path

import folder_paths

from ..engine import HOW_TO_GET, MODEL_TYPE, STARTER, CheckpointError

FOLDER_TYPE = "tts"
_WEIGHTS = "model.safetensors"
_REAL = "higgs-audio-v3"  # how folders of the real checkpoint are called


def register_folder() -> None:
    """Make ``models/tts`` a model folder beside those that extra_model_paths names.

    The entry may exist already, from extra_model_paths or from another pack: it is added to. An
    empty set of extensions accepts every file, so there is nothing to widen then.
    """
    place = Path(folder_paths.models_dir) / FOLDER_TYPE
    folder_paths.add_model_folder_path(FOLDER_TYPE, str(place))
    extensions = folder_paths.folder_names_and_paths[FOLDER_TYPE][1]
    if extensions:
        extensions.add(".safetensors")


def names() -> list[str]:
    """What the loader offers: the starter first, then checkpoints, each by its path in ``tts``.

    The path is that of the weights when they are one file, because ComfyUI's page knows a model by
    the name of a file, and offers to download one that is not there; else that of the folder.
    """
    found = {
        _name_of(folder).relative_to(place).as_posix()
        for place in _places()
        for depth in ("*", "*/*")  # <name> or <vendor>/<name>
        for file in ("config.json", _WEIGHTS)
        for folder in (path.parent for path in place.glob(f"{depth}/{file}"))
        if _is_ours(folder)
    }
    return [STARTER, *sorted(found - {STARTER}, key=str.casefold)]


def path_of(name: str) -> str | Path:
    """What the engine opens for a name of :func:`names`, or for that of a folder.

    Raises:
        CheckpointError: no such folder; says how to get the real checkpoint.
    """
    if name == STARTER:
        return STARTER
    for place in _places():
        path = place / name
        folder = path.parent if path.name == _WEIGHTS and path.is_file() else path
        if name and folder.is_dir() and _is_inside(folder, place):
            return folder
    looked = ", ".join(str(place) for place in _places())
    wanted = name.removesuffix(f"/{_WEIGHTS}")
    raise CheckpointError(f"checkpoint: no folder '{wanted}' in {looked}; {HOW_TO_GET}")


def stamps(path: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of every file of a checkpoint: another value when one is replaced."""
    if path == STARTER:  # part of this pack, changes only with it
        return ()
    files = [file for file in sorted(Path(path).iterdir()) if file.is_file()]
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def _places() -> list[Path]:
    return [Path(place) for place in folder_paths.get_folder_paths(FOLDER_TYPE)]


def _is_inside(folder: Path, place: Path) -> bool:
    # Lexically: a link from inside the folder to another disk is the user's own choice.
    return ".." not in folder.relative_to(place).parts if folder.is_relative_to(place) else False


def _name_of(folder: Path) -> Path:
    weights = folder / _WEIGHTS
    return weights if weights.is_file() else folder


def _is_ours(folder: Path) -> bool:
    config = folder / "config.json"
    if not config.exists():  # only downloaded in part: listed, so that loading it can say so
        return folder.name.startswith(_REAL)
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # cut off or unreadable: listed, so that loading it can say what is wrong
    # Other TTS packs keep their models here, too.
    return isinstance(content, dict) and content.get("model_type") == MODEL_TYPE
