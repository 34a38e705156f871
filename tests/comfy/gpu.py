"""What the tests on a GPU share: servers with the trial pack, prompts, memory, rounds.

Everything also runs on a CPU, where it shows that the tests themselves work:

    LIVEVOICE_ON_CPU=1 LIVEVOICE_ROUNDS=3 python -m pytest -m "cuda and comfy" tests/comfy

LIVEVOICE_ROUNDS  rounds of the long tests (1,000); the others scale with it
LIVEVOICE_BUDGET_S  no long test starts a round later than this after its first (3,600)
LIVEVOICE_REAL  folder of a checkpoint of the real sizes; written there when it is not there yet
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livevoice.engine import Checkpoint

from .comfyui import ROOT, PromptFailedError, Server
from .gpu_memory import Memory, slope
from .gpu_report import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Json = dict[str, Any]
HERE = Path(__file__).parent
ON_CPU = os.environ.get("LIVEVOICE_ON_CPU") == "1"
ROUNDS = int(os.environ.get("LIVEVOICE_ROUNDS", "1000"))
BUDGET_S = float(os.environ.get("LIVEVOICE_BUDGET_S", "3600"))
REAL = Path(os.environ.get("LIVEVOICE_REAL", "/tmp/livevoice_real"))
SLACK_BYTES = 4 << 20
STARTER = "starter"
SHORT = "Yes."
LONG = "\n\n".join(["The old clock in the hall struck seven, and nobody came."] * 40)

_nonce = itertools.count(1)


def rounds(share: float) -> int:
    """A share of the long tests' rounds, at least two."""
    return max(2, round(ROUNDS * share))


def start(*flags: str, packs: Sequence[str] = ("trial",), env: Json | None = None) -> Server:
    """A server, not started yet, with this pack and test packs; on a CPU when that is wanted."""
    folders = {"LiveVoice": ROOT} | {name: HERE / name for name in packs}
    device = ("--cpu",) if ON_CPU else ()
    env = {"OMP_NUM_THREADS": "1" if ON_CPU else "4", **(env or {})}
    return Server(folders, flags=(*device, *flags), env=env)


def give(server: Server, folder: Path, name: str, kind: str = "tts") -> str:
    """Make a folder or file a model of the running server; returns its name there."""
    place = server.base / "models" / kind
    place.mkdir(parents=True, exist_ok=True)
    (place / name).symlink_to(folder.resolve(), target_is_directory=folder.is_dir())
    return name


def speech(
    checkpoint: str = STARTER, *, stage: str = "none", kind: str = "pause", **changed: Any
) -> Json:
    """1 load · 2 mishap · 3 text to codes · 4 decode · 5 hash of both."""
    loader = {"checkpoint": checkpoint, "device": "auto", "precision": "auto"}
    loader |= {name: changed.pop(name) for name in ("device", "precision") if name in changed}
    spoken = {
        "model": ["2", 0], "text": SHORT, "seed": 5, "temperature": 0.65, "top_k": 30,
        "top_p": 1.0, "max_seconds": 0.0, "retries": 0, "keep_partial": False, **changed,
    }  # fmt: skip
    nonce = spoken.pop("nonce", next(_nonce))
    return {
        "1": _call("LiveVoiceLoadModel", **loader),
        "2": _call("TrialStage", model=["1", 0], stage=stage, kind=kind, nonce=nonce),
        "3": _call("LiveVoiceTextToCodes", **spoken),
        "4": _call("LiveVoiceCodesToWaveform", model=["2", 0], codes=["3", 0]),
        "5": _call("TrialHash", codes=["3", 0], audio=["4", 0]),
    }


def picture(file: str, *, size: int = 256, seed: int = 3) -> Json:
    """A picture by ComfyUI's own nodes: load a diffusion model, sample one step, hash it."""
    return {
        "11": _call("UNETLoader", unet_name=file, weight_dtype="default"),
        "12": _call("TrialConditioning", width=768, nonce=next(_nonce)),
        "13": _call("EmptyLatentImage", width=size, height=size, batch_size=1),
        "14": _call(
            "KSampler", model=["11", 0], positive=["12", 0], negative=["12", 0],
            latent_image=["13", 0], seed=seed, steps=1, cfg=1.0,
            sampler_name="euler", scheduler="normal", denoise=1.0,
        ),
        "15": _call("TrialHash", latent=["14", 0]),
    }  # fmt: skip


def one_node(class_type: str, **inputs: Any) -> Json:
    """A prompt of a single output node."""
    return {"21": _call(class_type, **inputs)}


def _call(class_type: str, **inputs: Any) -> Json:
    return {"class_type": class_type, "inputs": inputs}


def wait(server: Server, prompt_id: str, *, timeout_s: float = 120.0) -> Json:
    """As `Server.wait`, asking often enough not to be what is measured."""
    end = time.monotonic() + timeout_s
    while not (entry := server.get(f"/history/{prompt_id}").get(prompt_id)):
        if time.monotonic() > end or not server.is_running:
            return server.wait(prompt_id, timeout_s=0.1)  # raises, with the log's end
        time.sleep(0.004)
    return entry


def run(server: Server, prompt: Json, *, timeout_s: float = 120.0) -> Json:
    """Run a prompt; returns what its `TrialHash` nodes showed, all in one dict."""
    entry = wait(server, server.queue(prompt), timeout_s=timeout_s)
    if entry["status"]["status_str"] != "success":
        say(server.trouble())
        raise PromptFailedError(entry)
    return shown(entry)


def shown(entry: Json) -> Json:
    """Values that nodes showed: name → value."""
    found = {}
    for output in entry["outputs"].values():
        found |= {name: values[0] for name, values in output.items() if values}
    return found


def seconds(entry: Json) -> float:
    """How long a prompt ran, by the server's clock."""
    at_ms = {kind: detail["timestamp"] for kind, detail in entry["status"]["messages"]}
    return (at_ms["execution_success"] - at_ms["execution_start"]) / 1000


def free(server: Server, *, caches: bool = True) -> Memory:
    """POST /free, wait until the worker has done it; memory then.

    Asked again every second: ComfyUI's worker sleeps through a request that comes while it collects
    garbage after a prompt.
    """
    start = time.monotonic()
    asked = 0
    while True:
        waited_s = time.monotonic() - start
        if waited_s >= asked:
            server.free(unload_models=True, free_memory=caches)
            asked += 1
        memory = Memory.of(server)
        if memory.engine == 0 and memory.models == 0 and not (caches and memory.patchers):
            return memory
        if waited_s > 30:
            raise AssertionError(f"not freed in 30 s: {memory}{server.trouble()}")
        time.sleep(0.004)


@dataclass
class Rounds:
    """Rounds of one test: what was held after each, which failed, how long they took."""

    name: str
    expected: Json = field(default_factory=dict)
    after: list[Memory] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)
    _told: float = 0.0

    def numbers(self, wanted: int, budget_s: float = BUDGET_S) -> Iterator[int]:
        """0, 1, ... until there were enough or the time is over; tells how far it is."""
        self._started = time.monotonic()
        for index in range(wanted):
            now = time.monotonic()
            if now - self._started > budget_s:
                say(f"{self.name}: {index} of {wanted} rounds, the time is over")
                return
            if now - self._told > 15:
                self._told = now
                state = f", {self.after[-1].taken_mb:.1f} MB taken" if self.after else ""
                say(f"{self.name}: round {index} of {wanted}{state}")
            yield index
            self.took_s.append(time.monotonic() - now)

    def same(self, found: Json) -> None:
        """Compare hashes with those of the first round."""
        for name, value in found.items():
            if self.expected.setdefault(name, value) != value:
                self.failures.append(
                    f"round {len(self.took_s)}: {name} is {value}, was {self.expected[name]}"
                )

    def quiet(self) -> list[Memory]:
        """The last rounds in which other processes held the same all the time.

        Only there cudaMemGetInfo, which sees the whole card, speaks of this server alone.
        """
        begin = len(self.after) - 1
        while begin and abs(self.after[begin - 1].others - self.after[-1].others) < SLACK_BYTES:
            begin -= 1
        return self.after[begin:]

    def summary(self) -> Json:
        """The row of the report; what the first round left is what the others are measured by."""
        taken = [each.taken for each in self.quiet()]
        process = [each.process for each in self.after]
        return {
            "rounds": len(self.took_s),
            "failures": len(self.failures),
            "bytes_held": self.after[-1].engine,
            "growth_bytes": taken[-1] - taken[0],
            "peak_growth_bytes": max(taken) - taken[0],
            "slope_bytes_per_round": slope(taken[1:]),
            "nvml_process_growth_bytes": process[-1] - process[0],
            "nvml_peak_growth_bytes": max(process) - process[0],
            "nvml_slope_bytes_per_round": slope(process[1:]),
            "rss_growth_bytes": self.after[-1].rss - self.after[0].rss,
            "round_s": sorted(self.took_s)[len(self.took_s) // 2],
            "alone_on_the_card": len(taken),
        }

    def grown(self) -> bool:
        """Whether more is held than after the first round, by either measure."""
        row = self.summary()
        most = max(row["peak_growth_bytes"], row["nvml_peak_growth_bytes"])
        return not ON_CPU and most > SLACK_BYTES


def mishap(server: Server, prompt: Json, stage: str, do: Callable[[str], None]) -> Json:
    """Run a prompt that waits at ``stage``, do something to it there, let it go on; its entry."""
    seen = server.log.count(f"TRIAL: in {stage}")
    prompt_id = server.queue(prompt)
    server.poll(
        lambda: server.log.count(f"TRIAL: in {stage}") > seen, f"never in {stage}", timeout_s=60
    )
    do(prompt_id)
    server.post("/trial/go_on", {})
    return wait(server, prompt_id)


def real_checkpoint() -> Path:
    """The checkpoint of the real sizes with random weights, written when it is not there.

    On a CPU the starter stands in for it.
    """
    if ON_CPU:
        return Checkpoint.open(STARTER).path
    if not (REAL / "config.json").is_file():
        from livevoice.engine.bench_model import real_sizes, write_random

        began = time.monotonic()
        scratch = REAL.with_name(f"{REAL.name}.{os.getpid()}.{random.random()}")
        write_random(scratch, real_sizes(), "cuda")
        shutil.rmtree(REAL, ignore_errors=True)
        scratch.rename(REAL)
        say(f"wrote random weights of the real sizes in {time.monotonic() - began:.0f} s")
    return REAL
