"""State of plain pods from one reconcile to the next; evictions are on the pods as well."""

from collections.abc import Mapping
from dataclasses import replace

from kopt.controllers.preemption.kube_scheduler.eviction_notices import evicted_for
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang, gang_of
from kopt.policies.preemption import PreemptionState, observe
from kopt.policies.preemption.state import Eviction

INFORMER_LAG_S = 5.0
"""Informers show our writes after this long at the latest."""


def learned(state: PreemptionState, snapshot: ClusterSnapshot, preemptors: Mapping[str, Gang]) -> PreemptionState:
    """Checkpoint rhythms and evictions; the latter are on the preemptors' pods, also for the next leader."""
    recorded = {(item.gang, item.by) for item in state.evictions}
    evicted = [
        Eviction(decision.at_s, victim, item.name)
        for item in preemptors.values()
        if (decision := item.pods[0].decision)
        for victim in decision.victims
        if (victim, item.name) not in recorded
    ]
    running = {item.name: item for item in snapshot.gangs()}
    gangs = {name: gang_of(item, snapshot) for name, item in running.items()}

    def counts(eviction: Eviction) -> bool:
        """A running gang without a notice can be a victim again, once informers have had time to show our writes."""
        gang = running.get(eviction.gang)
        if gang is None or evicted_for(gang) or snapshot.now_s - eviction.at_s < INFORMER_LAG_S:
            return True
        return gangs[eviction.gang].started_at_s > eviction.at_s

    relevant = [item for item in (*state.evictions, *evicted) if counts(item)]
    evictions = tuple(sorted(relevant, key=lambda item: (item.at_s, item.gang)))
    return observe(replace(state, evictions=evictions), gangs.values(), snapshot.now_s)
