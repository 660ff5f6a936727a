"""A seccomp filter: no kernel interface that reaches other processes, mounts, devices or the network.

Network sockets stay usable where a network namespace holds them: a script may talk to itself. UNIX sockets are
refused (a path such as a container engine's socket crosses namespaces), pairs of them are not. Memory that nothing can
count is refused. What namespaces would do is done here where they are missing (``Filter``).
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.tracing.confine.kernel import LIBC, checked

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_INET, _INET6, _NETLINK = 2, 10, 16

# Where the number differs between architectures: (x86-64, AArch64); None: the architecture has none.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "lookup_dcookie": (212, 18),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "quotactl": (179, 60),
    "vhangup": (153, 58),
    "move_pages": (279, 239),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "mq_open": (240, 180),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "shmctl": (31, 195),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_unlink": (241, 181),
}
_REFUSED_EVERYWHERE = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
# Callers fall back to something that can be watched: clone, whose flags a filter can see, and files.
_ABSENT = {"clone3": (435, 435), "memfd_create": (319, 279), "memfd_secret": (447, 447)}
_SOCKET, _CLONE, _MMAP, _IOCTL = (41, 198), (56, 220), (9, 222), (16, 29)
_FIRST_UNKNOWN = 463
"""Calls that came after Linux 6.10 count as absent until they have been reviewed."""
_SHARED_ANONYMOUS, _HUGE_PAGES = 0x21, 0x40000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# Modes, owners, times and attributes, which no other filter sees. Programs set them on their own files too, where
# nothing is lost if they stay as they are: those calls seem to succeed.
_SEEM_DONE: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
_CHANGES: dict[str, tuple[int | None, int | None]] = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "truncate": (76, 45),
}
_FILE_ATTRIBUTES = (0x40086602, 0x40046602, 0x401C5820, 0x40806685, 0x400C6613, 0x800C6613)
"""FS_IOC_SETFLAGS and its older form, FSSETXATTR, ENABLE_VERITY, SET_ENCRYPTION_POLICY."""
# Calls on a process of one's choice: (number, number, which argument names it). 0 names the caller itself.
_ON_PROCESSES: dict[str, tuple[int, int, int]] = {
    "prlimit64": (302, 261, 0),
    "setpriority": (141, 140, 1),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
    "ioprio_set": (251, 30, 1),
    "migrate_pages": (256, 238, 0),
}
_SIGNALS: dict[str, tuple[int, int, int]] = {
    "kill": (62, 129, 0),
    "tkill": (200, 130, 0),
    "tgkill": (234, 131, 0),
    "rt_sigqueueinfo": (129, 138, 0),
    "rt_tgsigqueueinfo": (297, 240, 0),
}
_AUDIT_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


@dataclass(frozen=True)
class Filter:
    """What is left open besides what every command may do, because something else guards it.

    ``sockets``: IPv4, IPv6 and netlink, in a network namespace. ``attributes``: modes and times of files, where the
    file system is read-only. ``processes``: limits and priorities of other processes, in a PID namespace; ``signals``
    to them, there or where Landlock keeps them inside.
    """

    sockets: bool
    attributes: bool
    processes: bool
    signals: bool


def install(opened: Filter) -> None:
    """Filters this process and all it starts. Needs no_new_privileges.

    Raises:
        OSError: the kernel has no seccomp filters, or the architecture is not one of x86-64 and AArch64.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no filter for {machine}")
    program = _program(*_AUDIT_ARCHITECTURES[machine], opened)
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    checked(LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), header, 0, 0), "prctl SECCOMP")


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _answer(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


_REFUSE, _MISSING, _DONE = _answer(errno.EPERM), _answer(errno.ENOSYS), _answer(0)


def _program(architecture: int, column: int, opened: Filter) -> list[bytes]:
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _FIRST_UNKNOWN, 0, 1),
        _MISSING,
    ]
    program += _calls(_REFUSED, column, _REFUSE)
    program += _calls({name: (number, number) for name, number in _REFUSED_EVERYWHERE.items()}, column, _REFUSE)
    program += _calls(_ABSENT, column, _MISSING)
    program += _where(_CLONE[column], 0, [_step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _REFUSE])
    program += _where(
        _MMAP[column],
        3,
        [
            _step(_ANY_BIT, _HUGE_PAGES, 0, 1),
            _REFUSE,
            _step(_AND, _SHARED_ANONYMOUS),
            _step(_EQUAL, _SHARED_ANONYMOUS, 0, 1),
            _REFUSE,
        ],
    )
    program += _where(_IOCTL[column], 1, _any_of(_TERMINAL_INPUT, _REFUSE))
    if not opened.attributes:
        program += _calls(_SEEM_DONE, column, _DONE)
        program += _calls(_CHANGES, column, _REFUSE)
        program += _where(_IOCTL[column], 1, _any_of(_FILE_ATTRIBUTES, _REFUSE))
    if not opened.processes:
        program += _on_own_process(_ON_PROCESSES, column)
    if not opened.signals:
        program += _on_own_process(_SIGNALS, column)
    families = (_INET, _INET6, _NETLINK) if opened.sockets else ()
    allowed = _any_of(families, _step(_RETURN, _ALLOW))
    return [*program, *_where(_SOCKET[column], 0, [*allowed, _answer(errno.EACCES)]), _step(_RETURN, _ALLOW)]


def _calls(numbers: Mapping[str, tuple[int | None, int | None]], column: int, action: bytes) -> list[bytes]:
    return _any_of((pair[column] for pair in numbers.values()), action)


def _any_of(values: Iterable[int | None], action: bytes) -> list[bytes]:
    """The action if the loaded value is one of them."""
    return [step for value in values if value is not None for step in (_step(_EQUAL, value, 0, 1), action)]


def _where(number: int, argument: int, steps: list[bytes]) -> list[bytes]:
    """Steps over the lower half of an argument of one call. Expects the call's number loaded, and leaves it so."""
    load = _step(_LOAD, _ARGUMENTS + 8 * argument)
    return [_step(_EQUAL, number, 0, len(steps) + 2), load, *steps, _step(_LOAD, _NUMBER)]


def _on_own_process(calls: Mapping[str, tuple[int, int, int]], column: int) -> list[bytes]:
    """Refuses calls on a process other than 0 or this one, which keeps its number when it becomes the command."""
    program = []
    for call in calls.values():
        steps = [_step(_EQUAL, 0, 2, 0), _step(_EQUAL, os.getpid(), 1, 0), _REFUSE]
        program += _where(call[column], call[2], steps)
    return program
