import io
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from livevoice.engine.cli import main


def read_wav(path: Path) -> tuple[int, int, int]:
    with wave.open(str(path)) as file:
        return file.getframerate(), file.getnchannels(), file.getnframes()


def test_say_writes_speech_that_the_seed_decides(tmp_path: Path, capsys):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert main(["say", "Good morning.", str(tmp_path / f"{name}.wav"), "--seed", seed]) == 0
    rate, channels, n_samples = read_wav(tmp_path / "a.wav")
    assert (rate, channels) == (24000, 1)
    assert 0.4 < n_samples / rate < 3
    a, b, c = ((tmp_path / f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c
    assert "real time" in capsys.readouterr().out


def test_say_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Yes.\n"))
    assert main(["say", "-", str(tmp_path / "a.wav")]) == 0
    assert read_wav(tmp_path / "a.wav")[2] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["say", "", "o.wav"], "nothing to speak"),
        (["say", "hi", "nowhere/o.wav"], "can't write nowhere/o.wav"),
        (["say", "hi", "."], "can write .wav only"),
        (["say", "hi", "o.mp3"], "can write .wav only"),
        (["say", "hi", "o.wav", "--model", "nothing"], "no folder 'nothing'"),
        (["say", "hi", "o.wav", "--device", "toaster"], "device must be"),
        (["say", "hi", "o.wav", "--precision", "int4"], "precision must be"),
        (["say", "hi", "o.wav", "--precision", "fp8", "--device", "cpu"], "fp8 needs the native"),
        (["say", "hi", "o.wav", "--temperature", "-1"], "temperature must be"),
        (["say", "hi", "o.wav", "--temperature", "nan"], "temperature must be"),
        (["say", "hi", "o.wav", "--top-k", "-3"], "top_k must be"),
        (["say", "hi", "o.wav", "--top-p", "0"], "top_p must be"),
        (["say", "hi", "o.wav", "--seed", "-1"], "seed must be"),
        (["say", "hi", "o.wav", "--retries", "-1"], "retries must be"),
        (["bench", "--runs", "0"], "--runs must be"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [[], ["sing"], ["say"], ["say", "hi", "o.wav", "--seed", "x"], ["say", "hi", "o.wav", "--no"]],
)
def test_unknown_arguments_are_one_line_and_exit_code_2(arguments: list[str], capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("livevoice: ")
    assert error.count("\n") == 1


def test_check_lists_problems(tmp_path: Path, capsys):
    assert main(["check"]) == 0
    assert "starter: fine" in capsys.readouterr().out
    assert main(["check", str(tmp_path)]) == 1
    assert "config.json is missing" in capsys.readouterr().out


def test_module_runs_from_any_folder_and_a_poor_console(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "livevoice", "say", "…", "ü.wav"],
        cwd=tmp_path, capture_output=True, check=False,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(b"livevoice: text: nothing to speak")
    assert b"Traceback" not in done.stderr
