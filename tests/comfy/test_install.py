"""The steps of the installer, with work that only counts."""

import sys

import pytest

from . import install


@pytest.fixture
def done():
    return []


@pytest.fixture
def steps(tmp_path):
    return lambda: install.Steps(tmp_path / "steps", "python")


def test_a_step_is_done_once_for_the_same_inputs(steps, done, tmp_path):
    listed = tmp_path / "requirements.txt"

    def everything():
        run = steps()
        run.step("first", lambda: done.append("first"), listed)
        run.step("second", lambda: done.append("second"), "pin")

    listed.write_text("numpy")
    everything()
    everything()
    assert done == ["first", "second"]
    listed.write_text("numpy\nscipy")
    everything()
    assert done == ["first", "second"] * 2, "a step is built on those before it"


def test_what_has_gone_is_made_again(steps, done):
    for is_there in (False, True, False):
        steps().step("folder", lambda: done.append("folder"), is_there=is_there)
    assert done == ["folder"] * 2


def test_a_failed_step_is_done_again(steps, done, capsys):
    def work():
        done.append("try")
        if len(done) == 2:
            raise install.InstallError("no network")

    steps().step("fetch", work, "1")
    with pytest.raises(install.InstallError):
        steps().step("fetch", work, "2")
    steps().step("fetch", work, "1")
    assert len(done) == 3, "the stamp of the first time must not outlive the failure"
    assert capsys.readouterr().out.count("install: fetch") == 3


def test_a_failed_command_is_told_with_the_end_of_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "LOG", tmp_path / "log")
    with pytest.raises(
        install.InstallError, match=r"exit code 3; .*log ends:\n(.*\n)*  why"
    ) as told:
        install.run(sys.executable, "-c", "print('why'); raise SystemExit(3)")
    assert "Traceback" not in str(told.value)


@pytest.mark.parametrize(
    ("torch", "wanted"),
    [
        ("2.13.0", ["torchvision==0.28.0", "torchaudio>=2.11"]),
        ("2.14.1", ["torchvision==0.29.1", "torchaudio>=2.11"]),
        ("2.9.1", ["torchvision==0.24.1", "torchaudio==2.9.1"]),
    ],
)
def test_companions_belong_to_the_torch_that_is_there(torch, wanted, tmp_path, monkeypatch):
    asked = []
    env = install.Environment(tmp_path)
    monkeypatch.setattr(env, "pip", lambda *arguments: asked.extend(arguments))
    monkeypatch.setattr(env, "ask", lambda _: "")
    install.companions(env, torch)
    assert asked == ["install", "--no-deps", *wanted]


def test_without_torch_there_are_no_companions(tmp_path):
    with pytest.raises(install.InstallError, match="torch 2 is needed"):
        install.companions(install.Environment(tmp_path), "")
