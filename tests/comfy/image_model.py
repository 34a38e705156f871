"""Writes a diffusion model of random weights that ComfyUI takes for a Stable Diffusion 1.5 UNet.

Runs in a process inside an unpacked ComfyUI, whose own class gives the shapes; see `made`.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

SIZES = {
    "whole": {"channel_mult": (1, 2, 4, 4), "num_res_blocks": [2, 2, 2, 2],
              "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1,
              "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]},
    "tiny": {"channel_mult": (1, 1), "num_res_blocks": [1, 1], "transformer_depth": [1, 1],
             "transformer_depth_middle": 1, "transformer_depth_output": [1, 1, 1, 1]},
}  # fmt: skip


def write(file: Path, size: str) -> None:
    """Runs inside ComfyUI's folder."""
    import comfy.options
    import torch
    from safetensors.torch import save_file

    sys.argv = ["", "--cpu"]  # ComfyUI reads its command line when it is imported
    comfy.options.enable_args_parsing()
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = UNetModel(
            image_size=32, in_channels=4, out_channels=4, model_channels=320, num_heads=8,
            use_spatial_transformer=True, context_dim=768, dtype=torch.float16, **SIZES[size],
        )  # fmt: skip
    torch.manual_seed(0)
    weights = {
        name: _values(name, each.shape, device).to(torch.float16).cpu().contiguous()
        for name, each in model.state_dict().items()
    }
    scratch = file.with_suffix(f".{os.getpid()}")
    save_file(weights, scratch)
    scratch.rename(file)


def _values(name, shape, device):
    import torch

    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    return torch.randn(shape, device=device) / math.sqrt(math.prod(shape[1:]))


def made(file: Path, home: Path, size: str, env: dict[str, str]) -> Path:
    """The file, written when it is not there, by a process inside the ComfyUI at ``home``."""
    if not file.is_file():
        began = time.monotonic()
        path = os.pathsep.join(filter(None, [str(home), env.get("PYTHONPATH", "")]))
        code = f"import runpy; runpy.run_path({__file__!r}, run_name='inside')"
        subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=home,
            env={**env, "PYTHONPATH": path, "IMAGE_MODEL": f"{size}:{file}"},
        )  # fmt: skip
        sys.__stdout__.write(f"\nwrote an image model in {time.monotonic() - began:.0f} s\n")
    return file


if __name__ == "inside":
    which, _, where = os.environ["IMAGE_MODEL"].partition(":")
    write(Path(where), which)
