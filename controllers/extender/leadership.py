"""Which replica answers: the one with the Lease, once it knows what the one before it bound."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kopt.cluster.client.api import ApiError, Kube, NotFound
from kopt.cluster.client.resources import COMPONENT_LABEL, LEASES, OURS, PODS, Object
from kopt.cluster.client.versions import number
from kopt.cluster.runtime.informer import Change, Informer
from kopt.cluster.runtime.lease import Deposed, Leader, LeaseSettings

_LOG = logging.getLogger(__name__)
LEASE = "kopt-extender"
LEADER_LABEL = "kaiwo.ai/leader"
"""On the pod of the replica that answers; the Service selects by it."""
_RETRY_S = 1.0


@dataclass(frozen=True)
class LeadershipSettings:
    """Times in seconds."""

    lease: LeaseSettings | None = LeaseSettings(6.0, 4.0, 1.0)
    """None runs without election, for a single replica."""
    namespace: str = "kopt-system"
    identity: str = ""
    pod: str = ""
    """This replica's pod, which is labelled while it leads; empty where it is none."""
    settle_s: float = 1.0
    """A new leader waits so long for the last bindings of the old one, unless that one has handed over."""


class Leadership:
    """``version`` is the resourceVersion up to which this replica has seen the pods."""

    def __init__(self, kube: Kube, settings: LeadershipSettings, version: Callable[[], str]) -> None:
        self._kube, self._settings, self._version = kube, settings, version
        self.leader = (
            Leader(kube, settings.namespace, LEASE, settings.identity, settings.lease) if settings.lease else None
        )
        self._term, self._serves_from_s = 0, float("inf")
        self._campaign: asyncio.Task[None] | None = None

    @property
    def serves(self) -> bool:
        """Whether this replica leads and has caught up with the one before it."""
        leader = self.leader
        if leader is None:
            return True
        if not leader.leading:
            return False
        now_s = time.monotonic()
        if leader.term != self._term:
            self._term, self._serves_from_s = leader.term, now_s + self._settings.settle_s
        if now_s < self._serves_from_s and _reached(self._version(), leader.inherited):
            self._serves_from_s = now_s
        return now_s >= self._serves_from_s

    async def run(self) -> None:
        """Campaign until `hand_over`."""
        if self.leader is None:
            return
        async with asyncio.TaskGroup() as group:
            self._campaign = group.create_task(self.leader.run())
            group.create_task(self._watch(self.leader))
            if self._settings.pod:
                group.create_task(self._publish_version(self.leader))

    async def hand_over(self, word: str) -> None:
        """Give the Lease back, with the version at which everything that this replica bound was seen; "" for none."""
        if self.leader is None or self._campaign is None:
            return
        self.leader.last_word = word
        self._campaign.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._campaign

    async def _watch(self, leader: Leader) -> None:
        """Take a released Lease at once, not at the next poll."""

        def on_lease(change: Change[str]) -> None:
            if change.new == "":
                leader.hurry()

        selector = f"metadata.name={LEASE}"
        leases = Informer(self._kube, LEASES, namespace=self._settings.namespace, field_selector=selector, keep=_holder)
        leases.subscribe(on_lease)
        await leases.run()

    async def _publish_version(self, leader: Leader) -> None:
        while True:
            with contextlib.suppress(Deposed):
                async with leader.lead():
                    while not await self._labelled():
                        await asyncio.sleep(_RETRY_S)
                    await asyncio.Event().wait()

    async def _labelled(self) -> bool:
        """Label this replica's pod and no other; False where that has to be tried again."""
        settings = self._settings
        try:
            await self._label(settings.pod, "true")
            mine = f"{OURS},{COMPONENT_LABEL}=extender,{LEADER_LABEL}=true"
            for pod in (await self._kube.list(PODS, settings.namespace, label_selector=mine)).items:
                if (name := pod["metadata"]["name"]) != settings.pod:
                    with contextlib.suppress(NotFound):
                        await self._label(name, None)
        except NotFound:
            _LOG.info("there is no pod %s/%s to label", settings.namespace, settings.pod)
        except ApiError as error:
            _LOG.warning("pod %s/%s is not labelled as the leader's: %s", settings.namespace, settings.pod, error)
            return False
        return True

    async def _label(self, pod: str, value: str | None) -> None:
        await self._kube.patch(PODS, pod, {"metadata": {"labels": {LEADER_LABEL: value}}}, self._settings.namespace)


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _reached(version: str, wanted: str | None) -> bool:
    """Whether one resourceVersion is at or past another."""
    return wanted is not None and number(version) >= number(wanted) > 0
