"""Which volumes of a pod no other job writes into, by the access modes of its claims and by who else mounts them.

A claim that is ReadWriteOncePod is one pod's. One that is ReadWriteOnce is one node's, so that the pods of this node
tell who shares it; a driver that lets two nodes mount it all the same is not recognised.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.agents.logtail.pods import FollowedPod, claims_of, job_of
from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import PERSISTENT_VOLUME_CLAIMS, PODS, UNFINISHED_PODS, Object
from kopt.cluster.runtime.informer import Informer

_LOG = logging.getLogger(__name__)
_OF_A_POD, _OF_A_NODE = ["ReadWriteOncePod"], ["ReadWriteOnce"]


@dataclass(frozen=True)
class Claim:
    """A claim of a pod; ``volume`` is its PersistentVolume, as the kubelet calls the folder."""

    name: str
    volume: str
    modes: tuple[str, ...]


@dataclass(frozen=True)
class Mounts:
    """The claims that a pod may write into."""

    job: str
    claims: frozenset[str]


def mounts_of(document: Object) -> Mounts | None:
    """None for a pod that writes into no claim."""
    claims = claims_of(document["spec"])
    return Mounts(job_of(document["metadata"]), frozenset(claims)) if claims else None


class NodeClaims:
    """Of the pods that ``fields`` selects, all of one node. ``run`` keeps track of who mounts what."""

    def __init__(self, kube: Kube, fields: str) -> None:
        self._kube = kube
        self.pods: Informer[Mounts] = Informer(kube, PODS, keep=mounts_of, field_selector=f"{fields},{UNFINISHED_PODS}")

    async def run(self) -> None:
        """Until cancelled."""
        await self.pods.run()

    async def read(self, pod: FollowedPod) -> tuple[Claim, ...]:
        """The pod's claims that are bound; none that cannot be read."""
        claims = list[Claim]()
        for name in pod.claims:
            try:
                document = await self._kube.get(PERSISTENT_VOLUME_CLAIMS, name, pod.key[0])
            except ApiError as error:
                _LOG.info("claim %s/%s cannot be read, and its files need the log: %s", pod.key[0], name, error)
                continue
            claims.append(_claim(name, document.get("spec") or {}))
        return tuple(claim for claim in claims if claim.volume)

    def exclusive(self, pod: FollowedPod, claims: tuple[Claim, ...]) -> frozenset[str]:
        """The names of the volumes into which no other job writes now."""
        return frozenset(claim.volume for claim in claims if self._is_exclusive(pod, claim))

    def _is_exclusive(self, pod: FollowedPod, claim: Claim) -> bool:
        modes = list(claim.modes)
        if modes != _OF_A_NODE or not self.pods.synced.is_set():
            return modes == _OF_A_POD
        writers = {
            mounts.job
            for (namespace, _), mounts in self.pods.objects.items()
            if namespace == pod.key[0] and claim.name in mounts.claims
        }
        return writers == {pod.job}


def _claim(name: str, spec: Mapping[str, Any]) -> Claim:
    modes = spec.get("accessModes")
    return Claim(name, str(spec.get("volumeName") or ""), tuple(map(str, modes if isinstance(modes, list) else ())))
