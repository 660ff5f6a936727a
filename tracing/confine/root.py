"""A root folder that holds what a command may see and nothing else: for kernels without Landlock.

Runs in a fresh mount namespace, after everything private has been mounted at its place.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from kopt.tracing.confine import kernel

_SIZE = "size=4m,nr_inodes=20k,mode=755"
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def leave_behind(folder: str, visible: Iterable[str], working_folder: str) -> None:
    """Makes ``folder`` the root, with ``visible`` (absolute paths; absent ones are passed over) bound into it.

    Raises OSError where this is not allowed; then nothing but some mounts below ``folder`` has changed.
    """
    Path(folder).mkdir(mode=0o755, exist_ok=True)
    kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, _SIZE)
    # Parents first: a folder brings the mounts below it along.
    for path in sorted(set(visible), key=len):
        _bring(path, folder)
    for name, target in _LINKS.items():
        Path(f"{folder}/dev/{name}").symlink_to(target)
    Path(folder + working_folder).mkdir(parents=True, exist_ok=True)
    kernel.set_read_only(folder, True, recursive=False)
    os.chdir(folder)
    kernel.pivot_root(".", ".")
    kernel.detach(".")
    os.chdir("/")


def _bring(path: str, folder: str) -> None:
    """Binds what ``path`` leads to at its own place, and repeats the link that it is."""
    real = Path(path).resolve()
    if not real.exists():
        return
    if Path(path).is_symlink() and Path(path).parent.resolve() == Path(path).parent:
        link = Path(folder + path)
        if not link.is_symlink() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(path).readlink())
    target = Path(f"{folder}{real}")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if real.is_dir() else target.touch()
    kernel.mount(str(real), str(target), None, kernel.MS_BIND | kernel.MS_REC)
