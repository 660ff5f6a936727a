"""The last steps before the command: gives up every right, says what could not be given up, executes."""

import contextlib
import fcntl
import json
import os
import resource
import warnings  # noqa: F401 - os.execvpe imports it, when the library may be out of sight
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kopt.tracing.confine import kernel, landlock, seccomp
from kopt.tracing.confine.counting import limit_processes
from kopt.tracing.confine.identity import Identity, assume
from kopt.tracing.confine.mounts import MountSetup, home
from kopt.tracing.confine.promises import Protection, broken, missing
from kopt.tracing.confine.settings import Confinement

EVENTS_FD = 3
_STATUS_FD = 4
_COULD_NOT_START = 127
_THREADS_EACH = 8

_SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/bin",
    "/sbin",
    "/nix/store",
    "/opt/rocm",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/hostname",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/inputrc",
    "/etc/terminfo",
)
_DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


@dataclass(frozen=True)
class Apart:
    """What process 1 could separate: namespaces by name, the user, and the view of the file system."""

    namespaces: frozenset[str]
    identity: Identity
    setup: MountSetup


def visible(task: Confinement) -> list[str]:
    """Everything that the command may read."""
    return [*_SYSTEM, *task.readable, "/dev/null", "/dev/full", "/dev/random", "/dev/urandom"]


def become(task: Confinement, apart: Apart, parent: int) -> NoReturn:
    """Confines this process and executes the command; any failure is reported on the status descriptor."""
    try:
        kernel.die_with_parent(parent)
        os.setsid()
        _arrange_descriptors(task)
        lacking, refusal = _confine(task, apart, parent)
        os.write(_STATUS_FD, json.dumps({"missing": lacking, "error": refusal}).encode() + b"\n")
        if refusal is None:
            os.execvpe(task.argv[0], task.argv, task.env)
    except OSError as error:
        message = f"{task.argv[0]} could not be started: {error.strerror or error}"
        with contextlib.suppress(OSError):
            os.write(_STATUS_FD, json.dumps({"error": message}).encode() + b"\n")
    os._exit(_COULD_NOT_START)


def _arrange_descriptors(task: Confinement) -> None:
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


def _confine(task: Confinement, apart: Apart, parent: int) -> tuple[list[str], str | None]:
    """What protection this machine lacks, and why the command is therefore refused (None: it is not)."""
    setup, own = apart.setup, home(task.base)
    Path(own).mkdir(mode=0o700, exist_ok=True)
    if apart.identity.number is not None:
        os.chown(own, apart.identity.number, apart.identity.number)
    os.chdir(task.cwd)
    _limit(task)
    assume(apart.identity, writes=setup.working_folder)
    kernel.die_with_parent(parent)  # the change of user took it away
    counted = limit_processes(_THREADS_EACH * task.limits.processes)
    kernel.no_new_privileges()
    landlock_version = _lock_files(task, apart)
    locked = landlock_version > 0
    opened = _opened(apart, landlock_version)
    filtered = "seccomp" not in task.without and _succeeds(lambda: seccomp.install(opened))
    names = apart.namespaces
    protection = Protection("net" in names, "pid" in names, locked, filtered, counted)
    refused = list(broken(protection, setup))
    lacking = list(missing(protection, setup))
    if refused and not task.allow_unconfined:
        return lacking, f"refused: this machine offers neither namespaces nor filters for {' and '.join(refused)}"
    return lacking, None


def _opened(apart: Apart, landlock_version: int) -> seccomp.Filter:
    names = apart.namespaces
    return seccomp.Filter(
        sockets="net" in names,
        attributes=apart.setup.read_only,
        processes="pid" in names,
        signals="pid" in names or landlock_version >= landlock.SCOPE_ABI,
    )


def _succeeds(step: Callable[[], object]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _limit(task: Confinement) -> None:
    limits = task.limits
    # Writable private memory, as a backstop between two looks at what is resident; address space would stop torch.
    data = 2 * limits.memory_bytes + (1 << 30)
    for kind, value in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_CORE, 0),
    ):
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            value = min(value, ceiling)
        with contextlib.suppress(OSError):
            resource.setrlimit(kind, (value, value))


def _lock_files(task: Confinement, apart: Apart) -> int:
    """The version of Landlock that keeps the command to what it may see; 0 for none."""
    if "landlock" in task.without:
        return 0
    setup = apart.setup
    rules = [(path, landlock.READ) for path in (*_SYSTEM, *task.readable)]
    rules += [(path, landlock.DEVICE) for path in _DEVICES]
    rules.append(("/dev/zero", landlock.READ))  # mapped for writing it would be memory that nothing counts
    writable = [home(task.base), *task.writable]
    if setup.working_folder:
        writable.append(task.cwd)
    if setup.shared_memory:
        writable.append("/dev/shm")
    most = landlock.SCOPE_ABI - 1 if "landlock 6" in task.without else landlock.NEWEST_ABI
    try:
        return landlock.restrict(rules, writable, cut_network="net" not in apart.namespaces, at_most=most)
    except OSError:
        return 0
