"""A custom node pack for tests on a GPU: measures memory inside the server, and is a bad neighbour.

``GET /trial/memory`` tells what this process and everybody hold. The nodes fail, wait or hold at a
chosen stage of speaking, capture torch CUDA graphs of their own, empty torch's cache at random
times, and hash what comes out.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import random
import sys
import threading
import time
from pathlib import Path

import comfy.model_management as management
import torch
from aiohttp import web
from comfy_api.latest import ComfyExtension, io
from server import PromptServer

MODEL = io.Custom("LIVEVOICE_MODEL")
CODES = io.Custom("LIVEVOICE_CODES")
STAGES = ["none", "loading", "prefill", "decode", "codec"]
_PAUSE_S = 20.0  # until the test has done what it wants to
_ROWS = 5  # spoken before the stage "decode" is reached

logger = logging.getLogger(__name__)
go_on = threading.Event()


def residency():
    """The pack's module of that name, wherever ComfyUI has put it."""
    (module,) = [m for name, m in sys.modules.items() if name.endswith(".nodes.residency")]
    return module


def memory() -> dict:
    """Bytes now, as this process sees them; on a CPU those of the device are 0."""
    patchers = residency().live()
    free = total = allocated = reserved = 0
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "engine": sum(each.engine.resident_bytes for each in patchers),
        "patchers": len(patchers),
        "models": len(management.current_loaded_models),
        "free": free,
        "total": total,
        "torch_allocated": allocated,
        "torch_reserved": reserved,
        "rss": rss,
        "pid": os.getpid(),
    }


async def answer_memory(_request):
    # In a thread: an engine that loads is waited for, and the server must not.
    told = await asyncio.get_running_loop().run_in_executor(None, memory)
    return web.json_response(told)


async def answer_unload_now(_request):
    """As packs do that unload models from another thread, whatever runs."""
    await asyncio.get_running_loop().run_in_executor(None, management.unload_all_models)
    return web.json_response({})


async def answer_go_on(_request):
    go_on.set()
    return web.json_response({})


class Once:
    """Stands in for an attribute, and acts once: before the call after so many others."""

    def __init__(self, owner, name, act, after=0):
        self.left, self.act = after, act
        self.original = getattr(owner, name)
        while isinstance(self.original, Once):  # one that was never reached
            self.original = self.original.original
        setattr(owner, name, self)

    def __call__(self, *arguments, **named):
        self.left -= 1
        if self.left == -1:
            self.act()
        return self.original(*arguments, **named)


def act_of(kind, stage):
    """What happens when the stage is reached."""

    def act():
        logger.info("TRIAL: in %s", stage)
        if kind == "out of memory":
            raise torch.cuda.OutOfMemoryError("CUDA error: out of memory (trial)")
        if kind == "error":
            raise RuntimeError(f"a bug in {stage} (trial)")
        go_on.wait(_PAUSE_S)
        logger.info("TRIAL: goes on")

    return act


def arm(engine, stage, kind):
    """Have the engine meet ``kind`` once at ``stage``."""
    go_on.clear()
    act, backends = act_of(kind, stage), sys.modules[type(engine).__module__].backends
    if stage == "loading":
        if engine.is_loaded:
            engine.unload()
        Once(backends, "create_codec", act)
    elif stage == "codec":
        Once(engine, "decode_window", act)
    elif stage == "decode":
        Once(engine, "current", act, after=_ROWS)
    elif stage == "prefill":
        Once(engine, "current", act)


class TrialStage(io.ComfyNode):
    """Passes a model on, prepared for one mishap; ``nonce`` makes ComfyUI run it again."""

    @classmethod
    def define_schema(cls):
        inputs = [
            MODEL.Input("model"),
            io.Combo.Input("stage", STAGES),
            io.Combo.Input("kind", ["pause", "error", "out of memory", "real out of memory"]),
            io.Int.Input("nonce"),
        ]
        return io.Schema("TrialStage", inputs=inputs, outputs=[MODEL.Output()])

    @classmethod
    def execute(cls, model, stage, kind, nonce):
        if model.engine.device.type == "cuda":  # one that no step reached must not strike later
            engine_module = type(model.engine).__module__.rpartition(".")[0]
            fault = sys.modules[f"{engine_module}.native"]._extension().inject_fault
            fault(0)
        if kind == "real out of memory":  # at the nonce-th allocation, stream or capture
            model.engine.unload()
            fault(nonce)
        elif stage != "none":
            arm(model.engine, stage, kind)
        return io.NodeOutput(model)


class TrialHash(io.ComfyNode):
    """Shows hashes of codes, of sound, of a latent picture."""

    @classmethod
    def define_schema(cls):
        inputs = [
            CODES.Input("codes", optional=True),
            io.Audio.Input("audio", optional=True),
            io.Latent.Input("latent", optional=True),
        ]
        return io.Schema("TrialHash", inputs=inputs, outputs=[], is_output_node=True)

    @classmethod
    def execute(cls, codes=None, audio=None, latent=None):
        found = {
            "codes": codes and codes.frames,
            "audio": audio and audio["waveform"],
            "latent": latent and latent["samples"],
        }
        hashes = {name: [_hash(each)] for name, each in found.items() if each is not None}
        if codes is not None:
            hashes["frames"] = [len(codes.frames)]
        return io.NodeOutput(ui=hashes)


def _hash(tensor):
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


class TrialConditioning(io.ComfyNode):
    """Random words for a picture, always the same."""

    @classmethod
    def define_schema(cls):
        inputs = [io.Int.Input("width"), io.Int.Input("nonce")]
        return io.Schema("TrialConditioning", inputs=inputs, outputs=[io.Conditioning.Output()])

    @classmethod
    def execute(cls, width, nonce):  # noqa: ARG003
        words = torch.randn((1, 77, width), generator=torch.Generator().manual_seed(0))
        return io.NodeOutput([[words, {}]])


class TrialGraphs(io.ComfyNode):
    """Captures CUDA graphs with torch and keeps them; replays all of them at each call."""

    kept: list = []  # noqa: RUF012  (they are to outlive everything)

    @classmethod
    def define_schema(cls):
        inputs = [io.Int.Input("nonce")]
        return io.Schema("TrialGraphs", inputs=inputs, outputs=[], is_output_node=True)

    @classmethod
    def execute(cls, nonce):
        if not torch.cuda.is_available():
            return io.NodeOutput(ui={"replayed": [0]})
        if len(cls.kept) < 4:
            cls.kept.append(cls._captured())
        for graph, x, y in cls.kept:
            x.fill_(nonce % 7)
            graph.replay()
            torch.cuda.synchronize()
            if not bool((y == 2 * (nonce % 7) + 1).all()):
                raise RuntimeError("a torch graph gave a wrong result")
        return io.NodeOutput(ui={"replayed": [len(cls.kept)]})

    @classmethod
    def _captured(cls):
        x = torch.zeros(1 << 20, device="cuda")
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            y = x * 2 + 1
        return graph, x, y


class TrialEmptyCache(io.ComfyNode):
    """From now on, for some seconds, empties torch's cache and collects garbage at random times."""

    @classmethod
    def define_schema(cls):
        inputs = [io.Float.Input("seconds"), io.Int.Input("seed")]
        return io.Schema("TrialEmptyCache", inputs=inputs, outputs=[], is_output_node=True)

    @classmethod
    def execute(cls, seconds, seed):
        threading.Thread(target=_empty_for, args=(seconds, seed), daemon=True).start()
        return io.NodeOutput()


def _empty_for(seconds, seed):
    end, chance = time.monotonic() + seconds, random.Random(seed)
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.001, 0.1))
        if torch.cuda.is_available():
            torch.empty(1 << 22, device="cuda")
            torch.cuda.empty_cache()
        if chance.random() < 0.1:
            gc.collect()


class Trial(ComfyExtension):
    """The pack."""

    async def on_load(self):
        routes = PromptServer.instance.routes
        routes.get("/trial/memory")(answer_memory)
        routes.post("/trial/go_on")(answer_go_on)
        routes.post("/trial/unload_now")(answer_unload_now)

    async def get_node_list(self):
        return [
            TrialStage, TrialHash, TrialConditioning, TrialGraphs, TrialEmptyCache,
        ]  # fmt: skip


async def comfy_entrypoint():
    return Trial()
