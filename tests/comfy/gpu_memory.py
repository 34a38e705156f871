"""Memory as three parties see it: the server's process, the driver (cudaMemGetInfo), and NVML."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .comfyui import Server


@dataclass(frozen=True)
class Memory:
    """Bytes at one moment.

    Attributes:
        engine: that the engines say they hold.
        taken: of the whole device, by cudaMemGetInfo in the server's process; on a CPU its RSS.
        process: of the server's process, by NVML from here; 0 where NVML does not tell.
        nvml_used: of the whole device, by NVML from here.
        patchers: engines alive. models: entries in the manager's list.
    """

    engine: int
    taken: int
    total: int
    process: int
    nvml_used: int
    torch_allocated: int
    torch_reserved: int
    rss: int
    patchers: int
    models: int

    @classmethod
    def of(cls, server: Server) -> Memory:
        """Ask everybody now."""
        told = server.get("/trial/memory")
        used, process = _nvml(told["pid"])
        return cls(
            engine=told["engine"],
            taken=told["total"] - told["free"],
            total=told["total"],
            process=process,
            nvml_used=used,
            torch_allocated=told["torch_allocated"],
            torch_reserved=told["torch_reserved"],
            rss=told["rss"],
            patchers=told["patchers"],
            models=told["models"],
        )

    @property
    def others(self) -> int:
        """Of the device, by other processes; 0 where NVML does not tell."""
        return self.nvml_used - self.process if self.process else 0

    @property
    def taken_mb(self) -> float:
        """Of the device, in MB."""
        return self.taken / 1e6


def slope(values: Sequence[float]) -> float:
    """Least-squares slope per step; 0 for fewer than three values."""
    n = len(values)
    if n < 3:
        return 0.0
    mid, mean = (n - 1) / 2, sum(values) / n
    above = sum((i - mid) * (value - mean) for i, value in enumerate(values))
    return above / sum((i - mid) ** 2 for i in range(n))


@functools.cache
def _handle() -> tuple[Any, Any] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # noqa: BLE001  (no NVML here, in whatever way)
        return None


def _nvml(pid: int) -> tuple[int, int]:
    """Bytes of the first GPU that are taken in all, and by one process; 0 when not known."""
    if _handle() is None:
        return 0, 0
    nvml, device = _handle()
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    of_process = [each.usedGpuMemory or 0 for each in processes if each.pid == pid]
    return nvml.nvmlDeviceGetMemoryInfo(device).used, sum(of_process)
