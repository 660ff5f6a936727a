"""Annotations on the pods of a gang: the preemptor it was evicted for, whether it is safe to kill, its evidence."""

from kopt.cluster.checkpoints.save_requests import Saving
from kopt.cluster.checkpoints.status import grounds
from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.runtime.isolation import Subject
from kopt.controllers.preemption.kube_scheduler.snapshot import ClusterSnapshot, Gang, gang_of
from kopt.controllers.preemption.kube_scheduler.views import PlainPod
from kopt.core.workload.checkpoint import JobState


def saving_of(gang: Gang, preemptor: Gang, snapshot: ClusterSnapshot) -> Saving:
    """The state of a gang's save requests for a preemptor."""
    return Saving.of([pod.gpu_pod for pod in gang.pods], snapshot.now_s, preemptor.created_s)


def is_safe(gang: Gang, snapshot: ClusterSnapshot) -> bool:
    """The last check before it is evicted."""
    return all(
        member.status and member.status.safe and snapshot.now_s - member.observed_at_s <= snapshot.stale_s
        for member in gang_of(gang, snapshot).members
    )


def may_still_go(gang: Gang, snapshot: ClusterSnapshot) -> bool:
    """The last check of the rest of a gang that has lost a pod already. Its other pods cannot train any more, but one
    that is writing a checkpoint, or whose checkpoints are unknown, is still kept."""
    job_statuses = [member.status for member in gang_of(gang, snapshot).members]
    return all(
        job_status and job_status.evidence and job_status.state is not JobState.CKPT_WRITING
        for job_status in job_statuses
    )


def evicted_for(gang: Gang) -> str:
    """The preemptor that it has an eviction notice for; empty without a notice."""
    return next((pod.evicting.preemptor for pod in gang.pods if pod.evicting), "")


def notice_of(gang: Gang) -> dict[str, object]:
    """What the notice on its pods says in addition to the reason."""
    return {**grounds_of(gang), "pods": len(gang.pods)}


def grounds_of(gang: Gang) -> dict[str, str]:
    """The model and the interval behind its work at risk."""
    return grounds(pod.gpu_pod.annotations for pod in gang.pods)


def subject(pod: PlainPod) -> Subject:
    """For failures that are about it."""
    return Subject(PODS.api_version, PODS.kind, *pod.key, pod.gpu_pod.uid, pod.gpu_pod.version)


def reference(pod: PlainPod) -> Object:
    """For events about it."""
    return PODS.reference(*pod.key, pod.gpu_pod.uid)
