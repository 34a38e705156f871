"""``LIVEVOICE_SMALL=1`` keeps two sizes of each test, for tools that watch every access."""

from __future__ import annotations

import math
import os
from collections import defaultdict

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("LIVEVOICE_SMALL"):
        return
    sizes = defaultdict(list)
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        numbers = [value for value in values if type(value) is int]
        others = tuple(str(value) for value in values if type(value) is not int)
        # Zero is a size, too: nothing of it, but what is multiplied by it is not nothing.
        sizes[item.path, item.function, others].append((math.prod(n + 1 for n in numbers), item))
    kept = set()
    for group in sizes.values():
        group.sort(key=lambda entry: entry[0])
        kept |= {group[0][1], group[len(group) // 2][1]}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
