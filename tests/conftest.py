"""Fixtures that more than one folder uses, and what the markers mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from checkpoints import write_tiny

torch.set_num_threads(1)  # the models are tiny; more threads only wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or os.environ.get("LIVEVOICE_ON_CPU") == "1":
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU here; run `make test-cuda` on one")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random checkpoint; do not write into it."""
    return write_tiny(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def starter_engine():
    """The starter, loaded on the CPU; tests leave it loaded."""
    from livevoice.engine import load

    return load("starter", device="cpu")
