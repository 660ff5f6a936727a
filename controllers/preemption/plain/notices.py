"""What stands on the pods of a gang: for whom it was told to go, whether it may go now, what is said of it."""

from kopt.cluster.resources import PODS, Object
from kopt.controllers.preemption.plain.room import Gang, Moment, gang_of
from kopt.controllers.preemption.plain.views import PlainPod
from kopt.controllers.preemption.saving import Saving
from kopt.controllers.preemption.statuses import grounds


def saving_of(gang: Gang, waiting: Gang, moment: Moment) -> Saving:
    """How a gang stands with requests to save for one that waits."""
    return Saving.of([one.view for one in gang.pods], moment.now_s, waiting.created_s)


def is_safe(gang: Gang, moment: Moment) -> bool:
    """The last look before it is evicted."""
    return all(one.status and one.status.safe and moment.now_s - one.seen_at_s <= moment.stale_s
               for one in gang_of(gang, moment).members)  # fmt: skip


def told_for(gang: Gang) -> str:
    """For whom it was told to make room; empty for nobody."""
    return next((one.evicting.waiting for one in gang.pods if one.evicting), "")


def notice_of(gang: Gang) -> dict[str, object]:
    """What the notice on its pods says beside the reason."""
    return {**grounds_of(gang), "pods": len(gang.pods)}


def grounds_of(gang: Gang) -> dict[str, str]:
    """The model and the interval behind its work at risk."""
    return grounds(one.view.notes for one in gang.pods)


def reference(pod: PlainPod) -> Object:
    """For events about it."""
    return PODS.reference(*pod.key, pod.view.uid)
