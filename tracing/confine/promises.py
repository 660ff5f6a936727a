"""What is promised of every confined command, and what of it this machine cannot give.

A protection that is missing is made up for by another, or the command is refused: what it may do never depends on
the machine. What merely works less well is reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kopt.tracing.confine.mounts import MountSetup


@dataclass(frozen=True)
class Protection:
    """What keeps the command apart: namespaces for ``network`` and ``processes``, filters, another user's limits."""

    network: bool
    processes: bool
    locked: bool
    filtered: bool
    counted: bool


def broken(protection: Protection, setup: MountSetup) -> Iterator[str]:
    """The promises that nothing on this machine keeps."""
    if not (protection.network or protection.filtered):
        yield "a cut network"
    if not (setup.read_only or protection.locked):
        yield "write protection"
    if not (setup.own_root or protection.locked):
        yield "keeping files from being read"
    if not protection.filtered:
        yield "keeping system calls from being made"
    if not ((protection.processes and setup.own_processes) or protection.locked):
        yield "keeping other processes apart"
    if not protection.counted:
        yield "a limit on processes"


def missing(protection: Protection, setup: MountSetup) -> Iterator[str]:
    """What this machine lacks, and what comes of it."""
    if not protection.network:
        instead = " (sockets are refused instead)"
        yield "a network namespace" + (instead if protection.filtered else ": the network is open")
    if not protection.processes:
        yield "a process namespace: signals to processes of its own may be refused"
    if not protection.filtered:
        yield "seccomp filters: every system call is open"
    if not protection.locked:
        instead = " (other files are out of sight instead)"
        yield "Landlock" + (instead if setup.own_root else ": everything this user may read is readable")
    if not setup.read_only:
        yield "a read-only file system" + (
            " (modes and times of files stay as they are instead)" if protection.filtered else ""
        )
    if not setup.scratch:
        yield "a private file system (it is ended when the machine's fills up instead)"
    if not setup.shared_memory:
        yield "private shared memory: locks between processes cannot be made"
    if not setup.working_folder:
        yield "a copy-on-write working folder: writing there fails"
    if not protection.counted:
        yield "a limit on processes"
