"""The switches of the cluster as one process sees them: from memory, as soon as they are set, equal in all replicas.

Until the object has been read nothing acts. Without the object, or where its kind is not installed, everything is on.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from kopt.cluster.client.api import AlreadyExists, Conflict, Kube, NotFound
from kopt.cluster.client.resources import FEATURE_ROLLOUTS, SELF_REVIEWS, Object
from kopt.cluster.objects.custom.feature_rollout import ROLLOUT_NAME, changes_of, rollout_document, switches_of
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.events import NORMAL, WARNING, EventRecorder
from kopt.cluster.runtime.informer import Change as InformerChange
from kopt.cluster.runtime.informer import Informer
from kopt.core.decision import Mode
from kopt.core.switches import FEATURES, OFF, Flip, Owner, Switches, features_of

AUDIT = logging.getLogger("kopt.decisions")
_ATTEMPTS = 8
_ALL_OFF = Switches({feature.name: OFF for feature in FEATURES})
FLIPPED = "FeatureSwitched"
"""Reason of the event on the object."""
Change = Callable[[Switches], Switches | None]
"""What the switches should be after those that were read; None where nothing changes."""


class Gate(Protocol):
    """Whether a feature acts on what an owner has, now."""

    def mode(self, feature: str, owner: Owner, mode: Mode) -> Mode:
        """``mode``, or OBSERVE where the feature does not act."""
        ...

    def is_off(self, feature: str) -> bool:
        """Whether it acts on nothing at all."""
        ...


class Open:
    """Everything is on, as without switches."""

    def mode(self, feature: str, owner: Owner, mode: Mode) -> Mode:
        return mode

    def is_off(self, feature: str) -> bool:
        return False


OPEN = Open()


class LiveSwitches:
    """``informer`` has to run. ``controller`` names whose features ``kopt_feature_percent`` shows."""

    def __init__(self, kube: Kube, controller: str = "") -> None:
        self.informer: Informer[Switches] = Informer(
            kube, FEATURE_ROLLOUTS, field_selector=f"metadata.name={ROLLOUT_NAME}", keep=switches_of
        )
        self.features = tuple(feature.name for feature in features_of(controller))

    @property
    def now(self) -> Switches:
        if not self.informer.synced.is_set():
            return _ALL_OFF
        return self.informer.objects.get(("", ROLLOUT_NAME), Switches())

    def mode(self, feature: str, owner: Owner, mode: Mode) -> Mode:
        return mode if self.now.includes(feature, owner) else Mode.OBSERVE

    def is_off(self, feature: str) -> bool:
        return self.now.percent(feature) == OFF

    def on_change(self, handler: Callable[[], object]) -> None:
        """Call ``handler`` whenever a switch may have changed."""

        def changed(change: InformerChange[Switches]) -> None:
            if change.old != change.new:
                handler()

        self.informer.subscribe(changed)

    def register(self, registry: CollectorRegistry) -> None:
        """``kopt_feature_percent`` of the controller's features."""
        registry.register(_Percents(self))


class _Percents:
    def __init__(self, switches: LiveSwitches) -> None:
        self._switches = switches

    def describe(self) -> list[GaugeMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family, now = self._family(), self._switches.now
        for feature in self._switches.features:
            family.add_metric([feature], now.percent(feature))
        return [family]

    @staticmethod
    def _family() -> GaugeMetricFamily:
        text = "Percentage on which a feature acts; 0 is off."
        return GaugeMetricFamily("kopt_feature_percent", text, labels=["feature"])


async def read_switches(kube: Kube) -> Switches:
    """Those of now. Raises ApiError."""
    try:
        return switches_of(await kube.get(FEATURE_ROLLOUTS, ROLLOUT_NAME))
    except NotFound:
        return Switches()


async def user_of(kube: Kube) -> str:
    """Who we are to the API server. Raises ApiError."""
    return text(await kube.create(SELF_REVIEWS, {}), "status", "userInfo", "username")


async def write_switches(kube: Kube, change: Change, *, creates: bool = False) -> tuple[Switches, Flip | None]:
    """The switches after a change and the flip; None where there was nothing to change.

    The change and its record are one write, under the condition that nobody has written in between: who comes second
    reads again and decides again. Without the object it is made, where ``creates``. Raises ApiError, and what
    ``change`` raises.
    """
    for _ in range(_ATTEMPTS):
        try:
            document: Object | None = await kube.get(FEATURE_ROLLOUTS, ROLLOUT_NAME)
        except NotFound:
            if not creates:
                raise
            document = None
        before = Switches() if document is None else switches_of(document)
        after = change(before)
        if after is None:
            return before, None
        try:
            if document is None:
                await kube.create(FEATURE_ROLLOUTS, rollout_document(after))
            else:
                condition = {"metadata": {"resourceVersion": document["metadata"]["resourceVersion"]}}
                await kube.patch(FEATURE_ROLLOUTS, ROLLOUT_NAME, changes_of(before, after) | condition)
        except (Conflict, AlreadyExists):
            continue
        flip = after.history[0]
        _audit(flip)
        return after, flip
    raise Conflict(409, "Conflict", f"{FEATURE_ROLLOUTS.kind} {ROLLOUT_NAME} changes too fast; try again")


def sentence_of(flip: Flip) -> str:
    return f"{flip.feature}: {flip.before} % to {flip.after} % by {flip.by}: {flip.reason}"


def _audit(flip: Flip) -> None:
    about = {
        "policy": "switches",
        "feature": flip.feature,
        "before": flip.before,
        "after": flip.after,
        "by": flip.by,
        "alarm": flip.alarm,
        "reason": flip.reason,
    }
    AUDIT.info("FeatureRollout %s", flip.feature, extra={"decision": about})


async def announce(kube: Kube, flip: Flip) -> None:
    """An event on the object, for ``kubectl describe``; without the right to write events the history has to do."""
    recorder = EventRecorder(kube, "kaiwo.ai/features", "kopt")
    kind = WARNING if flip.alarm else NORMAL
    regarding = FEATURE_ROLLOUTS.reference("", ROLLOUT_NAME)
    recorder.record(regarding, FLIPPED, "Switching", sentence_of(flip), kind=kind)
    await recorder.flush()
