"""Scripts that exit by ``os._exit``: what they did until then is reported first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..session import Session


def install(session: Session) -> None:
    """Patches ``os._exit`` of this process; those that it forks have nothing to tell."""
    own, original = os.getpid(), os._exit

    def leave(status: int) -> Any:
        if os.getpid() == own and not session.writer.closed:
            if status:
                session.failed(f"the script exited with {status!r}", None)
            session.finished()
        original(status)

    patched: Any = os
    patched._exit = leave
