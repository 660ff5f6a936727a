"""Variables that a launcher sets, for scripts that ask for them without one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..session import Session

_ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def install(session: Session) -> None:
    """``os.environ["LOCAL_RANK"]`` of a process without a launcher is that of a single launched one.

    Asking whether it is there (``in``, ``get``) is answered as before: scripts choose their way by that.
    """
    kind: Any = type(os.environ)

    class Launched(kind):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            try:
                return kind.__getitem__(self, key)
            except KeyError:
                if key not in _ALONE:
                    raise
                session.writer.assumption(f"{key} is not set: taken as one process that torchrun started")
                for name, value in _ALONE.items():
                    self.setdefault(name, value)
                return kind.__getitem__(self, key)

        def get(self, key: Any, default: Any = None) -> Any:
            return kind.__getitem__(self, key) if key in self else default

        def __contains__(self, key: object) -> bool:
            try:
                kind.__getitem__(self, key)
            except KeyError:
                return False
            return True

        def setdefault(self, key: Any, value: Any) -> Any:
            if key not in self:
                self[key] = value
            return kind.__getitem__(self, key)

        def pop(self, key: Any, *default: Any) -> Any:
            if key not in self:
                if default:
                    return default[0]
                raise KeyError(key)
            value = kind.__getitem__(self, key)
            del self[key]
            return value

    os.environ.__class__ = Launched
