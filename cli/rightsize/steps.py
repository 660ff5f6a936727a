"""Step times of a workload that runs: from the logs of its pods, else from what the log agent writes on them."""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from kopt.formats.joblog.progress import ProgressReader
from kopt.policies.rightsizing.step_times import Marks, StepMark, StepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object

_KEEP_S = 7200.0


class _Followed:
    """The log of a container from ``since_s`` (Unix seconds) on."""

    def __init__(self, kube: "Kube", pod: "Object", container: str, since_s: float) -> None:
        from kopt.agents.logtail.streams import Instance, StreamSource

        metadata = pod["metadata"]
        instance = Instance(metadata["namespace"], metadata["name"], container)
        position = {"since": int(since_s), "number": 1}
        self._source = StreamSource(kube, instance, "log", metadata["uid"], time.time, position)
        self._reader, self.marks = ProgressReader(), Marks(_KEEP_S)
        self.caught_up = False
        self.following = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Until cancelled, or the container's log has ended."""
        async for reading in self._source.readings(_at_once):
            for line in reading.lines:
                self._reader.read(line.text, line.at_s)
                if (progress := self._reader.progress()) is not None:
                    self.marks.add(StepMark(progress.at_s, progress.step))
            self.caught_up = self.caught_up or reading.present


class Steps:
    """Follows the logs of ``container`` in pods of one workload, until it is left."""

    def __init__(self, kube: "Kube", container: str, since_s: float, sample_s: float) -> None:
        self._kube, self._container, self._since_s, self._sample_s = kube, container, since_s, sample_s
        self._followed: dict[str, _Followed] = {}
        self._annotated = Marks(_KEEP_S)

    async def __aenter__(self) -> "Steps":
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._followed.values():
            each.following.cancel()
        for each in self._followed.values():
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each.following

    def follow(self, pods: "Sequence[Object]") -> None:
        """Also these pods, from their beginning where they are younger than what is read."""
        for pod in pods:
            if (uid := pod["metadata"]["uid"]) not in self._followed:
                self._followed[uid] = _Followed(self._kube, pod, self._container, self._since_s)

    @property
    def caught_up(self) -> bool:
        """Whether what the logs had to say of the past is read."""
        return all(each.caught_up for each in self._followed.values())

    def annotated(self, pods: "Sequence[Object]") -> None:
        """What the log agent, or the trainer itself, has written on the pods."""
        from kopt.cluster.objects.progress import progress_of

        if (progress := progress_of(pods)) is not None:
            self._annotated.add(StepMark(progress.at_s, progress.step))

    @property
    def _marks(self) -> list[Marks]:
        logged = [each.marks for each in self._followed.values() if len(each.marks) > 1]
        return logged or [self._annotated]

    @property
    def times(self) -> list[StepTime]:
        """Of whichever pod shows the steps: another one may after a restart, and several may show the same."""
        result: list[StepTime] = []
        for each in sorted((each for marks in self._marks for each in marks.times(self._sample_s)), key=_end):
            if not result or each.start_s >= result[-1].end_s:
                result.append(each)
        return result

    @property
    def last(self) -> StepMark | None:
        """The newest step; None before the first."""
        return max((mark for marks in self._marks if (mark := marks.last)), key=lambda mark: mark.at_s, default=None)

    @property
    def last_s(self) -> float | None:
        """When the last step was done; None before the first."""
        return None if self.last is None else self.last.at_s

    def again_s(self, since_s: float, gap_s: float) -> float | None:
        """When a step was first done after the program had started again; None where it has not."""
        times = [at_s for marks in self._marks if (at_s := marks.again_s(since_s, gap_s)) is not None]
        return min(times, default=None)


def _end(each: StepTime) -> float:
    return each.end_s


async def _at_once() -> None:
    """Nothing slows the reading down."""
