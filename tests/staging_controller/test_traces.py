"""One trace of a gang, from the webhook to the end of its run, as OpenTelemetry's own collector receives it.

Webhook, controllers, Kueue, extender, scheduler and kubelet are the real ones; only the node's GPUs are not.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from controlplane.collector_server import Collector, ReceivedSpan
from controlplane.kueue import Kueue, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for
from replicas import ControllerProcess, replicas, reviewing

from tests.extender.conftest import RunningExtender, start_extender

from .conftest import BATCH, GPU, SYSTEM, Controller, Object, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long]
__all__ = ["start_extender"]
EVICTIONS = Path(__file__).parents[2] / "deploy" / "chart" / "crds" / "evictions.yaml"
SECOND_NS = 1_000_000_000
PARENTS = {
    ("kopt-webhook", "admit job"): "",
    ("kopt-staging", "stage data"): "admit job",
    ("kopt-evictions", "wait for quota"): "admit job",
    ("kopt-evictions", "hold quota"): "admit job",
    ("kopt-webhook", "admit pod"): "admit job",
    ("kopt-extender", "schedule pod"): "admit pod",
    ("kopt-extender", "filter"): "schedule pod",
    ("kopt-extender", "bind"): "schedule pod",
    ("kopt-evictions", "wait for node"): "admit pod",
    ("kopt-evictions", "start containers"): "admit pod",
    ("kopt-evictions", "become ready"): "admit pod",
    ("kopt-evictions", "run pod"): "admit pod",
}
"""Who sends which span, and what it belongs to."""
OF_PODS = {name for (_, name), parent in PARENTS.items() if parent in ("admit pod", "schedule pod")} | {"admit pod"}
ORDER = (
    *("admit job", "stage data", "wait for quota"),
    *("admit pod", "filter", "bind", "start containers", "run pod", "hold quota"),
)
"""By their ends."""


class EvictionsController(ControllerProcess):
    """A replica of the evictions controller."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane, "evictions")

    @property
    def leads(self) -> bool:
        return self.metric("kopt_ledger_leading") == 1.0


@pytest.fixture
def traced(plane: ControlPlane, otel_collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The webhook, which traces everything; what is started after it sends its spans to the collector, too."""
    for name, value in otel_collector.variables.items():
        monkeypatch.setenv(name, value)
    plane.apply_crds([EVICTIONS])
    with reviewing(plane, "traced-webhook", SYSTEM, tracing={"samplesPerThousand": 1000}) as running:
        yield running


@pytest.fixture
def evictions(plane: ControlPlane, traced: Server) -> Iterator[Callable[[], EvictionsController]]:
    with replicas(partial(EvictionsController, plane)) as start:
        yield start


def gang(
    team: Team, name: str, *, data: str = "", script: str = "sleep 2", gpus: int = 1, scheduler: str = ""
) -> Object:
    """A Job of two pods in the queue."""
    container = {
        "name": "train",
        "image": "team/train:1",
        "command": ["sh", "-c", script],
        "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "nodeSelector": team.node.selector,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    if scheduler:
        pod["schedulerName"] = scheduler
    metadata = {
        "name": name,
        "namespace": team.space,
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        "annotations": {"kaiwo.ai/staged-data": data} if data else {},
    }
    spec = {"template": {"spec": pod}, "suspend": True, "parallelism": 2, "completions": 2, "backoffLimit": 0}
    return team.api.create({"apiVersion": BATCH[0], "kind": BATCH[1], "metadata": metadata, "spec": spec})


def trace_of(job: Object) -> str:
    return str(job["metadata"]["annotations"]["kaiwo.ai/traceparent"]).split("-")[1]


def wait_traced(team: Team) -> None:
    """Until the webhook reviews what is created."""

    def annotated() -> bool:
        probe = team.submit("probe", params={"dryRun": "All"})
        return "kaiwo.ai/traceparent" in probe["metadata"].get("annotations", {})

    wait_for(annotated, what="the webhook traces")


def check_whole(trace: list[ReceivedSpan], pods: int) -> None:
    """Every span is there, once or once a pod, under its parent and in its order; pods of the gang are linked."""
    counts: dict[tuple[str, str], int] = {}
    for span in trace:
        counts[span.service, span.name] = counts.get((span.service, span.name), 0) + 1
    assert counts == {key: pods if key[1] in OF_PODS else 1 for key in PARENTS}
    by_id = {span.span_id: span for span in trace}
    assert len(by_id) == len(trace)
    for span in trace:
        parent = by_id[span.parent_id].name if span.parent_id else ""
        assert parent == PARENTS[span.service, span.name], span
        assert span.start_ns <= span.end_ns, span
        assert span.error == "", span
    ends = {name: [span.end_ns for span in trace if span.name == name] for name in ORDER}
    for earlier, later in itertools.pairwise(ORDER):
        # Kubernetes writes times in whole seconds, rounded down. Kueue admits the gang before any of its pods is made.
        assert min(ends[earlier]) < max(ends[later]) + SECOND_NS, (earlier, later)
    starts = [span for span in trace if span.name == "start containers"]
    waited = next(span for span in trace if span.name == "wait for quota")
    created = {span.about["k8s.pod.name"]: span.start_ns for span in trace if span.name == "wait for node"}
    first = min(starts, key=lambda span: (created[span.about["k8s.pod.name"]], span.about["k8s.pod.name"]))
    for span in starts:
        others = {first.span_id} - {span.span_id}
        assert {*span.links} == {(span.trace_id, linked) for linked in (*others, waited.span_id)}, span


def test_a_gang_is_one_trace_from_the_webhook_to_the_end_of_its_run(
    team: Team,
    plane: ControlPlane,
    traced: Server,
    controller: Callable[..., Controller],
    start_extender: Callable[..., RunningExtender],
    evictions: Callable[[], EvictionsController],
    otel_collector: Collector,
) -> None:
    controller()
    evictions()
    start_extender(plane, team.space).start_scheduler(team.space)
    team.wait_reviewed()
    team.s3.put(f"{team.space}/a", b"content")
    team.stage("tokens", f"s3://data/{team.space}")
    job = gang(team, "train", data="tokens", script="cat /data/tokens/a; sleep 3", scheduler=team.space)
    trace = otel_collector.wait({name for _, name in PARENTS}, trace_of(job))

    def whole() -> list[ReceivedSpan]:
        nonlocal trace
        trace = [span for span in otel_collector.spans() if span.trace_id == trace_of(job)]
        return trace if sum(span.name == "run pod" for span in trace) == 2 else []

    wait_for(whole, what="both pods have run")
    check_whole(trace, pods=2)
    for dropped in trace:
        with pytest.raises((AssertionError, KeyError)):
            check_whole([span for span in trace if span is not dropped], pods=2)


def test_what_is_cut_off_ends_as_an_error(
    team: Team,
    plane: ControlPlane,
    kueue: Kueue,
    evictions: Callable[[], EvictionsController],
    otel_collector: Collector,
) -> None:
    first = evictions()
    wait_traced(team)
    job = gang(team, "stopped", script="sleep 600")
    wait_for(lambda: team.job("stopped")["status"].get("ready") == 2, what="both pods run")
    workload = workload_of(plane, job)
    too_large = gang(team, "large", gpus=8)
    found = otel_collector.wait({"wait for quota", "start containers", "become ready"}, trace_of(job))
    assert [span.error for span in found] == [""] * len(found)
    # The next leader sends the same spans again, and none beside them.
    sent = len(otel_collector.spans())
    first.server.kill()
    evictions()
    wait_for(lambda: len(otel_collector.spans()) > sent, what="the next leader sends what has happened")
    path = ("kueue.x-k8s.io/v1beta1", "Workload", workload["metadata"]["name"])
    plane.api.patch(*path, {"spec": {"active": False}}, team.space)
    spans = otel_collector.wait({"hold quota", "run pod"}, trace_of(job))
    wait_for(lambda: len({span.span_id for span in otel_collector.spans() if span.name == "run pod"}) == 2)
    received = [span for span in otel_collector.spans() if span.trace_id == trace_of(job)]
    unique = {span.span_id: span for span in received}
    assert all(span == unique[span.span_id] for span in received)
    assert len(unique) < len(received)
    names = sorted(span.name for span in unique.values() if span.service == "kopt-evictions")
    of_pods = ["become ready", "run pod", "start containers", "wait for node"]
    assert names == sorted(["hold quota", "wait for quota", *of_pods, *of_pods])
    errors = {span.name: span.error for span in spans if span.error}
    assert errors["hold quota"] == "evicted: Deactivated"
    assert errors["run pod"].startswith("deleted")
    plane.api.delete(*BATCH, "large", team.space, propagationPolicy="Background")
    ended = {span.name: span.error for span in otel_collector.wait({"wait for quota"}, trace_of(too_large))}
    assert ended == {"admit job": "", "wait for quota": "deleted: it was never admitted"}
