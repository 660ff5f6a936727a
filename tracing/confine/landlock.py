"""Landlock: a process gives up the file system except named folders, for itself and all it starts.

Source: https://docs.kernel.org/userspace-api/landlock.html. The bits below are those of ABI 1 to 7.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from kopt.tracing.confine.kernel import LIBC, checked

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
_VERSION_FLAG, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_ABI, _NETWORK_RIGHTS = 4, 0b11  # bind and connect of TCP
SCOPE_ABI, _SCOPES = 6, 0b11  # abstract UNIX sockets and signals stay inside
NEWEST_ABI = 7
READ = _EXECUTE | _READ_FILE | _READ_DIR
DEVICE = _READ_FILE | _WRITE_FILE


def abi() -> int:
    """The kernel's version of Landlock, 0 where it has none or it is turned off."""
    version: int = LIBC.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
    )
    return max(0, version)


def restrict(rules: Iterable[tuple[str, int]], writable: Iterable[str], *, cut_network: bool, at_most: int) -> int:
    """Leaves this process the rights ``rules`` name (path, rights) and everything below ``writable``.

    ``cut_network`` also refuses TCP; it is for kernels without network namespaces. Needs ``no_new_privileges``.
    Returns the ABI used, no newer than ``at_most``.

    Raises:
        OSError: the kernel has no Landlock.
    """
    version = min(abi(), at_most)
    if version == 0:
        raise OSError(0, "landlock: not in this kernel")
    rights = _RIGHTS_OF_ABI[min(version, 5)]
    network = _NETWORK_RIGHTS if cut_network and version >= _NETWORK_ABI else 0
    attributes = struct.pack("=QQQ", rights, network, _SCOPES if version >= SCOPE_ABI else 0)
    size = 24 if version >= SCOPE_ABI else 16 if version >= _NETWORK_ABI else 8
    creation = (ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    ruleset = checked(LIBC.syscall(*creation), "landlock_create_ruleset")
    try:
        for path, allowed in (*rules, *((path, rights) for path in writable)):
            _allow(ruleset, path, allowed & rights)
        checked(LIBC.syscall(ctypes.c_long(_RESTRICT_SELF), ruleset, ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    """One rule; a path that does not exist needs none."""
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, target)
        arguments = (ctypes.c_long(_ADD_RULE), ruleset, _PATH_BENEATH, rule, ctypes.c_uint32(0))
        checked(LIBC.syscall(*arguments), f"landlock_add_rule {path}")
    finally:
        os.close(target)
