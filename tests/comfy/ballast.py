"""A second process that holds GPU memory, as a browser, a game or another model does.

    with Ballast() as ballast:
        ballast.leave(300 << 20)

leaves so many bytes free for everybody else. The process talks to the driver itself, so that it is
there in a moment.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

_STEP_BYTES = 2 << 20  # what the driver deals in


class Ballast:
    """The process; a context manager that lets everything go at its end."""

    def __enter__(self) -> Ballast:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)

    def leave(self, n_bytes: int) -> int:
        """Hold all memory but this; 0 lets go of everything. Bytes that are free now."""
        self._process.stdin.write(f"{n_bytes}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Driver:
    """The few calls of libcuda that this takes."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def take(self, n_bytes: int) -> ctypes.c_uint64 | None:
        """An allocation, or None where it does not fit."""
        pointer = ctypes.c_uint64()
        status = self._cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(n_bytes))
        return pointer if status == 0 else None

    def give_back(self, pointer: ctypes.c_uint64) -> None:
        self._call("cuMemFree_v2", pointer)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} answered {status}")


def hold(driver: Driver, wanted_free: int) -> list[ctypes.c_uint64]:
    """Take memory in ever smaller pieces until only this much is free."""
    held: list[ctypes.c_uint64] = []
    size = 64 << 30
    while size >= _STEP_BYTES:
        while driver.free_bytes() - wanted_free >= size:
            pointer = driver.take(size)
            if pointer is None:
                break
            held.append(pointer)
        size //= 2
    return held


def main() -> None:
    """One number a line comes in: bytes to leave; one goes out: bytes that are free."""
    driver, held = Driver(), []
    for line in sys.stdin:
        while held:
            driver.give_back(held.pop())
        if int(line):
            held = hold(driver, int(line))
        sys.stdout.write(f"{driver.free_bytes()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
