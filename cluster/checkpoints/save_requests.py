"""The state of save requests on the pods of a Workload. All of it is on the pods."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.holds.checkpoint_request import saving_by
from kopt.cluster.workloads.kueue.objects import GpuPod
from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION, PodSaving, SaveRequest
from kopt.core.workload.save_state import SaveState, save_state, unasked


@dataclass(frozen=True)
class Saving:
    """The pods that hold its GPUs, what they say, and what that makes of the Workload.

    ``request`` is what they were asked last, where that counts still.
    """

    pods: tuple[GpuPod, ...]
    views: tuple[PodSaving, ...]
    state: SaveState
    since_s: float
    request: SaveRequest | None = None

    @classmethod
    def of(cls, pods: Sequence[GpuPod], now_s: float, since_s: float) -> "Saving":
        """Requests that ended before ``since_s`` do not count."""
        own = tuple(pod for pod in pods if pod.gpus)
        views = tuple(saving_by(pod.annotations) for pod in own)
        requests = [
            SaveRequest.from_text(pod.annotations.get(REQUEST_ANNOTATION))
            for pod, still in zip(own, unasked(views, since_s), strict=True)
            if not still
        ]
        counted = [save_request for save_request in requests if save_request and save_request.until_s > since_s]
        newest = max(counted, key=lambda save_request: save_request.at_s, default=None)
        return cls(own, views, save_state(views, now_s, since_s), since_s, newest)

    @property
    def unasked_pods(self) -> list[GpuPod]:
        """Pods that are still to be asked."""
        still = unasked(self.views, self.since_s)
        return [pod for pod, requests in zip(self.pods, still, strict=True) if requests]

    @property
    def saved_at_s(self) -> float | None:
        """When it was asked, if it has saved since."""
        return self.request.at_s if self.request and self.state is SaveState.SAVED else None

    def is_for(self, preemptor: str) -> bool:
        """Whether it was asked for this preemptor, and may still save."""
        ours = self.request is not None and self.request.for_whom == preemptor
        return ours and self.state in (SaveState.ASKED, SaveState.ASKABLE)
