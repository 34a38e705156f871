"""Who holds a device's memory: the engines by arena, torch, everybody else. For people and tools.

Reads and never takes; asking the driver makes a CUDA context in a process that has none.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .engine import Engine

ROUTE = "/livevoice/status"
"""Where a ComfyUI with LiveVoice tells its own."""


@dataclass(frozen=True)
class Held:
    """What one engine holds: bytes by arena, empty when unloaded; and what it holds when loaded."""

    checkpoint: str
    backend: str
    is_on_gpu: bool
    arenas: dict[str, int]
    size_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes held now."""
        return sum(self.arenas.values())

    def __str__(self) -> str:
        if not self.n_bytes:
            return f"0 bytes held, {size(self.size_bytes)} when loaded"
        arenas = ", ".join(f"{name} {size(n_bytes)}" for name, n_bytes in self.arenas.items())
        return f"{size(self.n_bytes)} held: {arenas}"


@dataclass(frozen=True)
class Status:
    """Memory of one device as this process sees it.

    Attributes:
        device: its name.
        is_gpu: whether the numbers below it are of a GPU; on a CPU they are all 0.
        engines: those that live in this process.
        torch_bytes: held by torch's allocator, of which ``torch_used_bytes`` are in tensors.
        free_bytes: of ``total_bytes``, as the driver says.
    """

    device: str
    is_gpu: bool
    engines: tuple[Held, ...]
    torch_bytes: int = 0
    torch_used_bytes: int = 0
    free_bytes: int = 0
    total_bytes: int = 0

    @property
    def engine_bytes(self) -> int:
        """Of all engines."""
        return sum(each.n_bytes for each in self.engines)

    @property
    def other_bytes(self) -> int:
        """Other programs, other code of this process, and CUDA itself."""
        ours = self.torch_bytes + sum(each.n_bytes for each in self.engines if each.is_on_gpu)
        return max(0, self.total_bytes - self.free_bytes - ours)

    def rest(self) -> str:
        """All but the engines, on one line."""
        if not self.is_gpu:
            return "in system memory, no GPU is used"
        return (
            f"torch {size(self.torch_bytes)}, others {size(self.other_bytes)}, "
            f"{size(self.free_bytes)} of {size(self.total_bytes)} free"
        )

    def text(self) -> str:
        """Several lines for a terminal."""
        lines = [f"{self.device}: {size(self.engine_bytes)} held by LiveVoice"]
        lines += [f"  {each.checkpoint}, {each.backend}: {each}" for each in self.engines]
        if self.is_gpu:
            lines += [
                f"  torch: {size(self.torch_bytes)}, in tensors {size(self.torch_used_bytes)}",
                f"  other programs and CUDA itself: {size(self.other_bytes)}",
                f"  free: {size(self.free_bytes)} of {size(self.total_bytes)}",
            ]
        else:
            lines.append("  in system memory; no GPU is used")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """The fields, and the sums."""
        sums = {"engine_bytes": self.engine_bytes, "other_bytes": self.other_bytes}
        return asdict(self) | sums

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Status:
        """What :meth:`as_json` gave; raises KeyError or TypeError for something else."""
        fields = {key: raw[key] for key in cls.__dataclass_fields__}
        return cls(**fields | {"engines": tuple(Held(**each) for each in raw["engines"])})


def status(engines: Sequence[Engine], device: torch.device) -> Status:
    """The memory of ``device``, and what these engines hold of it or of the system's."""
    here = tuple(
        Held(
            checkpoint=each.checkpoint.path.name,
            backend=each.backend_reason.partition(":")[0],
            is_on_gpu=each.device.type == "cuda",
            arenas=each.arena_bytes,
            size_bytes=each.size_bytes,
        )
        for each in engines
    )
    if device.type != "cuda":
        return Status(device.type.upper(), False, here)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return Status(
        torch.cuda.get_device_name(device),
        True,
        here,
        torch.cuda.memory_reserved(device),
        torch.cuda.memory_allocated(device),
        free_bytes,
        total_bytes,
    )


def status_of(server: str) -> Status | None:
    """Ask a running ComfyUI; None when none with LiveVoice answers there.

    Raises:
        ValueError: ``server`` is no http address.
    """
    if not server.startswith(("http://", "https://")):
        raise ValueError(f"--server must begin with http:// or https://, got '{server}'")
    try:
        with urllib.request.urlopen(server.rstrip("/") + ROUTE, timeout=3) as answer:
            return Status.from_json(json.load(answer))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def size(n_bytes: int) -> str:
    """As people read it: 0 bytes, 12 MB, 4.50 GB."""
    if n_bytes < 500_000:
        return f"{n_bytes:,} bytes"
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes < 1_000_000_000 else f"{n_bytes / 1e9:.2f} GB"
