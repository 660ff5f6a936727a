"""Which eviction notices on pods are valid: our own ones (``cluster.objects.seals``), for a bounded time.

A notice that a user copied, or a pod that never ends, must not block other preemptors.
"""

from collections.abc import Mapping
from dataclasses import replace

from kopt.cluster.workloads.kueue.objects import Evicting
from kopt.controllers.preemption.kube_scheduler.snapshot import HANGS_S, LONGEST_TERMINATION_S, ClusterSnapshot
from kopt.controllers.preemption.kube_scheduler.views import PlainPod

NOTICE_S = 300.0
"""A pod that still runs this long after its notice may stay."""
_SKEW_S = 60.0


def standing(snapshot: ClusterSnapshot, own_notices: Mapping[str, Evicting]) -> ClusterSnapshot:
    """The snapshot with the valid notices. ``own_notices``: by uid, those that this leader wrote itself, so that a pod
    cannot avoid its eviction by removing its notice."""
    return replace(
        snapshot, pods=[replace(pod, evicting=_notice(pod, own_notices, snapshot.now_s)) for pod in snapshot.pods]
    )


def with_expired_notices(snapshot: ClusterSnapshot, now: ClusterSnapshot) -> list[PlainPod]:
    """The pods of ``snapshot`` with a notice that does not count ``now``."""
    counts = {pod.gpu_pod.uid for pod in now.pods if pod.evicting}
    return [pod for pod in snapshot.pods if pod.evicting and not pod.terminating and pod.gpu_pod.uid not in counts]


def _notice(pod: PlainPod, own_notices: Mapping[str, Evicting], now_s: float) -> Evicting | None:
    notice = pod.evicting or own_notices.get(pod.gpu_pod.uid)
    if notice is None or notice.at_s > now_s + _SKEW_S:
        return None
    if pod.terminating:
        return notice if now_s < min(pod.ends_s + HANGS_S, notice.at_s + LONGEST_TERMINATION_S) else None
    return notice if now_s < notice.at_s + NOTICE_S else None
