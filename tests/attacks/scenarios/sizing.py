"""The sizing controller, beside a Job of a type that nothing is known of."""

from typing import Any

from kopt.cluster.client.resources import JOBS, PODS
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.sizing import main as sizing
from kopt.controllers.sizing.ports import SizingSettings
from kopt.controllers.sizing.profiles import SIZING_PROFILES
from kopt.core.decision import Mode
from kopt.policies.sizing.profiling_pod import DryRunSettings

from ..api_in_memory import MemoryKube
from .objects import ENDED, LEASE, NODE, SPACE, SUSPENDED, Host, Scenario, job, label_of, pod, space


def _sizing(kube: Any) -> LedReplica:
    wanted = SizingSettings(DryRunSettings("agents"), mode=Mode.ENFORCE)
    return sizing.Replica(kube, sizing.ProcessSettings(lease=LEASE, sizing=wanted, port=0))


def _fill_sizing(kube: MemoryKube) -> None:
    space(kube, "team", "tenant")
    kube.put(JOBS, job("ordinary"))


HELD = {"kaiwo.ai/held": "profiling"}
PROFILE = {
    "metadata": {"name": "p", "namespace": "tenant"},
    "spec": {"digest": "d", "reason": "x", "at": 1, "jobUid": "u", "imageID": "i"},
}
DRY_RUN_LABELS = {"kaiwo.ai/profiling": "abc"}

SIZING = Scenario(
    "sizing",
    _fill_sizing,
    _sizing,
    lambda kube: label_of(kube, JOBS, "ordinary") == "profiling",
    (
        Host(JOBS, job("a-hostile", "tenant")),
        Host(JOBS, job("a-held", "tenant", labels=HELD) | {"status": SUSPENDED}),
        Host(JOBS, job("a-dry", "tenant", labels=DRY_RUN_LABELS)),
        SPACE,
        NODE,
        Host(PODS, pod("a-pod", "tenant", labels={"batch.kubernetes.io/job-name": "a-dry"}) | {"status": ENDED}),
        Host(PODS, pod("a-pod-2", "tenant", labels={"batch.kubernetes.io/job-name": "a-hostile"}) | {"status": ENDED}),
        Host(SIZING_PROFILES, PROFILE, schema="sizingprofiles"),
    ),
)
