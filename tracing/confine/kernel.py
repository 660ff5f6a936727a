"""System calls that Python has no name for. Every one raises OSError with the call's name when it fails."""

import ctypes
import os
import struct
from pathlib import Path

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
_MOUNT_SETATTR, _CLOSE_RANGE = 442, 436  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL, _PR_SET_KEEPCAPS = 47, 2, 4, 8
_MNT_DETACH = 2
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

LIBC = ctypes.CDLL(None, use_errno=True)


def checked(result: int, call: str) -> int:
    """The result of a C call that returns -1 and errno for failure."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def _path(path: str | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def unshare(flags: int) -> None:
    checked(LIBC.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = (_path(source), _path(target), _path(kind), ctypes.c_ulong(flags), _path(data))
    checked(LIBC.mount(*arguments), f"mount {target}")


def set_read_only(target: str, read_only: bool, *, recursive: bool) -> None:
    """Turns writing through a mount (and all mounts below it) off or on; Linux 5.12."""
    attributes = struct.pack("=QQQQ", *((_MOUNT_ATTR_RDONLY, 0) if read_only else (0, _MOUNT_ATTR_RDONLY)), 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    arguments = (_AT_FDCWD, _path(target), flags, attributes, ctypes.c_size_t(len(attributes)))
    checked(LIBC.syscall(ctypes.c_long(_MOUNT_SETATTR), *arguments), f"mount_setattr {target}")


def _prctl(option: int, value: int, call: str, second: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    checked(LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(second), zero, zero), call)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when ``parent``, the process that started it, ends (also if it has ended already)."""
    _prctl(_PR_SET_PDEATHSIG, 9, "prctl PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Descendants whose parents end become this process's children, so none gets away by forking twice."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "prctl CHILD_SUBREAPER")


def no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "prctl NO_NEW_PRIVS")


def keep_capabilities_once() -> None:
    """The next change from root to another user leaves the permitted capabilities as they are."""
    _prctl(_PR_SET_KEEPCAPS, 1, "prctl KEEPCAPS")


def drop_capabilities(kept: int | None = None) -> None:
    """Empties every capability set, so that not even user 0 regains one by running a program.

    ``kept`` is the number of one capability that stays, also over the start of a program.
    """
    for capability in range(64):
        if LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the last one this kernel has, or no right to drop: then there is none to regain either
    LIBC.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    bit = 0 if kept is None else 1 << kept
    checked(LIBC.capset(header, struct.pack("=6I", bit, bit, bit, 0, 0, 0)), "capset")
    if kept is not None:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, "prctl CAP_AMBIENT", kept)


def pivot_root(new: str, old: str) -> None:
    number = 155 if os.uname().machine == "x86_64" else 41
    checked(LIBC.syscall(ctypes.c_long(number), _path(new), _path(old)), f"pivot_root {new}")


def detach(target: str) -> None:
    """Takes a mount away; what uses it still keeps it until then."""
    checked(LIBC.umount2(_path(target), ctypes.c_int(_MNT_DETACH)), f"umount2 {target}")


def close_from(first: int) -> None:
    """Closes every descriptor from ``first`` on, whatever the limit on their number was when they were opened."""
    if LIBC.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)) < 0:
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) >= first:
                try:
                    os.close(int(entry.name))
                except OSError:
                    continue  # the listing's own descriptor


def raise_loopback() -> None:
    """Brings the interface ``lo`` of a fresh network namespace up, so that a script can talk to itself."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
