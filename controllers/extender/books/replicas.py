"""Where the replicas of services are, so that the next one goes to another node."""

from collections.abc import Iterable

from kopt.cluster.workloads.placement.pod_state import PodState
from kopt.core.switches import Owner
from kopt.policies.placement.fleet import Fleet

_NONE: frozenset[str] = frozenset()


class Replicas:
    """Pods of classes that are spread, by their owner."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pods: dict[Owner, set[str]] = {}

    def saw(self, pod: PodState) -> None:
        """Keep a pod that is there."""
        if pod.spread is not None:
            self._pods.setdefault(pod.spread, set()).add(pod.uid)

    def forget(self, pod: PodState) -> None:
        """A pod is gone."""
        if pod.spread is not None and (uids := self._pods.get(pod.spread)) is not None:
            uids.discard(pod.uid)
            if not uids:
                del self._pods[pod.spread]

    def nodes(self, pod: PodState) -> frozenset[str]:
        """Nodes that have another replica already, or have one promised."""
        if pod.spread is None:
            return _NONE
        others: Iterable[str] = self._pods.get(pod.spread, ())
        holdings = self._fleet.holdings
        return frozenset(holdings[uid].node for uid in others if uid != pod.uid and uid in holdings)
