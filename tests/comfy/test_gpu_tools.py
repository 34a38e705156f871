"""What the tests on a GPU stand on, as far as it needs none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from . import bundle, gpu, gpu_report
from .ballast import hold
from .gpu_memory import slope

ROW = {
    "rounds": 1000, "failures": 0, "bytes_held": 0, "growth_bytes": 1 << 20,
    "peak_growth_bytes": 2 << 20, "slope_bytes_per_round": 0.4, "nvml_process_growth_bytes": 0,
    "nvml_peak_growth_bytes": 0, "round_s": 0.3125,
}  # fmt: skip


def test_the_report_is_kept_row_by_row(tmp_path, monkeypatch):
    file = tmp_path / "new" / "report.json"
    monkeypatch.setattr(gpu_report, "FILE", file)
    gpu_report.keep("starter", **ROW, voice_mb=67.2)
    gpu_report.keep("speed", bare_ms_per_frame=1.5, outcome="fine")
    gpu_report.keep("speed", bare_ms_per_frame=1.25, outcome="fine")
    assert json.loads(file.read_text()) == {
        "starter": ROW | {"voice_mb": 67.2},
        "speed": {"bare_ms_per_frame": 1.25, "outcome": "fine"},
    }
    lines = file.with_suffix(".md").read_text().splitlines()
    figures = "1000 | 0 | 0 B | 1.00 MiB | 2.00 MiB | 0 B | 0.00 MiB | 0.31 s | voice mb 67.2"
    assert f"| starter | {figures} |" in lines
    assert "| speed | bare ms per frame 1.25, outcome fine |" in lines
    widths = {line.count("|") for line in lines if line}
    assert widths == {11, 3}


def test_slope():
    assert slope([1.0, 2.0]) == 0
    assert slope([5.0, 7.0, 9.0, 11.0]) == pytest.approx(2)
    assert slope([3.0, 4.0, 3.0]) == pytest.approx(0)


def test_the_stand_in_for_pyav_takes_every_import_and_nothing_else(tmp_path):
    (tmp_path / "av.py").write_text(bundle._STAND_IN)
    code = (
        "import av\n"
        "from av.container import InputContainer\n"
        "from av.subtitles.stream import SubtitleStream\n"
        "from av.video.reformatter import ColorRange\n"
        "from av.codec import CodecContext\n"
        "assert issubclass(av.error.FFmpegError, OSError)\n"
        "av.open('x')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "PyAV is not on this machine" in done.stderr.splitlines()[-1]


class Card:
    """A driver whose card breaks large allocations."""

    def __init__(self, free, largest):
        self.free, self.largest = free, largest

    def free_bytes(self):
        return self.free

    def take(self, n_bytes):
        if n_bytes > min(self.free, self.largest):
            return None
        self.free -= n_bytes
        return n_bytes


def test_a_ballast_leaves_what_it_is_told_to():
    card = Card(140 << 30, 5 << 30)
    assert sum(hold(card, 3 << 30)) == 137 << 30
    assert card.free == 3 << 30
    assert hold(card, 4 << 30) == []


def memory(taken, process, others):
    return gpu.Memory(
        engine=0, taken=taken, total=0, process=process, nvml_used=process + others,
        torch_allocated=0, torch_reserved=0, rss=0, patchers=0, models=0,
    )  # fmt: skip


def test_cudamemgetinfo_counts_only_while_nobody_else_comes_and_goes():
    gb = 1 << 30
    rounds = gpu.Rounds("", took_s=[1.0])
    rounds.after = [memory(5 * gb, 100, 4 * gb), memory(2 * gb, 100, gb), memory(2 * gb, 100, gb)]
    row = rounds.summary()
    assert (row["growth_bytes"], row["alone_on_the_card"]) == (0, 2)
    rounds.after.append(memory(2 * gb + 700, 800, gb))
    row = rounds.summary()
    assert (row["growth_bytes"], row["nvml_process_growth_bytes"]) == (700, 700)
