"""A start of Ray that takes long is waited for, and said."""

import time
from pathlib import Path
from typing import Any

import pytest

from kopt.cli.progress import Steps
from kopt.cli.training.train import Telling
from kopt.core.settings import Settings
from kopt.training.pipeline import tasks
from kopt.training.pipeline.progress import Event


def _starting_for(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> bool:
        time.sleep(seconds)
        return False

    monkeypatch.setattr(tasks.local_ray, "start", start)
    monkeypatch.setattr(tasks, "SLOW_S", 0.2)


def test_a_slow_start_says_what_is_slow_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    _starting_for(0.7, monkeypatch)
    tasks.RayTasks(Settings(tmp_path), on_slow=said.append)
    assert 2 <= len(said) <= 3
    assert "Ray's own processes have been starting for 0 s; this machine is busy or slow" in said
    time.sleep(0.3)
    assert len(said) <= 3, "nothing once it has started"


def test_a_quick_start_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    _starting_for(0.0, monkeypatch)
    tasks.RayTasks(Settings(tmp_path), on_slow=said.append)
    assert said == []


def test_a_training_says_it_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Steps() as steps, Telling(steps) as telling:
        telling.progress(Event("ray", 0, 1))
        telling.progress(Event("ray", 0, 1, "Ray's own processes have been starting for 15 s"))
        telling.progress(Event("ray", 1, 1))
    assert "starting for 15 s" in capsys.readouterr().err
