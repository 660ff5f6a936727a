"""Who a bearer token belongs to, and what they may do: TokenReview and SubjectAccessReview, remembered for a while.

Tokens are kept as digests only and never logged.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import ACCESS_REVIEWS, JOBS, TOKEN_REVIEWS, Object

_LONGEST_TOKEN = 16_384
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class Caller:
    """An authenticated user or service account, as the API server names it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReviewSettings:
    """Times in seconds. A token that is revoked is still accepted for up to ``accepted_s``."""

    accepted_s: float = 60.0
    refused_s: float = 5.0
    most: int = 4096
    """Answers kept; the least recently used leave first."""
    audiences: tuple[str, ...] = ()
    """Audiences that a token must be for; empty means the API server's own."""


class TokenReviewer:
    """Asks the API server; raises ApiError when it cannot answer. Needs ``system:auth-delegator``."""

    def __init__(
        self, kube: Kube, settings: ReviewSettings | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kube, self._settings = kube, settings or ReviewSettings()
        self._callers: _Remembered[bytes, Caller | None] = _Remembered(self._settings, clock)
        self._rights: _Remembered[tuple[Caller, str, str], bool] = _Remembered(self._settings, clock)
        self._on_objects: _Remembered[tuple[Caller, str, str, str, str], bool] = _Remembered(self._settings, clock)

    async def caller(self, token: str) -> Caller | None:
        """The token's owner; None for one that is not, or no longer, valid."""
        if not token or len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            return None
        digest = hashlib.sha256(token.encode()).digest()
        return await self._callers.get(digest, lambda: self._review(token))

    async def may(self, caller: Caller, verb: str, path: str) -> bool:
        """Whether RBAC lets the caller use an HTTP path (``nonResourceURLs``) with a verb in lower case."""
        return await self._rights.get(
            (caller, verb, path),
            lambda: self._review_access(caller, {"nonResourceAttributes": {"verb": verb, "path": path}}),
        )

    async def may_on_jobs(self, caller: Caller, verb: str, namespace: str) -> bool:
        """Whether RBAC lets the caller use a verb on the Jobs of a namespace."""
        return await self.may_on(caller, verb, JOBS.group, JOBS.plural, namespace)

    async def may_on(self, caller: Caller, verb: str, group: str, plural: str, namespace: str = "") -> bool:
        """Whether RBAC lets the caller use a verb on a resource of a namespace; without one, on all of its objects."""
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": plural}
        return await self._on_objects.get(
            (caller, verb, group, plural, namespace),
            lambda: self._review_access(caller, {"resourceAttributes": attributes}),
        )

    async def _review(self, token: str) -> Caller | None:
        spec: Object = {"token": token}
        if self._settings.audiences:
            spec["audiences"] = list(self._settings.audiences)
        answer = await self._kube.create(TOKEN_REVIEWS, {"spec": spec})
        status = answer.get("status") or {}
        if not status.get("authenticated"):
            return None
        # An API server that does not know about audiences does not answer with any.
        if self._settings.audiences and not set(self._settings.audiences) & set(status.get("audiences") or ()):
            return None
        user = status.get("user") or {}
        return Caller(user.get("username", ""), user.get("uid", ""), tuple(user.get("groups") or ()))

    async def _review_access(self, caller: Caller, attributes: Object) -> bool:
        spec = {"user": caller.name, "uid": caller.uid, "groups": list(caller.groups)} | attributes
        answer = await self._kube.create(ACCESS_REVIEWS, {"spec": spec})
        return bool((answer.get("status") or {}).get("allowed"))


class _Remembered(Generic[K, V]):
    """Answers by key; a question that is being asked already is waited for and not asked again."""

    def __init__(self, settings: ReviewSettings, clock: Callable[[], float]) -> None:
        self._settings, self._clock = settings, clock
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        result = self._answers.get(key)
        if result is not None and self._clock() < result[0]:
            self._answers.move_to_end(key)
            return result[1]
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # Shielded: the first who asked may go away while others wait for the answer.
        return await asyncio.shield(task)

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        answer = await ask()
        lasts_s = self._settings.accepted_s if answer else self._settings.refused_s
        self._answers[key] = (self._clock() + lasts_s, answer)
        self._answers.move_to_end(key)
        while len(self._answers) > self._settings.most:
            self._answers.popitem(last=False)
        return answer
