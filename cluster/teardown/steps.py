"""A step of switching off, and what became of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kopt.cluster.client.api import ApiError, Conflict, Invalid, Kube, NotFound, Unreachable
from kopt.cluster.client.resources import (
    Object,
    Resource,
)

_ATTEMPTS = 5
POLL_EVERY_S = 0.25


@dataclass(frozen=True)
class Step:
    """One thing to do; ``action`` is delete, scale to zero, release, or wait."""

    action: str
    resource: Resource
    namespace: str
    name: str
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a step; ``error`` is empty when it was done (or would be, in a dry run)."""

    step: Step
    error: str = ""


async def find(
    kube: Kube, resource: Resource, selector: str, namespace: str = ""
) -> tuple[list[Object], Outcome | None]:
    try:
        return (await kube.list(resource, namespace, label_selector=selector)).items, None
    except NotFound:
        # A kind that is not installed has no objects.
        return [], None
    except Unreachable:
        raise
    except ApiError as error:
        return [], Outcome(Step("find", resource, namespace, ""), str(error))


async def do(step: Step, act: Callable[[], Awaitable[object]], dry_run: bool) -> Outcome:
    if dry_run:
        return Outcome(step)
    try:
        await act()
    except NotFound:
        pass
    except ApiError as error:
        return Outcome(step, str(error))
    return Outcome(step)


async def write_newest(
    kube: Kube, resource: Resource, document: Object, write: Callable[[Object], Awaitable[None]], wait_s: float = 0.0
) -> None:
    """``write``, and after a Conflict again with the object as it is then. What the server calls invalid is tried for
    ``wait_s``. Raises ApiError."""
    ends_s, attempts = time.monotonic() + wait_s, _ATTEMPTS
    while True:
        try:
            await write(document)
        except Conflict:
            attempts -= 1
            if not attempts:
                raise
        except Invalid:
            if time.monotonic() >= ends_s:
                raise
            await asyncio.sleep(POLL_EVERY_S)
        else:
            return
        metadata = document["metadata"]
        document = await kube.get(resource, metadata["name"], metadata.get("namespace", ""))
