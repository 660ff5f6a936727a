"""What fails is tried again: one triage of errors for all controllers.

What met a change by others, or a recent one of our own, is retried soon: the newer state is on its way through
the watch. What the server refuses waits for a person, and what failed otherwise for the server.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from kopt.cluster.client.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from kopt.cluster.runtime.isolation import Isolation, Subject

_LOG = logging.getLogger(__name__)
SOON_S, AFTER_ERROR_S = 1.0, 2.0
R = TypeVar("R", bound=float | None)


def is_change(error: ApiError) -> bool:
    """Whether the object has changed or is gone since it was read: no failure, but a reason to retry."""
    return isinstance(error, Conflict | NotFound)


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Seconds until the next attempt, by what an attempt met."""

    changed_s: float = SOON_S
    failed_s: float = AFTER_ERROR_S
    missing_s: float | None = None
    """After NotFound, if that is no change that the watch will show: the kind or the namespace is missing."""
    refused_s: float | None = None
    """After Forbidden, and Invalid where no ``Isolation`` guards the attempt, if not ``failed_s``."""

    def after(self, error: ApiError) -> float:
        if isinstance(error, NotFound) and self.missing_s is not None:
            return self.missing_s
        if isinstance(error, Forbidden | Invalid) and self.refused_s is not None:
            return self.refused_s
        return self.changed_s if is_change(error) else self.failed_s


class Retrying:
    """For reconcilers: each object is handled by itself, and what goes wrong with it does not hold up the others."""

    errors = 0
    """Attempts that failed."""
    broken_off = 0
    """Those, and what met a change by others."""

    def __init__(self, isolation: Isolation, pauses: Pauses | None = None) -> None:
        self._isolation, self._pauses = isolation, pauses or Pauses()

    async def _tried(self, work: Callable[[], Awaitable[R]], about: Subject | None = None) -> R | float:
        """What ``work`` returns, or in how many seconds to try it again. An object that failed is left alone for
        growing pauses or until it changes; what is about none in particular is tried again soon. Raises Deposed."""
        if about is not None and (wait_s := self._isolation.waits_s(about)) > 0:
            return wait_s
        what = f"{about.kind} {about.namespace}/{about.name}" if about is not None else "a pass"
        try:
            with self._isolation.guard(about or self._isolation.itself) as attempt:
                return await work()
            self.errors += 1
            again_s = attempt.again_s if about is not None else self._pauses.failed_s
        except ApiError as error:
            # LaterTerm among them: as a Conflict it concerns this object alone.
            again_s = self._pauses.after(error)
            if is_change(error):
                _LOG.info("%s: it has changed meanwhile: %s", what, error)
            else:
                _LOG.warning("%s failed and is tried again: %s", what, error)
                self.errors += 1
        self.broken_off += 1
        return again_s
