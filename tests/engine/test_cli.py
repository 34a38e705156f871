import io
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from cloning import speechlike
from livevoice.engine import load_voice
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


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_voice_makes_a_file_that_say_speaks_with(tmp_path: Path, capsys, width: int):
    pcm = (speechlike(2).numpy() * 0.9 * 2 ** (8 * width - 1)).astype("<i4")
    if width == 1:
        pcm += 128
    data = pcm.view("u1").reshape(-1, 4)[:, :width]
    with wave.open(str(tmp_path / "in.wav"), "wb") as file:
        file.setparams((2, width, 24000, 0, "NONE", ""))
        file.writeframes(data.repeat(2, axis=0).reshape(-1, 2, width).tobytes())
    made, out = tmp_path / "Anna.safetensors", tmp_path / "out.wav"
    arguments = ["voice", str(tmp_path / "in.wav"), str(made), "--transcript", "Hello, you there!"]
    assert main(arguments) == 0
    assert "its own three voices" in capsys.readouterr().err
    voice = load_voice(made)
    assert (voice.name, voice.transcript) == ("Anna", "Hello, you there!")
    if width > 1:
        assert main(["say", "Hi.", str(out), "--voice", str(made), "--retries", "0"]) == 0


def test_say_knows_the_voices_of_the_starter(tmp_path: Path, capsys):
    lengths = set()
    for voice in ([], ["--voice", "rms"], ["--voice", "slt"]):
        assert main(["say", "Good morning to you.", str(tmp_path / "x.wav"), *voice]) == 0
        lengths.add((tmp_path / "x.wav").read_bytes())
    assert len(lengths) == 3
    assert main(["say", "Hi.", str(tmp_path / "x.wav"), "--voice", "nobody"]) == 2
    assert "voice: no file nobody" in capsys.readouterr().err
