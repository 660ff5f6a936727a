"""Stand-ins for what cannot run here, each reported in the stream when it is used.

A module of this folder has ``install(session)``; libraries that the script imports later are patched by ``imports``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    attention,
    bits,
    capacity,
    compilation,
    distributed,
    hub,
    launched,
    lazy,
    leaving,
    loading,
    notebook,
    optimizers,
    recurrent,
    sources,
)

if TYPE_CHECKING:
    from ..session import Session


def install(session: Session) -> None:
    """Puts all of them in place."""
    for module in (
        attention,
        recurrent,
        optimizers,
        loading,
        lazy,
        bits,
        capacity,
        compilation,
        launched,
        leaving,
        notebook,
        distributed,
        hub,
        sources,
    ):
        module.install(session)
