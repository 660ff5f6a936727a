"""A moment at which workers may start their work again, as the log agent says on a job's pods."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kopt.cluster.client.resources import Object
    from kopt.core.workload.checkpoint import JobStatus

STALE_S = 90.0
"""What the log agent writes on pods is written again each minute."""


def status_of(pods: "Sequence[Object]", now_s: float) -> "JobStatus | None":
    """What the log agent says of the job's checkpoints; None where it says nothing, or has not lately."""
    from kopt.cluster.checkpoints.status import recent_status
    from kopt.cluster.objects.fields import mapping

    reported = recent_status((mapping(pod, "metadata", "annotations") for pod in pods), now_s, STALE_S)
    return None if reported is None else reported.status


async def until_safe(
    read: "Callable[[], Awaitable[Sequence[Object]]]",
    within_s: float,
    poll_s: float,
    *,
    suffices: "Callable[[JobStatus], bool]" = lambda status: status.safe,
    say: Callable[[], None] = lambda: None,
) -> None:
    """Until the log agent says on the pods of ``read`` what ``suffices``, ``within_s`` seconds at most. Without a word
    of the agent's, and where pods may not be read, at once: nothing tells which moment is better. A server that does
    not answer is asked again. ``say`` is called once, before it waits."""
    from kopt.cluster.client.api import ApiError, Forbidden

    until_s, is_announced = time.monotonic() + within_s, False
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            status = status_of(await read(), time.time())
        except Forbidden:
            return
        except ApiError:
            pass
        else:
            if status is None or suffices(status):
                return
        if not is_announced:
            say()
            is_announced = True
        await asyncio.sleep(min(poll_s, left_s))
