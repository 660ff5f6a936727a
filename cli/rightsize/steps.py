"""Step times of a workload that runs: from the log of one of its pods, else from what the log agent writes on them."""

import time
from typing import TYPE_CHECKING

from kopt.formats.joblog.progress import ProgressReader
from kopt.policies.rightsizing.step_times import Marks, StepMark, StepTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object

_KEEP_S = 7200.0


class Steps:
    """Follows the log of a container from ``since_s`` (Unix seconds) on, while ``run`` does."""

    def __init__(self, kube: "Kube", pod: "Object", container: str, since_s: float, sample_s: float) -> None:
        from kopt.agents.logtail.streams import Instance, StreamSource

        metadata = pod["metadata"]
        instance = Instance(metadata["namespace"], metadata["name"], container)
        position = {"since": int(since_s), "number": 1}
        self._source = StreamSource(kube, instance, "log", metadata["uid"], time.time, position)
        self._reader, self._sample_s = ProgressReader(), sample_s
        self._logged, self._annotated = Marks(_KEEP_S), Marks(_KEEP_S)
        self.caught_up = False
        """Whether what the log had to say of the past is read."""

    async def run(self) -> None:
        """Until cancelled, or the container's log has ended."""
        async for reading in self._source.readings(_at_once):
            for line in reading.lines:
                self._reader.read(line.text, line.at_s)
                if (progress := self._reader.progress()) is not None:
                    self._logged.add(StepMark(progress.at_s, progress.step))
            self.caught_up = self.caught_up or reading.present

    def annotated(self, pods: "Sequence[Object]") -> None:
        """What the log agent, or the trainer itself, has written on the pods."""
        from kopt.cluster.objects.progress import progress_of

        if (progress := progress_of(pods)) is not None:
            self._annotated.add(StepMark(progress.at_s, progress.step))

    @property
    def _marks(self) -> Marks:
        return self._logged if len(self._logged) > 1 else self._annotated

    @property
    def times(self) -> list[StepTime]:
        return self._marks.times(self._sample_s)

    @property
    def last_s(self) -> float | None:
        """When the last step was done; None before the first."""
        return self._marks.last_s


async def _at_once() -> None:
    """Nothing slows the reading down."""
