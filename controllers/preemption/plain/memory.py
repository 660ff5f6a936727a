"""What is learned of plain pods from one pass to the next; who was told to go stands on the pods as well."""

from collections.abc import Mapping
from dataclasses import replace

from kopt.controllers.preemption.plain.notices import told_for
from kopt.controllers.preemption.plain.room import Gang, Moment, gang_of
from kopt.policies.preemption import PreemptionState, observe
from kopt.policies.preemption.state import Eviction

SEEN_S = 5.0
"""What was written is seen so long after at the latest."""


def learned(state: PreemptionState, moment: Moment, waiting: Mapping[str, Gang]) -> PreemptionState:
    """Rhythms, and who was told to go: it stands on those that wait, also for the next leader."""
    known = {(one.gang, one.by) for one in state.evictions}
    told = [Eviction(verdict.at_s, victim, one.name) for one in waiting.values()
            if (verdict := one.pods[0].verdict) for victim in verdict.victims
            if (victim, one.name) not in known]  # fmt: skip
    running = {one.name: one for one in moment.gangs()}
    seen = {name: gang_of(one, moment) for name, one in running.items()}

    def counts(eviction: Eviction) -> bool:
        """Who runs and was told of nothing can be chosen again, once what was written has had time to be seen."""
        gang = running.get(eviction.gang)
        if gang is None or told_for(gang) or moment.now_s - eviction.at_s < SEEN_S:
            return True
        return seen[eviction.gang].started_at_s > eviction.at_s

    kept = [one for one in (*state.evictions, *told) if counts(one)]
    evictions = tuple(sorted(kept, key=lambda one: (one.at_s, one.gang)))
    return observe(replace(state, evictions=evictions), seen.values(), moment.now_s)
