"""Commands that change a cluster and put back what they changed where they are interrupted."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.progress import print_status

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube

T = TypeVar("T")


_ENDED = "it was ended before anything was decided, and taken back where it was applied"


def run_interruptibly(work: Coroutine[Any, Any, T], ended: str = _ENDED) -> T:
    """SIGTERM ends it as Ctrl-C does: once; what is being taken back is not interrupted. Raises Refused, which says
    ``ended``, where it was."""

    async def guarded() -> T:
        task = asyncio.ensure_future(work)
        for name in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(name, _cancel_once(task))
        return await task

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise Refused(ended) from None


def _cancel_once(task: "asyncio.Future[Any]") -> Callable[[], None]:
    pending = [task]

    def cancel() -> None:
        if pending:
            pending.pop().cancel()
            print_status("ending; another Ctrl-C changes nothing")

    return cancel


async def with_kube(kubeconfig: Path | None, work: "Callable[[Kube], Awaitable[T]]") -> T:
    """Raises Refused for what the cluster does not do."""

    async with open_cluster(kubeconfig, failed="the cluster does not do it") as kube:
        return await work(kube)
