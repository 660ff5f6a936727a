"""The file system as a confined command sees it: read-only, with private places that vanish with it.

Runs in process 1 of a fresh mount namespace, in which it may mount.
"""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kopt.tracing.confine import kernel, root
from kopt.tracing.confine.settings import Confinement

_PRIVATE = kernel.MS_NOSUID | kernel.MS_NODEV
_MAX_FILES = 200_000


@dataclass
class MountSetup:
    """Which of the mounts succeeded."""

    read_only: bool = False
    scratch: bool = False
    working_folder: bool = False
    own_processes: bool = False
    shared_memory: bool = False
    own_root: bool = False


def home(base: str) -> str:
    """The command's home and temporary folder below ``base``."""
    return f"{base}/home"


def set_up(task: Confinement) -> MountSetup:
    """Everything read-only except private scratch memory, a copy-on-write working folder and ``writable``."""
    setup = MountSetup()
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in task.writable}
    setup.read_only = _attempt(lambda: kernel.set_read_only("/", True, recursive=True))
    setup.scratch = _attempt(lambda: _scratch(task))
    setup.own_processes = _attempt(
        lambda: kernel.mount("proc", "/proc", "proc", _PRIVATE | kernel.MS_NOEXEC | kernel.MS_RDONLY)
    )
    if setup.scratch and task.copy_on_write:
        setup.working_folder = _attempt(lambda: _copy_on_write(task))
    # The same memory as the scratch folder's, so that one size bounds both.
    setup.shared_memory = setup.scratch and _attempt(
        lambda: kernel.mount(f"{task.base}/shm", "/dev/shm", None, kernel.MS_BIND)
    )
    for path, descriptor in kept.items():
        # From the descriptor: the path itself may lie below what was just mounted over.
        kernel.mount(f"/proc/self/fd/{descriptor}", path, None, kernel.MS_BIND)
        if setup.read_only:
            kernel.set_read_only(path, False, recursive=False)
        os.close(descriptor)
    return setup


def _attempt(step: Callable[[], object]) -> bool:
    try:
        step()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENODEV, errno.ENOENT):
            return False  # this kernel, or a policy on it, does not offer the step; the caller reports it
        raise
    return True


def _scratch(task: Confinement) -> None:
    size = f"size={task.limits.written_bytes},nr_inodes={_MAX_FILES},mode=711"
    kernel.mount("tmpfs", task.base, "tmpfs", _PRIVATE, size)
    for folder in (home(task.base), f"{task.base}/upper", f"{task.base}/work"):
        Path(folder).mkdir(mode=0o700, exist_ok=True)
    Path(f"{task.base}/shm").mkdir()
    Path(f"{task.base}/shm").chmod(0o1777)


def hide_others(task: Confinement, setup: MountSetup, visible: Iterable[str]) -> None:
    """Leaves only ``visible`` folders in sight: for kernels without Landlock."""
    private = [
        path for path, available in (("/dev/shm", setup.shared_memory), (home(task.base), setup.scratch)) if available
    ]
    if setup.read_only and setup.scratch:
        setup.own_root = _attempt(
            lambda: root.leave_behind(f"{task.base}/root", (*visible, *private, *task.writable), task.cwd)
        )


def _copy_on_write(task: Confinement) -> None:
    lower = os.open(task.cwd, os.O_PATH | os.O_CLOEXEC)
    try:
        # A descriptor in place of the path: nothing in a folder's name can add an option.
        layers = f"lowerdir=/proc/self/fd/{lower},upperdir={task.base}/upper,workdir={task.base}/work"
        try:
            kernel.mount("overlay", task.cwd, "overlay", _PRIVATE, layers + ",userxattr")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kernel.mount("overlay", task.cwd, "overlay", _PRIVATE, layers)
    finally:
        os.close(lower)
