"""How the pods of a Workload stand with requests to save. All of it is on the pods."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.saving import saving_by
from kopt.controllers.preemption.views import PodView
from kopt.core.saving import REQUEST_ANNOTATION, PodSaving, SaveRequest
from kopt.policies.saving import SaveState, save_state, unasked


@dataclass(frozen=True)
class Saving:
    """The pods that hold its GPUs, what they say, and what that makes of the Workload.

    ``request`` is what they were asked last, where that counts still.
    """

    pods: tuple[PodView, ...]
    views: tuple[PodSaving, ...]
    state: SaveState
    since_s: float
    request: SaveRequest | None = None

    @classmethod
    def of(cls, pods: Sequence[PodView], now_s: float, since_s: float) -> "Saving":
        """Requests that were over before ``since_s`` do not count."""
        own = tuple(one for one in pods if one.gpus)
        views = tuple(saving_by(one.notes) for one in own)
        asked = [SaveRequest.from_text(one.notes.get(REQUEST_ANNOTATION))
                 for one, still in zip(own, unasked(views, since_s), strict=True) if not still]  # fmt: skip
        counted = [one for one in asked if one and one.until_s > since_s]
        newest = max(counted, key=lambda one: one.at_s, default=None)
        return cls(own, views, save_state(views, now_s, since_s), since_s, newest)

    @property
    def left(self) -> list[PodView]:
        """Who is still to be asked."""
        still = unasked(self.views, self.since_s)
        return [one for one, asks in zip(self.pods, still, strict=True) if asks]

    @property
    def saved_at_s(self) -> float | None:
        """When it was asked, where it has saved since."""
        return self.request.at_s if self.request and self.state is SaveState.SAVED else None

    def is_for(self, waiting: str) -> bool:
        """Whether it was asked for this one, and an answer may still come."""
        ours = self.request is not None and self.request.for_whom == waiting
        return ours and self.state in (SaveState.ASKED, SaveState.ASKABLE)
