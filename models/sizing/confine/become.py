"""The last steps before the command: gives up every right, says what could not be given up, executes."""

import contextlib
import fcntl
import json
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kopt.models.sizing.confine import kernel, landlock, seccomp
from kopt.models.sizing.confine.mounts import View, home
from kopt.models.sizing.confine.settings import Confinement

EVENTS_FD = 3
_STATUS_FD = 4
_COULD_NOT_START = 127
_THREADS_EACH = 8

_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/opt/rocm", "/proc",
    "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone",
    "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf",
    "/etc/hostname", "/etc/mime.types", "/etc/os-release", "/etc/debian_version", "/etc/fonts", "/etc/protocols",
    "/etc/services", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/inputrc", "/etc/terminfo",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


@dataclass(frozen=True)
class Protection:
    """Which namespaces keep the command apart."""

    network: bool
    processes: bool
    ipc: bool


def become(task: Confinement, protection: Protection, view: View, parent: int) -> NoReturn:
    """Confines this process and executes the command; any failure is told on the status descriptor."""
    try:
        kernel.die_with_parent(parent)
        os.setsid()
        _take_descriptors(task)
        missing, refusal = _confine(task, protection, view)
        os.write(_STATUS_FD, json.dumps({"missing": missing, "error": refusal}).encode() + b"\n")
        if refusal is None:
            os.execvpe(task.argv[0], task.argv, task.env)
    except OSError as error:
        message = f"{task.argv[0]} could not be started: {error.strerror or error}"
        with contextlib.suppress(OSError):
            os.write(_STATUS_FD, json.dumps({"error": message}).encode() + b"\n")
    os._exit(_COULD_NOT_START)


def _take_descriptors(task: Confinement) -> None:
    """Standard input empty, output to the pipe, events on 3, status on 4 until the command starts, nothing else."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    wanted = [nothing, task.output_fd, task.output_fd, task.events_fd, task.status_fd]
    # First out of the way of the targets: one may be another's source.
    moved = [None if fd is None else os.dup(_above(fd)) for fd in wanted]
    for target, source in enumerate(moved):
        if source is not None:
            os.dup2(source, target, inheritable=target < _STATUS_FD)
    if task.events_fd is None:
        with contextlib.suppress(OSError):
            os.close(EVENTS_FD)
    kernel.close_from(_STATUS_FD + 1)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


def _confine(task: Confinement, protection: Protection, view: View) -> tuple[list[str], str | None]:
    """What protection this machine lacks, and why the command is therefore refused (None: it is not)."""
    Path(home(task.base)).mkdir(mode=0o700, exist_ok=True)
    os.chdir(task.cwd)
    _limit(task, counted=protection.processes)
    kernel.no_new_privileges()
    kernel.drop_capabilities()
    locked = "landlock" not in task.without and _succeeds(lambda: _lock_files(task, protection, view))
    filtered = "seccomp" not in task.without and _succeeds(lambda: seccomp.install(sockets=protection.network))
    missing = list(_missing(protection, view, locked, filtered))
    without = []
    if not (protection.network or filtered):
        without.append("a cut network")
    if not (view.read_only or locked):
        without.append("write protection")
    if without and not task.allow_unconfined:
        return missing, f"refused: this machine offers neither namespaces nor filters for {' and '.join(without)}"
    return missing, None


def _succeeds(step: Callable[[], object]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _limit(task: Confinement, *, counted: bool) -> None:
    """``counted``: a namespace counts this command's threads alone, not all of the user's on the machine."""
    limits = task.limits
    # Writable private memory, as a backstop between two looks at what is resident; address space would stop torch.
    data = 2 * limits.memory_bytes + (1 << 30)
    for kind, value in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, _THREADS_EACH * limits.processes if counted else resource.RLIM_INFINITY),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_CORE, 0),
    ):
        ceiling = resource.getrlimit(kind)[1]
        if value == resource.RLIM_INFINITY or ceiling != resource.RLIM_INFINITY:
            value = ceiling if value == resource.RLIM_INFINITY else min(value, ceiling)
        with contextlib.suppress(OSError):
            resource.setrlimit(kind, (value, value))


def _lock_files(task: Confinement, protection: Protection, view: View) -> None:
    rules = [(path, landlock.READ) for path in (*_SYSTEM, *task.readable)]
    rules += [(path, landlock.DEVICE) for path in _DEVICES]
    writable = [home(task.base), *task.writable]
    if view.working_folder:
        writable.append(task.cwd)
    if view.shared_memory:
        writable.append("/dev/shm")
    landlock.restrict(rules, writable, cut_network=not protection.network)


def _missing(protection: Protection, view: View, locked: bool, filtered: bool) -> Iterator[str]:
    if not protection.network:
        yield "a network namespace" + (" (sockets are refused instead)" if filtered else ": the network is open")
    if not protection.processes:
        yield "a process namespace: other processes are visible and signals can reach them"
    if not filtered:
        yield "seccomp filters: every system call is open"
    if not locked:
        yield "Landlock: everything this user may read is readable"
    if not view.read_only:
        yield "a read-only file system" + (": modes and times of files can be changed" if locked else "")
    if not view.scratch:
        yield "a private file system: what is written in all is not limited"
    if not view.shared_memory:
        yield "private shared memory: locks between processes cannot be made"
    if not view.working_folder:
        yield "a copy-on-write working folder: writing there fails"
    if protection.processes and not view.own_processes and not locked:
        yield "a process list of its own: /proc shows other processes"
