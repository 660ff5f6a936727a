"""Single steps: what is written for a Job in a given state, without an API server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kopt.cluster.client.api import Invalid
from kopt.cluster.client.resources import JOBS, Key, Object, Resource
from kopt.cluster.holds.hold import PARKED, hold, holder_of, parked, queue_of
from kopt.cluster.holds.original_request import request_of, with_request
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.controllers.sizing.jobs import STATE_ANNOTATION, State, job_type_of
from kopt.controllers.sizing.offers import all_offers, offers_of
from kopt.controllers.sizing.pods import JobPod, job_pod
from kopt.controllers.sizing.ports import SizingSettings
from kopt.controllers.sizing.profiles import Learned
from kopt.controllers.sizing.reconciler import Reconciler
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.units import GIB, Bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import DryRun, Spread
from kopt.core.workload.sizing import WorkloadProfile
from kopt.policies.sizing.profiling import PartitionOffer, ProfilingSettings
from kopt.policies.sizing.profiling_pod import DryRunSettings

from .conftest import GPU, job

H100 = find_gpu("H100")
OFFERS = tuple(PartitionOffer(f"nvidia.com/mig-{one.name}", H100.name, one) for one in H100.partitions)
KEY = ("team", "train")
NOW_S = 1_800_000_000.0


def merged(document: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


class World:
    """A cluster of one Job, and the fence through which it is changed."""

    def __init__(self, found: Object, **known: Any) -> None:
        self.found, self.known = found, known
        self.refuses: Callable[[Object], bool] = lambda _: False
        self.deleted: list[str] = []
        self.told: list[str] = []
        self.evicted = self.resumed = 0
        self.created: list[Object] = []

    def job(self, key: Key) -> Object | None:
        return self.found if key == KEY else None

    def namespace(self, name: str) -> NamespaceSettings:
        return NamespaceSettings(True, self.known.get("mode", "enforce"))

    def pods(self, job: Key) -> list[JobPod]:
        return list(self.known.get("pods", ()))

    def learned(self, namespace: str, digest: str) -> Learned | None:
        kind = job_type_of(job("train", "team", "run"))
        assert kind is not None
        return self.known.get("learned") if digest == kind.digest else None

    def executor(self) -> Executor:
        return Executor(self.known.get("executor", "none"))

    def offers(self, pod: Object) -> tuple[PartitionOffer, ...]:
        return OFFERS

    async def usable_resources(self, namespace: str, queue: str) -> frozenset[str]:
        return frozenset(self.known.get("usable_resources", ()))

    async def stop(self, fence: object, job: Object) -> bool:
        self.evicted += 1
        return bool(self.known.get("workload", True))

    async def stopping(self, job: Object) -> bool:
        return self.evicted > self.resumed

    async def resume(self, fence: object, job: Object) -> None:
        self.resumed += 1

    async def last_log_lines(self, pod: JobPod) -> bool:
        return False

    async def patch(self, resource: Resource, seen: Object, changes: Object) -> Object:
        if self.refuses(changes):
            raise Invalid(422, "Invalid", "field is immutable")
        self.found = merged(self.found, changes)
        return self.found

    async def create(self, resource: Resource, body: Object) -> Object:
        self.created.append(body)
        return body

    async def delete(self, resource: Resource, seen: Object, **_: Any) -> None:
        self.deleted.append(resource.kind)

    async def step(self, ask: Any = None, **settings: Any) -> float | None:
        chosen = SizingSettings(DryRunSettings("agents"), ProfilingSettings(**settings))

        def tell(job: Object, reason: str, sentence: str) -> None:
            self.told.append(reason)

        made = Reconciler(self, self, self, chosen, ask, tell, lambda: NOW_S)  # type: ignore[arg-type]
        return await made.reconcile(KEY)

    @property
    def limits(self) -> Object:
        return dict(self.found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"])

    @property
    def state(self) -> Object:
        return dict(json.loads(self.found["metadata"]["annotations"][STATE_ANNOTATION]))


def a_job(state: State | None = None, *, held: bool = False, **changes: Any) -> Object:
    found = job("train", "team", "run")
    found["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    found["spec"]["backoffLimit"] = 1
    if held:
        found = merged(found, hold(JOBS, found, "profiling"))
        found["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
    if state is not None:
        found["metadata"].setdefault("annotations", {})[STATE_ANNOTATION] = state.to_json()
    return dict(merged(found, changes))


def learned(peak: int = 5 * GIB, **changes: Any) -> Learned:
    profile = WorkloadProfile(H100.name, Bytes(peak), 90.0, 180, True, 0.05)
    run = DryRun(profile, activity=Spread(0.05, 0.05, 0.05))
    return Learned(
        **{
            "digest": "d",
            "namespace": "team",
            "run": run,
            "reason": "",
            "at_s": NOW_S,
            "image_id": "",
            "job_uid": "p",
            "document": {"metadata": {}},
        }
        | changes
    )


def state(phase: str = "profile", **changes: Any) -> State:
    kind = job_type_of(a_job())
    assert kind is not None
    known = {"phase": phase, "since_s": NOW_S - 10, "asked": request_of(a_job()), "type": kind.digest}
    return State(**known | changes)


async def test_the_endpoints_answer_counts_more_than_the_dry_run_alone() -> None:
    asked: list[Mapping[str, Any]] = []

    async def endpoint(body: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(body)
        memory = {"peak_bytes": 30 * GIB, "low_bytes": 28 * GIB, "high_bytes": 33 * GIB, "probability": 0.95}
        return {"memory": memory, "confidence": 0.95, "model": {"name": "sizing", "version": "4"}}

    world = World(a_job(state(), held=True), learned=learned())
    await world.step(endpoint)
    assert world.limits["nvidia.com/mig-3g.40gb"] == "1"
    assert asked[0]["profile"]["peak_bytes"] == 5 * GIB

    async def broken(body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise OSError("down")

    world = World(a_job(state(), held=True), learned=learned())
    await world.step(broken)
    assert "nvidia.com/mig-1g.10gb" in world.limits


async def test_one_write_sizes_and_releases_and_keeps_what_the_user_had() -> None:
    world = World(a_job(state(), held=True), learned=learned())
    await world.step()
    assert world.found["spec"]["suspend"] is False
    assert "kaiwo.ai/held" not in world.found["metadata"]["labels"]
    assert world.found["spec"]["backoffLimit"] == 3
    assert world.state["asked"]["resources"]["train"]["limits"][GPU] == "1"


KAI_POD = {
    "metadata": {"labels": {"kai.scheduler/queue": "team"}},
    "spec": {"template": {"spec": {"schedulerName": "kai-scheduler"}}},
}


async def test_a_share_of_kais_takes_the_place_of_the_gpu_and_gives_it_back() -> None:
    world = World(a_job(state(), held=True, **KAI_POD), learned=learned(60 * GIB), executor="kai")
    await world.step(fractions=True)
    notes = world.found["spec"]["template"]["metadata"]["annotations"]
    assert (notes["kaiwo.ai/gpu-fraction"], GPU in world.limits) == ("0.9", False)
    assert 60 << 10 < int(notes["gpu-memory"]) <= H100.usable_bytes * 9 // 10 >> 20
    changed = merged(world.found, {"spec": with_request(world.found, world.state["asked"])})
    assert changed["spec"]["template"]["metadata"]["annotations"] == {}
    assert changed["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] == "1"


async def test_a_share_of_hamis_is_a_limit_beside_the_gpu() -> None:
    world = World(a_job(state(), held=True), learned=learned(60 * GIB), executor="hami")
    await world.step(fractions=True)
    assert world.limits[GPU] == "1"
    assert 60 << 10 < int(world.limits["nvidia.com/gpumem"]) <= H100.usable_bytes * 9 // 10 >> 20


@pytest.mark.parametrize(
    ("executor", "changes"), [("none", KAI_POD), ("kai", {}), ("volcano", {}), ("unknown", KAI_POD)]
)
async def test_a_job_that_nothing_hands_a_share_keeps_its_gpu(executor: str, changes: Object) -> None:
    """Neither can the scheduler of a Job be changed any more."""
    world = World(a_job(state(), held=True, **changes), learned=learned(60 * GIB), executor=executor)
    await world.step(fractions=True)
    assert world.limits[GPU] == "1"
    assert "kaiwo.ai/gpu-fraction" not in (world.found["spec"]["template"]["metadata"].get("annotations") or {})


async def test_a_server_that_refuses_the_change_leaves_the_job_as_it_was_written() -> None:
    world = World(a_job(state(), held=True), learned=learned())
    world.refuses = lambda changes: "template" in (changes.get("spec") or {})
    await world.step()
    assert (world.found["spec"]["suspend"], world.limits[GPU], world.state["phase"]) == (False, "1", "own")


@pytest.mark.parametrize("known", [{"mode": "observe"}, {"mode": "annotate"}, {"mode": "nonsense"}])
async def test_a_mode_that_changes_gives_held_jobs_back(known: dict[str, Any]) -> None:
    world = World(a_job(state(), held=True), **known)
    await world.step()
    assert (world.found["spec"]["suspend"], world.limits[GPU]) == (False, "1")


async def test_a_request_is_changed_only_when_no_pod_is_left() -> None:
    world = World(a_job(state(), held=True, status={"active": 1}), learned=learned())
    assert await world.step() is not None
    assert (world.found["spec"]["suspend"], world.limits[GPU]) == (True, "1")


async def test_a_job_that_fails_for_reasons_of_its_own_gets_no_tries_of_ours() -> None:
    failed = JobPod(("team", "p"), "uid", "train", True, True, False, "", "")
    found = a_job(state("sized", granted_bytes=10 * GIB))
    found["spec"]["backoffLimit"] = 3
    world = World(found, pods=[failed], learned=learned())
    await world.step()
    assert (world.found["spec"]["backoffLimit"], world.state["phase"]) == (1, "sized")


async def test_another_image_behind_the_reference_ends_the_profile() -> None:
    runs = JobPod(("team", "p"), "uid", "train", False, False, False, "", "image@sha256:b")
    found = a_job(state("sized"))
    # As Kueue's flavours do while it runs; the type is that of the Job as it was written.
    found["spec"]["template"]["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    world = World(found, pods=[runs], learned=learned(image_id="image@sha256:a"))
    await world.step()
    assert world.deleted == ["SizingProfile"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"phase": 1}', "null", '{"phase":"sized","since_s":"x","asked":{}}'])
async def test_a_state_that_cannot_be_read_starts_anew_and_harms_nothing(text: str) -> None:
    found = a_job(held=True)
    found["metadata"]["annotations"][STATE_ANNOTATION] = text
    world = World(found)
    await world.step()
    assert len(world.created) == 1
    assert world.limits[GPU] == "1"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"reason": "OOMKilled", "exitCode": 137}, True),
        ({"reason": "Error", "exitCode": 1}, False),
        ({"reason": "Error", "exitCode": 1, "message": "torch.OutOfMemoryError: CUDA out of memory."}, True),
        ({"reason": "Completed", "exitCode": 0, "message": "CUDA out of memory"}, False),
    ],
)
def test_how_a_pod_ran_out_of_memory(status: Object, expected: bool) -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"batch.kubernetes.io/job-name": "train"}},
        "status": {"containerStatuses": [{"name": "train", "state": {"terminated": status}}]},
    }
    view = job_pod(pod)
    assert view is not None
    assert view.out_of_memory is expected


QUEUED = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}}
SUSPENDED = {"spec": {"suspend": True}, "status": {"conditions": [{"type": "Suspended", "status": "True"}]}}
OUT_OF_MEMORY = JobPod(("team", "p"), "uid", "train", True, True, True, "", "")


def queue_of_(found: Object) -> str:
    return str(found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"])


async def test_a_job_that_waits_in_a_queue_is_parked_and_goes_back_into_it_with_its_size() -> None:
    world = World(merged(a_job(**QUEUED), SUSPENDED), usable_resources=["nvidia.com/mig-1g.10gb"])
    await world.step()
    assert (queue_of_(world.found), holder_of(world.found)) == (PARKED, "profiling")
    assert queue_of(world.found) == "gpus"
    await world.step()
    assert world.created[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus", "a quota counts the dry run"
    world.known["learned"] = learned()
    await world.step()
    assert (queue_of_(world.found), holder_of(world.found), world.state["phase"]) == ("gpus", "", "sized")
    assert (world.found["spec"]["suspend"], "nvidia.com/mig-1g.10gb" in world.limits) == (True, True), "Kueue starts it"


async def test_a_job_that_another_cluster_decides_about_is_left_alone() -> None:
    copied = merged(a_job(**QUEUED), SUSPENDED)
    copied["metadata"]["labels"]["kueue.x-k8s.io/multikueue-origin"] = "hub"
    world = World(copied, usable_resources=["nvidia.com/mig-1g.10gb"])
    before = json.dumps(copied)
    await world.step()
    assert json.dumps(world.found) == before


async def test_a_queue_without_quota_of_partitions_leaves_the_request() -> None:
    world = World(merged(a_job(**QUEUED), SUSPENDED), usable_resources=["nvidia.com/gpu"], learned=learned())
    await world.step(fractions=True)
    assert holder_of(world.found) == "", "there is nothing to change"
    world = World(merged(a_job(state(), **QUEUED), SUSPENDED), usable_resources=["nvidia.com/gpu"])
    world.found = merged(world.found, {"metadata": parked("profiling", "gpus")})
    world.known["learned"] = learned()
    await world.step(fractions=True)
    assert (queue_of_(world.found), world.limits[GPU], world.state["phase"]) == ("gpus", "1", "own")


PENDING = JobPod(("team", "p"), "uid", "train", False, False, False, "", "")
RUNS = replace(PENDING, begun=True)


@pytest.mark.parametrize(
    ("pods", "status"),
    [
        ([RUNS], {"active": 1}),
        ([PENDING, RUNS], {"active": 2}),
        ([PENDING], {"active": 2}),
        ([], {"active": 1}),
        ([PENDING], {"active": 1, "ready": 1}),
        ([PENDING], {"active": 1, "failed": 1}),
    ],
)
async def test_what_a_queue_has_admitted_and_has_begun_goes_on_as_it_is(
    pods: list[JobPod], status: dict[str, int]
) -> None:
    """Nor is one stopped whose pods are not all seen yet."""
    world = World(a_job(**QUEUED, status=status), pods=pods)
    await world.step()
    assert (holder_of(world.found), world.created, world.evicted) == ("", [], 0)


async def test_what_a_queue_has_admitted_too_early_is_stopped_parked_and_handed_back_to_the_queue() -> None:
    world = World(a_job(**QUEUED, status={"active": 1}), pods=[PENDING])
    kueues = {"nodeSelector": {"nvidia.com/gpu.product": "of-kueues-flavor"}}
    world.found["spec"]["template"]["spec"] |= kueues
    await world.step()
    assert (world.state["phase"], holder_of(world.found), world.evicted) == ("stop", "profiling", 0)
    world.known["pods"] = [RUNS]
    spoiled = World(world.found, pods=[RUNS])
    await spoiled.step()
    assert (holder_of(spoiled.found), spoiled.state["phase"], spoiled.evicted) == ("", "own", 0)
    world.known["pods"] = [PENDING]
    await world.step()
    world.known["pods"] = [RUNS]
    await world.step()
    assert (world.state["phase"], world.evicted) == ("stop", 2), "once it is being stopped it is parked in any case"
    world.found = merged(merged(world.found, SUSPENDED), {"status": {"active": 0}})
    world.found["spec"]["template"]["spec"].pop("nodeSelector")
    world.known["pods"] = []
    await world.step()
    assert (world.state["phase"], queue_of_(world.found), queue_of(world.found)) == ("profile", PARKED, "gpus")
    assert "of-kueues-flavor" not in json.dumps(world.state), "what it asked for is the user's own, not the queue's"
    await world.step()
    assert (len(world.created), world.resumed) == (1, 0), "Kueue would admit it again where it was"
    world.known["learned"] = learned()
    await world.step()
    assert (holder_of(world.found), queue_of_(world.found)) == ("", "gpus")
    await world.step()
    assert world.resumed == 1


async def test_a_stop_that_is_not_wanted_any_more_is_taken_back() -> None:
    world = World(a_job(**QUEUED), pods=[PENDING])
    await world.step()
    world.known["mode"] = "observe"
    await world.step()
    assert (holder_of(world.found), world.state["phase"], world.resumed) == ("", "own", 1)


async def test_an_admitted_job_without_a_workload_goes_on() -> None:
    world = World(a_job(**QUEUED), pods=[PENDING], workload=False)
    await world.step()
    await world.step()
    assert (holder_of(world.found), world.state["phase"]) == ("", "own")


async def test_what_kueue_started_while_it_was_parked_is_given_back_at_once() -> None:
    found = merged(a_job(state(), **QUEUED), {"metadata": parked("profiling", "gpus")})
    world = World(found)
    await world.step()
    assert (queue_of_(world.found), world.found["spec"].get("suspend")) == ("gpus", None), "nobody of Kueue's objects"
    world = World(found)
    world.refuses = lambda changes: "suspend" not in (changes.get("spec") or {})
    await world.step()
    assert (queue_of_(world.found), world.found["spec"]["suspend"]) == ("gpus", True), "Kueue starts it again"


async def test_a_queued_job_that_ran_out_of_memory_is_stopped_by_its_workload_and_tries_again() -> None:
    covered = [one.resource for one in OFFERS]
    world = World(
        a_job(state("sized", granted_bytes=10 * GIB), **QUEUED),
        pods=[OUT_OF_MEMORY],
        learned=learned(),
        usable_resources=covered,
    )
    await world.step()
    assert (world.state["phase"], holder_of(world.found)) == ("retry", "profiling")
    assert "suspend" not in world.found["spec"], "Kueue would start it again"
    await world.step()
    assert world.evicted == 1
    world.found = merged(world.found, SUSPENDED | {"metadata": {"annotations": {"kueue.x-k8s.io/stopping": "true"}}})
    await world.step()
    assert world.state["phase"] == "retry", "Kueue puts the template back first"
    world.found["metadata"]["annotations"].pop("kueue.x-k8s.io/stopping")
    await world.step()
    assert (world.state["phase"], world.state["tries"], holder_of(world.found)) == ("sized", 1, "")
    assert (world.found["spec"]["suspend"], GPU in world.limits) == (True, False)
    await world.step()
    assert world.resumed == 1


async def test_a_job_that_no_workload_can_stop_goes_on() -> None:
    world = World(a_job(state("sized"), **QUEUED), pods=[OUT_OF_MEMORY], learned=learned(), workload=False)
    await world.step()
    await world.step()
    assert (world.state["phase"], holder_of(world.found), world.told) == ("own", "", ["OutOfMemory", "NotStopped"])


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_retry_that_is_not_wanted_any_more_gives_the_own_request_back(stopped: bool) -> None:
    asked = state().asked
    found = a_job(state("retry", tries=1, asked=asked), held=True)
    found["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    found["status"]["active"] = 0 if stopped else 1
    world = World(found, mode="observe")
    await world.step()
    assert world.limits == ({GPU: "1", "cpu": "100m"} if stopped else {"nvidia.com/mig-1g.10gb": "1"})
    assert world.found["spec"]["suspend"] is not stopped, "its request can be changed only while no pod is left"


async def test_a_job_without_a_command_is_told_why_it_is_not_profiled_once() -> None:
    found = a_job()
    found["spec"]["template"]["spec"]["containers"][0] |= {"command": [], "args": ["--epochs=3"]}
    world = World(found)
    await world.step()
    await world.step()
    assert world.told == ["NotProfiled"]
    assert "Set `command`" in world.found["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
    assert (holder_of(world.found), world.limits[GPU]) == ("", "1")
    assert "suspend" not in world.found["spec"]


async def test_kais_queue_is_the_dry_runs_too() -> None:
    found = a_job(metadata={"labels": {"kai.scheduler/queue": "team", "app": "train"}})
    found["spec"]["template"]["spec"]["schedulerName"] = "kai-scheduler"
    world = World(found)
    await world.step()
    assert world.found["spec"]["suspend"] is True
    await world.step()
    (dry_run,) = world.created
    template = dry_run["spec"]["template"]
    for labels in (dry_run["metadata"]["labels"], template["metadata"]["labels"]):
        assert (labels["kai.scheduler/queue"], "app" in labels) == ("team", False)
    assert template["spec"]["schedulerName"] == "kai-scheduler"


H100_NODE = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "pool": "slices", "rack": "7"}
PRODUCT = "nvidia.com/gpu.product"


def node(taints: Sequence[Object] = ()) -> Object:
    allocatable = {GPU: "8", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-2g.20gb": "0"}
    return {"metadata": {"labels": H100_NODE}, "spec": {"taints": list(taints)}, "status": {"allocatable": allocatable}}


def affinity(*expressions: Object, **term: Any) -> Object:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions), **term}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def needs(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


TAINT = {"key": "slices", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("pod", "taints", "expected"),
    [
        ({}, (), True),
        ({"nodeSelector": {"pool": "slices"}}, (), True),
        ({"nodeSelector": {"pool": "whole"}}, (), False),
        (affinity(needs(PRODUCT, "In", "NVIDIA-H100-80GB-HBM3", "x")), (), True),
        (affinity(needs(PRODUCT, "In", "NVIDIA-A100-SXM4-40GB")), (), False),
        (affinity(needs("pool", "NotIn", "slices")), (), False),
        (affinity(needs("none", "DoesNotExist")), (), True),
        (affinity(needs("pool", "Exists"), needs("rack", "Gt", "6")), (), True),
        (affinity(needs("rack", "Lt", "7")), (), False),
        (affinity(needs("pool", "Like", "s")), (), False),
        (affinity(needs("rack", "Gt", "x")), (), False),
        (affinity(needs("pool", "Exists"), matchFields=[{}]), (), False),
        (affinity(), (), False),
        ({}, (TAINT,), False),
        ({}, (TAINT | {"effect": "PreferNoSchedule"},), True),
        ({}, ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},), True),
        ({"tolerations": [{"key": "slices", "operator": "Exists"}]}, (TAINT,), True),
        ({"tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}, (TAINT,), True),
        ({"tolerations": [{"key": "slices", "value": "yes"}]}, (TAINT,), True),
        ({"tolerations": [{"key": "slices", "value": "no"}]}, (TAINT,), False),
        ({"tolerations": [{"key": "slices", "value": "yes", "effect": "NoExecute"}]}, (TAINT,), False),
    ],
)
def test_partitions_are_offered_only_where_it_may_run(pod: Object, taints: Sequence[Object], expected: bool) -> None:
    found = offers_of(node(taints))
    assert found is not None
    assert [one.resource for one in all_offers([found], pod)] == (["nvidia.com/mig-1g.10gb"] if expected else [])


def test_the_gpu_of_a_job_type_is_what_selector_or_affinity_name() -> None:
    def gpu(**pod: Any) -> str:
        found = a_job()
        found["spec"]["template"]["spec"] |= pod
        kind = job_type_of(found)
        assert kind is not None
        return kind.gpu

    assert gpu() == ""
    assert gpu(nodeSelector={PRODUCT: "A"}) == gpu(**affinity(needs(PRODUCT, "In", "A"))) == "A"
    assert gpu(**affinity(needs(PRODUCT, "In", "B", "A"))) == "A,B"
