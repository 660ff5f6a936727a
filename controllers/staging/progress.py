"""The progress of downloads, from the logs of their pods: a line of JSON a second (``kopt stage -o json``)."""

import asyncio
import time
from collections.abc import Callable, Iterable

from kopt.cluster.client.api import ApiError, Forbidden, Kube, NotFound
from kopt.cluster.runtime.backoff import Backoff
from kopt.controllers.staging.views import DownloadPod
from kopt.core.staging.manifest import Progress, StagingError
from kopt.core.staging.staged_data import Amounts
from kopt.core.untrusted import decode_mapping
from kopt.policies.staging.pod import CONTAINER

_LONGEST_LINE = 64 << 10
_OVERLAP_S = 2


class LogProgress:
    """Follows the log of every running pod; ``changed`` is called when one has reported progress. Logs that may not be
    read are skipped: everything but the figures works without them."""

    def __init__(self, kube: Kube, changed: Callable[[], None]) -> None:
        self._kube, self._changed = kube, changed
        self._amounts: dict[str, Amounts] = {}
        self._following: dict[str, asyncio.Task[None]] = {}

    def follow(self, pods: Iterable[DownloadPod]) -> None:
        """Follow these pods from now on, and no others."""
        pods_by_uid = {item.uid: item for item in pods}
        for uid in [uid for uid in self._following if uid not in pods_by_uid]:
            self._following.pop(uid).cancel()
            self._amounts.pop(uid, None)
        for uid, pod in pods_by_uid.items():
            if uid not in self._following and (pod.running or pod.ended):
                self._following[uid] = asyncio.create_task(self._follow(pod))

    def amounts(self, pod_uid: str) -> Amounts | None:
        return self._amounts.get(pod_uid)

    async def close(self) -> None:
        tasks = list(self._following.values())
        self._following.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, pod: DownloadPod) -> None:
        backoff, since_s = Backoff(0.5, 10.0), None
        while True:
            try:
                rest = b""
                async for chunk in self._kube.follow_log(*pod.key, CONTAINER, since_s=since_s):
                    *lines, rest = (rest + chunk).split(b"\n")
                    rest = rest[-_LONGEST_LINE:]
                    self._consume(pod.uid, lines)
            except (NotFound, Forbidden):
                return
            except ApiError:
                since_s = round(time.time()) - _OVERLAP_S
                await asyncio.sleep(backoff.next_s())
            else:
                return

    def _consume(self, uid: str, lines: list[bytes]) -> None:
        result = next((progress for progress in map(progress_of, reversed(lines)) if progress is not None), None)
        if result is not None:
            self._amounts[uid] = Amounts(
                result.bytes,
                result.bytes_done,
                result.objects,
                result.objects_done,
                result.bytes_per_second,
                result.remaining_s,
                result.updated_at,
            )
            self._changed()


def progress_of(line: bytes) -> Progress | None:
    """The progress in a line of a log, behind its time; None for any other line."""
    try:
        return Progress.from_dict(decode_mapping(line[line.index(b"{") :].decode()))
    except (ValueError, StagingError):
        return None
