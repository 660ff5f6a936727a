"""How much a confined command has written: into its private memory, or else into the machine's temporary folder."""

import os
from pathlib import Path

from kopt.tracing.confine.mounts import home


class Storage:
    """Watches the file system below ``base``, as the process ``first`` sees it and as the machine does."""

    def __init__(self, base: str, first: int) -> None:
        self._base, self._inside = Path(base), Path(f"/proc/{first}/root{home(base)}")
        self._device = self._base.stat().st_dev
        self._before = _used(self._base)

    def used(self) -> tuple[int, int]:
        """Bytes in private memory, and bytes by which the machine's own file system has filled up meanwhile.

        The second counts what everybody writes there: files that a script deletes and keeps open are seen by nothing
        else. It is 0 where there is private memory.
        """
        try:
            if self._inside.stat().st_dev != self._device:
                return _used(self._inside), 0
        except OSError:
            pass  # it has ended, or has not come so far
        return 0, max(0, _used(self._base) - self._before)


def _used(path: Path) -> int:
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
