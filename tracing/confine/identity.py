"""A user of its own for a command that root starts: the kernel does not count root's processes against any limit.

The command runs under an unused number. In a user namespace it is called ``nobody`` there. It keeps one capability, to
read (and, over copies, to write) what belongs to root: the rest of the confinement decides which files these are.
"""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kopt.tracing.confine import kernel

_UNUSED = 0x70000000  # above the ranges that useradd, subordinate ids and systemd hand out
_FEW = 60_578  # up to 61,183 no numbers are assigned either
_NOBODY = 65534
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


@dataclass(frozen=True)
class Identity:
    """Whose the command will be: ``number`` as seen from inside (None: the caller's own), ``namespace`` of users."""

    number: int | None = None
    namespace: bool = False


def separate(without: tuple[str, ...]) -> Identity:
    """Enters a user namespace and reserves another user where the caller is root. Before any other namespace."""
    outside = None
    if os.getuid() == 0 and "other user" not in without:
        outside = next(_numbers(), None)
    if "user" in without or not _may_enter():
        return Identity(outside)
    both = _enter(outside)
    return Identity(_NOBODY if both and outside is not None else None, namespace=True)


def assume(identity: Identity, *, writes: bool) -> None:
    """Becomes that user, keeping the right to its creator's files; all other rights go. Clears the parent's signal.

    ``writes`` keeps the right to write them too, for folders that are copies.
    """
    if identity.number is None:
        kernel.drop_capabilities()
        return
    kept = _DAC_OVERRIDE if writes else _DAC_READ_SEARCH
    if not identity.namespace:
        os.setgroups([])
    kernel.keep_capabilities_once()
    os.setresgid(identity.number, identity.number, identity.number)
    os.setresuid(identity.number, identity.number, identity.number)
    kernel.drop_capabilities(kept)


def _numbers() -> Iterator[int]:
    """Users and groups that this process may become, the best first."""
    for number in (_UNUSED + os.getpid(), _FEW + os.getpid() % 600, _NOBODY):
        if _mapped("uid_map", number) and _mapped("gid_map", number):
            yield number


def _mapped(name: str, number: int) -> bool:
    ranges = (map(int, line.split()) for line in Path(f"/proc/self/{name}").read_text().splitlines())
    return any(first <= number < first + count for first, _, count in ranges)


def _may_enter() -> bool:
    """Tried by a child: a process that entered without a map could not go back."""
    child = os.fork()
    if child == 0:
        os._exit(0 if kernel.LIBC.unshare(ctypes.c_int(kernel.CLONE_NEWUSER)) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def _enter(outside: int | None) -> bool:
    """Whether both users, the caller and ``outside``, have a number in the namespace that this process enters."""
    uid, gid = os.getuid(), os.getgid()
    entered_in, entered_out = os.pipe()
    me = os.getpid()
    if outside is not None:
        os.setgroups([])
    writer = os.fork()
    if writer == 0:  # only a process outside may map a second user
        os.close(entered_out)
        os.read(entered_in, 1)
        os._exit(_write_maps(me, uid, gid, outside))
    os.close(entered_in)
    kernel.unshare(kernel.CLONE_NEWUSER)
    os.close(entered_out)
    return os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == 0


def _write_maps(process: int, uid: int, gid: int, outside: int | None) -> int:
    """0: both users are mapped, 1: the caller alone, 2: none."""
    folder = Path(f"/proc/{process}")
    second = "" if outside is None else f"\n{_NOBODY} {outside} 1"
    try:
        (folder / "uid_map").write_text(f"{uid} {uid} 1{second}")
        (folder / "gid_map").write_text(f"{gid} {gid} 1{second}") if second else _deny_groups(folder, gid)
    except OSError:
        try:
            (folder / "uid_map").write_text(f"{uid} {uid} 1")
            _deny_groups(folder, gid)
        except OSError:
            return 2
        return 1
    return 0


def _deny_groups(folder: Path, gid: int) -> None:
    (folder / "setgroups").write_text("deny")
    (folder / "gid_map").write_text(f"{gid} {gid} 1")
