"""How a captured decode step is usually built in a custom node, to show what LiveVoice avoids.

Torch tensors in a torch CUDA graph, the weights in an ordinary ModelPatcher, the runner with its
graph and its static tensors in a module's dictionary. ``keep``: an unload moves the weights and
leaves the graph. ``drop``: an unload drops the graph too, its tensors go when Python gets to them.
"""

from __future__ import annotations

import hashlib

import comfy.model_management as management
import comfy.model_patcher
import torch
from comfy_api.latest import ComfyExtension, io

WIDTH, LAYERS, STEPS = 1024, 12, 20
runners: dict = {}
outputs: dict = {}


class Model(torch.nn.Module):
    """A stack of matrices and a cache, as far as matters here."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x / x.norm() * 30


class Patcher(comfy.model_patcher.ModelPatcher):
    """As ComfyUI's own, but for the graph."""

    mode = "keep"

    def detach(self, unpatch_all=True):
        if unpatch_all and self.mode == "drop":
            runners.clear()
        return super().detach(unpatch_all)


class Runner:
    """One captured step with static input and output."""

    def __init__(self, model, device):
        self.x = torch.zeros(1, WIDTH, device=device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(self.x)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            outputs["out"] = model(self.x)

    def step(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return outputs["out"].clone()


patcher = None


class NaiveSpeak(io.ComfyNode):
    """Decodes some steps with the captured graph; shows a hash of them."""

    @classmethod
    def define_schema(cls):
        inputs = [io.Combo.Input("mode", ["keep", "drop"]), io.Int.Input("nonce")]
        return io.Schema("NaiveSpeak", inputs=inputs, outputs=[], is_output_node=True)

    @classmethod
    @torch.inference_mode()
    def execute(cls, mode, nonce):  # noqa: ARG003
        global patcher
        device = management.get_torch_device()
        if patcher is None:
            patcher = Patcher(Model(), device, torch.device("cpu"))
            patcher.mode = mode
        management.load_models_gpu([patcher])
        if device.type == "cuda" and "step" not in runners:
            runners["step"] = Runner(patcher.model, device)
        step = runners["step"].step if device.type == "cuda" else patcher.model
        x, seen = torch.ones(1, WIDTH, device=device), []
        for _ in range(STEPS):
            x = step(x)
            seen.append(x.cpu())
        found = hashlib.sha256(torch.cat(seen).numpy().tobytes()).hexdigest()[:16]
        finite = bool(torch.isfinite(torch.cat(seen)).all())
        return io.NodeOutput(ui={"hash": [found], "finite": [finite]})


class NaiveFill(io.ComfyNode):
    """Takes and writes memory, as the next model does."""

    @classmethod
    def define_schema(cls):
        inputs = [io.Int.Input("nonce")]
        return io.Schema("NaiveFill", inputs=inputs, outputs=[], is_output_node=True)

    @classmethod
    def execute(cls, nonce):  # noqa: ARG003
        device = management.get_torch_device()
        kept = [torch.full((1 << 20,), float("nan"), device=device) for _ in range(64)]
        return io.NodeOutput(ui={"filled": [len(kept)]})


class Naive(ComfyExtension):
    """The pack."""

    async def get_node_list(self):
        return [NaiveSpeak, NaiveFill]


async def comfy_entrypoint():
    return Naive()
