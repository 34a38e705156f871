"""The same rounds with a decode step as it is usually captured: it fails as users report it.

Nothing is asserted of how it fails, which depends on torch and on the driver; it is recorded. It
runs in servers of its own.
"""

from __future__ import annotations

import pytest

from . import gpu
from .comfyui import ServerError
from .gpu_report import keep

pytestmark = [pytest.mark.cuda, pytest.mark.comfy]
_TELLING = ("error", "Error", "Warning", "warn", "abort", "Abort", "terminate", "captured")


@pytest.mark.parametrize("mode", ["keep", "drop"])
def test_torch_tensors_in_a_captured_graph(mode):
    server = gpu.start(packs=("naive",))
    with server:
        outcome, n_good, first = "survived", 0, None
        for nonce in range(gpu.rounds(0.02)):
            try:
                found = gpu.run(server, gpu.one_node("NaiveSpeak", mode=mode, nonce=nonce))
                first = first or found["hash"]
                if found["hash"] != first:
                    finite = "other numbers" if found["finite"] else "not a number"
                    outcome = f"wrong result: {finite}"
                    break
                n_good += 1
                server.free(unload_models=True, free_memory=True)
                gpu.run(server, gpu.one_node("NaiveFill", nonce=nonce))
            except gpu.PromptFailedError as error:
                outcome = f"error: {str(error)[:160]}"
                break
            except (ServerError, OSError):
                outcome = "the server died"
                break
        log = server.log.partition("Starting server")[2]
        told = [line for line in log.splitlines() if any(it in line for it in _TELLING)]
    keep(
        f"naive: torch tensors in a captured graph, {mode} the graph at unload",
        good_rounds=n_good, outcome=outcome, log=" / ".join(told[-2:])[-300:],
    )  # fmt: skip
    assert not gpu.ON_CPU or outcome == "survived"
