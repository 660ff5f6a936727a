"""A seccomp filter: no kernel interface that reaches other processes, mounts, devices or the network.

Network sockets stay usable where a network namespace holds them: a script may talk to itself. UNIX sockets are
refused (a path such as a container engine's socket crosses namespaces), pairs of them are not.
"""

import ctypes
import errno
import os
import struct

from kopt.models.sizing.confine.kernel import LIBC, checked

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_INET, _INET6, _NETLINK = 2, 10, 16

# Where the number differs between architectures: (x86-64, AArch64); None: the architecture has none.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "syslog": (103, 116),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "lookup_dcookie": (212, 18),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "quotactl": (179, 60), "vhangup": (153, 58), "move_pages": (279, 239), "sethostname": (170, 161),
    "setdomainname": (171, 162), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "mq_open": (240, 180), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "uselib": (134, None), "shmget": (29, 194), "shmat": (30, 196),
    "semget": (64, 190), "msgget": (68, 186),
}  # fmt: skip
_REFUSED_EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
}  # fmt: skip
# Callers fall back to something that can be watched: clone, whose flags a filter can see, and files.
_ABSENT = {"clone3": (435, 435), "memfd_create": (319, 279), "memfd_secret": (447, 447)}
_SOCKET, _CLONE = (41, 198), (56, 220)
_AUDIT_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def install(*, sockets: bool) -> None:
    """Filters this process and all it starts; ``sockets`` leaves IPv4, IPv6 and netlink. Needs no_new_privileges.

    Raises:
        OSError: the kernel has no seccomp filters, or the architecture is not one of x86-64 and AArch64.
    """
    machine = os.uname().machine
    if machine not in _AUDIT_ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no filter for {machine}")
    program = _program(*_AUDIT_ARCHITECTURES[machine], sockets=sockets)
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HP", len(program), ctypes.addressof(code))
    checked(LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), header, 0, 0), "prctl SECCOMP")


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _program(architecture: int, column: int, *, sockets: bool) -> list[bytes]:
    refuse, absent = _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ERRNO | errno.ENOSYS)
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if column == 0:
        program += [_step(_AT_LEAST, _X32, 0, 1), absent]
    numbers = [pair[column] for pair in _REFUSED.values()] + list(_REFUSED_EVERYWHERE.values())
    for number in numbers:
        if number is not None:
            program += [_step(_EQUAL, number, 0, 1), refuse]
    for pair in _ABSENT.values():
        program += [_step(_EQUAL, pair[column], 0, 1), absent]
    program += [
        _step(_EQUAL, _CLONE[column], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
    ]
    program += [refuse, _step(_LOAD, _NUMBER)]
    families = (_INET, _INET6, _NETLINK) if sockets else ()
    denied = _step(_RETURN, _ERRNO | errno.EACCES)
    # Skipped unless the call is socket; the load before it restores the number after clone's look at its flags.
    program += [_step(_EQUAL, _SOCKET[column], 0, 2 + 2 * len(families)), _step(_LOAD, _FIRST_ARGUMENT)]
    for family in families:
        program += [_step(_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW)]
    return [*program, denied, _step(_RETURN, _ALLOW)]
