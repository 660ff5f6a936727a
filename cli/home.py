"""The state folder: private to its owner, also where an older version or a person made it open to others."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kopt.cli.errors import Refused
from kopt.cli.progress import print_status

OPEN = stat.S_IRWXG | stat.S_IRWXO
NAMES = (
    ".demand.*",
    ".run.json.*",
    "*.db",
    "*.db-*",
    "*.lock",
    "artifacts",
    "champions.json",
    "demand",
    "feast",
    "keys",
    "kopt.toml",
    "logs",
    "measured",
    "models",
    "node-keys",
    "run",
    "run.json",
    "runs",
    "token",
    "traces",
)
"""What this product puts into its home; everything else there belongs to the user, and stays as it is."""


def make_home(home: Path) -> None:
    """The state folder, private to its owner with everything of ours in it.

    What this process makes from now on is private, too. Raises Refused where the folder cannot be made or written,
    where it is shared by design, and where it or something of ours in it belongs to another user: whoever could
    write there could have put a trusted key or a model into it.
    """
    os.umask(os.umask(0o077) | 0o077)
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refused(f"{home} cannot be made ({error.strerror}); set KOPT_HOME to a folder of yours") from error
    _refuse_foreign(home)
    if home.stat().st_mode & stat.S_ISVTX:
        raise Refused(f"{home} is shared by all users; set KOPT_HOME to a folder of yours, for example {home}/kopt")
    if not os.access(home, os.W_OK | os.X_OK):
        raise Refused(f"{home} cannot be written; make it writable, or set KOPT_HOME to a folder of yours")
    opened = [path for path in (home, *_ours(home)) if _close(path)]
    if opened:
        print_status(f"{home} could be read or written by others and is private now ({len(opened)} files and folders)")


def _ours(home: Path) -> Iterator[Path]:
    """Everything of ours below the home; links are not followed."""
    for path in sorted({path for name in NAMES for path in home.glob(name)}):
        yield path
        if path.is_dir() and not path.is_symlink():
            for folder, folders, files in os.walk(path):
                yield from (Path(folder) / name for name in (*folders, *files))


def _close(path: Path) -> bool:
    """Take others' rights away; False where there were none, or the file is gone."""
    try:
        status = path.lstat() if path.is_symlink() else path.stat()
    except OSError:
        return False
    if stat.S_ISLNK(status.st_mode):
        return False
    _refuse_foreign(path)
    if not status.st_mode & OPEN:
        return False
    try:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OPEN)
    except PermissionError:
        # A volume that belongs to root, in a container: whoever mounted it decides who reaches it.
        print_status(f"{path} can be reached by others and belongs to root; set KOPT_HOME to a folder below it")
        return False
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # A Secret with keys, in a container: nobody writes there.
        return False
    return True


def _refuse_foreign(path: Path) -> None:
    owner = path.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise Refused(
            f"{path} belongs to user {owner}, not to you; set KOPT_HOME to a folder of yours, or, if it is yours, "
            f"run kopt as that user"
        )
