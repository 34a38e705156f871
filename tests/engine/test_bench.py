import json
from pathlib import Path

import pytest
from livevoice.engine import bench_hour
from livevoice.engine.cli import main


def test_figures_have_stable_keys(tiny: Path, tmp_path: Path, capsys):
    file = tmp_path / "figures.json"
    arguments = ["bench", "--model", str(tiny), "--device", "cpu", "--runs", "1"]
    assert main([*arguments, "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    keys = {"load_s", "resident_gb", "prefill_ms.13", "prefill_ms.300", "decode_ms.fp32.pos100"}
    keys |= {
        "prefill_ms.voice_cold",
        "prefill_ms.voice_warm",
        "first_audio_ms",
        "codec_ms_per_audio_s",
        "times_real_time",
    }
    assert keys <= set(figures)
    assert all(value > 0 for value in figures.values())
    assert "first_audio_ms" in capsys.readouterr().out


def test_an_hour_is_measured_in_pieces_of_known_length(starter_engine):
    figures = bench_hour.measure(starter_engine, seconds=24)
    assert figures["hour_pieces"] == 2
    assert 0 < figures["hour_spoken_s"] <= 24
    spoken_s = figures["hour_spoken_s"]
    assert figures["hour_s"] == pytest.approx(figures["hour_measured_s"] * 3600 / spoken_s)
