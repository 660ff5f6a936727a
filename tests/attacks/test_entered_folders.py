"""A script of someone else enters a folder: what `kopt estimate` then shows to the traced program."""

import os
from pathlib import Path
from typing import Any

import pytest

from kopt.models.sizing import estimate
from kopt.models.sizing.estimate import NOTHING, CodeResult, EstimateOptions, read_code


@pytest.fixture
def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder that a command is run in, by the text of its ``train.sh``, relative to the folder of all."""
    shown: list[Path] = []

    def keep(entrypoint: Any, gpu: Any, processes: Any, folder: Path, *rest: Any) -> CodeResult:
        shown.append(folder)
        return CodeResult(NOTHING)

    monkeypatch.setattr(estimate, "_code", keep)
    for name in ("own/data/deep", "secret/keys"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own/link").symlink_to(tmp_path / "secret")

    def run(command: str, script: str = "") -> str:
        (tmp_path / "own/train.sh").write_text(script.format(all=tmp_path), encoding="utf-8")
        options = EstimateOptions(folder=tmp_path / "own", python="/no-python")
        read_code(command.format(all=tmp_path), settings=None, options=options)
        return os.path.relpath(shown[-1], tmp_path.resolve())

    run.folder = tmp_path.resolve()  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize(
    "enters",
    ["{all}/secret", "../secret", "..", "/", "link", "data; cd ../../secret", "{all}/secret; cd keys", "../own/.."],
)
@pytest.mark.parametrize("command", ["bash train.sh", "bash train.sh .. /", "source train.sh"])
def test_no_script_opens_what_the_user_did_not_name(entered: Any, command: str, enters: str) -> None:
    shown = entered(command, f"cd {enters}\npython t.py")
    allowed = {"own", "own/data"}
    if ".." in command:
        # What the user's own words name they name to scripts too: these two, and nothing that lies below them.
        allowed |= {".", os.path.relpath("/", entered.folder)}
    assert shown in allowed


def test_folders_below_and_those_that_the_user_named_are_entered(entered: Any) -> None:
    assert entered("bash train.sh", "cd data/deep\npython t.py") == "own/data/deep"
    assert entered("cd {all}/secret && cd keys && python t.py") == "secret/keys"
    assert entered("cd ../secret && python t.py") == "secret"
    assert entered("bash train.sh {all}/secret", "cd {all}/secret/keys\npython t.py") == "own", (
        "an argument is one path"
    )
    assert entered("bash train.sh {all}/secret", "cd $1\npython t.py") == "secret"


def test_what_a_subshell_enters_ends_with_it(entered: Any) -> None:
    assert entered("(cd data && make) && python train.py") == "own"
    assert entered("cd data; make; cd -; python train.py") == "own"
    assert entered("cd data; cd deep; cd -; python train.py") == "own/data"
