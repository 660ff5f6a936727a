"""What a script writes where nothing may be written is kept aside and found again."""

import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kopt.tracing.probe.outside import Outside

REFUSED = Path("/mnt/refused")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outside:
    """Below ``REFUSED`` everything is read-only, as in the sandbox, also for root."""
    make, really_open = os.mkdir, builtins.open

    def refuse(path: Any) -> None:
        if not isinstance(path, int) and Path(path).is_relative_to(REFUSED):
            missing = Path(path).parent not in (REFUSED, REFUSED.parent)
            code = errno.ENOENT if missing else errno.EROFS
            raise OSError(code, os.strerror(code), str(path))

    def mkdir(path: Any, *args: Any, **options: Any) -> None:
        refuse(path)
        make(path, *args, **options)

    def opened(path: Any, *args: Any, **options: Any) -> Any:
        refuse(path)
        return really_open(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(builtins, "open", opened)
    made = Outside(tmp_path / "aside")
    monkeypatch.setattr(os, "mkdir", made.mkdir)
    return made


def test_folders_and_files_are_made_aside_and_found_again(outside: Outside, tmp_path: Path) -> None:
    os.makedirs(REFUSED / "data" / "mnist", exist_ok=True)  # noqa: PTH103 - as scripts write it
    with outside.open(REFUSED / "data" / "log.txt", "w") as file:
        file.write("step 1")
    with outside.open(REFUSED / "data" / "log.txt") as file:
        assert file.read() == "step 1"
    assert sorted(outside.listdir(REFUSED / "data")) == ["log.txt", "mnist"]
    assert not REFUSED.exists()
    assert (tmp_path / "aside" / "mnt" / "refused" / "data" / "mnist").is_dir()


def test_what_is_not_there_stays_absent_and_what_exists_exists(outside: Outside, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Read-only"):
        outside.open(REFUSED / "absent.txt")
    with pytest.raises(FileNotFoundError):
        outside.listdir(REFUSED / "nowhere")
    with pytest.raises(FileNotFoundError):
        outside.open(tmp_path / "no" / "such.txt", "w")
    os.mkdir(REFUSED / "run")  # noqa: PTH102 - as scripts write it
    with pytest.raises(FileExistsError):
        os.mkdir(REFUSED / "run")  # noqa: PTH102 - as scripts write it
