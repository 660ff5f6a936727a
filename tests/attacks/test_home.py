"""A home that was open to others is closed before anything secret is written into it, or not used at all."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kopt.cli.errors import Refused
from kopt.cli.home import make_home

pytestmark = pytest.mark.usefixtures("umask")
READ = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); print(open(sys.argv[1]).read())"


@pytest.fixture
def umask() -> "os.PathLike[str] | None":
    """As wide as an older version may have found it."""
    before = os.umask(0)
    yield None  # type: ignore[misc]
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Made by hand, open to everybody, with what an older version left."""
    home = tmp_path / "home"
    for name in (
        "keys/signing.key",
        "artifacts/demand/model.json",
        "mlflow.db",
        "logs/up.log",
        "runs/a/done.json",
        "notes/mine.txt",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("secret")
    return home


def _open_to_others(home: Path) -> set[str]:
    paths = (home, *home.rglob("*"))
    return {str(path.relative_to(home)) for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077}


def test_an_open_home_is_closed_with_everything_of_ours(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(_open_to_others(home)) > 10
    make_home(home)
    # What the product did not put there keeps its rights; behind a closed folder nobody reaches it.
    assert _open_to_others(home) == {"notes", "notes/mine.txt"}
    assert "private now" in capfd.readouterr().err
    make_home(home)
    assert capfd.readouterr().err == ""


def test_what_is_written_from_now_on_is_private(tmp_path: Path) -> None:
    make_home(tmp_path / "home")
    (tmp_path / "home" / "new").write_text("x")
    assert _open_to_others(tmp_path / "home") == set()


def test_a_link_in_the_home_closes_nothing_elsewhere(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "file").write_text("x")
    (home / "artifacts" / "link").symlink_to(elsewhere)
    (home / "models").symlink_to(elsewhere)
    (home / "run").symlink_to("/nonexistent")
    make_home(home)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    assert stat.S_IMODE((elsewhere / "file").stat().st_mode) & 0o077


def test_what_is_mounted_to_be_read_stays_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Secret with keys: it has its group's rights, and no process may change them."""
    chmod = Path.chmod

    def refuse(path: Path, mode: int) -> None:
        if "keys" in path.parts:
            raise OSError(errno.EROFS, "Read-only file system")
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    make_home(home)
    assert _open_to_others(home) >= {"keys", "keys/signing.key"}
    assert "mlflow.db" not in _open_to_others(home)


def test_a_folder_for_everybody_is_no_home(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(Refused, match="set KOPT_HOME to a folder of yours"):
        make_home(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
@pytest.mark.parametrize("name", ["", "keys", "keys/signing.key", "artifacts/demand/model.json"])
def test_a_home_of_another_user_is_refused(home: Path, name: str) -> None:
    os.chown(home / name, 65534, 65534)
    with pytest.raises(Refused, match="belongs to user 65534"):
        make_home(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_reads_no_key(home: Path) -> None:
    for parent in home.parents:
        if parent.stat().st_uid == 0 and parent != Path("/") and "pytest" in str(parent):
            parent.chmod(0o755)

    def read() -> int:
        command = [sys.executable, "-c", READ, str(home / "keys" / "signing.key")]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert read() == 0
    make_home(home)
    assert read() != 0
