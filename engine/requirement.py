"""Packages of ``requirements.txt`` that are imported where they are used, so that nodes appear."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_LIST = Path(__file__).resolve().parents[1] / "requirements.txt"


def required(name: str) -> Any:
    """The package of this name.

    Raises:
        RuntimeError: it is not installed; says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        what = f'-r "{_LIST}"' if _LIST.exists() else name  # a wheel has no such list
        raise RuntimeError(
            f'text: the Python package {name} is missing; run "{sys.executable}" -m pip install '
            f"{what}"
        ) from error
