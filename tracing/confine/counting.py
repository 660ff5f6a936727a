"""A limit on a command's processes that is known to hold, because it was tried."""

import os
import resource

_FRESH, _EXACT = 8, 4
_MANY = 1 << 22


def limit_processes(most: int) -> bool:
    """Lets this process's user start ``most`` processes and threads more; False where the kernel does not count them.

    Root is not counted, and before Linux 5.14 a user's processes are counted over all namespaces, containers and
    logins together: how many there are is found by trying.
    """
    ceiling = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if _starts(0, ceiling):
        return False
    in_use = 0 if _starts(_at_most(_FRESH, ceiling), ceiling) else _processes_in_use(ceiling)
    limit = _at_most(in_use + most, ceiling)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    return True


def _processes_in_use(ceiling: int) -> int:
    too_few, enough = _FRESH, 2 * _FRESH
    while enough < _at_most(_MANY, ceiling) and not _starts(enough, ceiling):
        too_few, enough = enough, 2 * enough
    enough = _at_most(enough, ceiling)
    while enough - too_few > _EXACT:
        middle = (too_few + enough) // 2
        if _starts(middle, ceiling):
            enough = middle
        else:
            too_few = middle
    return enough


def _at_most(number: int, ceiling: int) -> int:
    return number if ceiling == resource.RLIM_INFINITY else min(number, ceiling)


def _starts(limit: int, ceiling: int) -> bool:
    """Whether a process can be started under a limit."""
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, ceiling))
    try:
        child = os.fork()
    except BlockingIOError:
        return False
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True
