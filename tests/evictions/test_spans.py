"""Spans that follow from the times on pods and Kueue's Workloads: each phase once, with its end and why it ended."""

import asyncio
import itertools
import time
from collections.abc import Sized
from dataclasses import replace
from typing import Any

import pytest
from admission.collecting import collector
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.runtime.tracing import Span, SpanExport, TraceContext, parse_traceparent
from kopt.cluster.workloads.traced import TracedPod, TracedWorkload, read_traced_pod, read_traced_workload
from kopt.cluster.workloads.tracked_pod import read_pod
from kopt.controllers.evictions.observations import Observed
from kopt.controllers.evictions.spans import LifeSpans, pod_spans, workload_spans
from kopt.controllers.evictions.views import read_workload
from kopt.core.times import stamp

Object = dict[str, Any]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
CONTEXT = parse_traceparent(PARENT) or TraceContext("", "")
POD = TracedPod(CONTEXT, "team", "train-0", "node", 100.0, 110.0, 120.0, 125.0, None, None, "")
WORKLOAD = TracedWorkload(CONTEXT, "team", "job-train", 90.0, 95.0, 95.0, None, None, None, False, False, "gpus", "")


def brief(spans: Any) -> list[tuple[str, float, float, str]]:
    return [(span.name, span.start_ns / 1e9, span.end_ns / 1e9, span.error) for span in spans]


def pod(name: str = "train-0", *, owner: str = "job", created_s: float = 100, **status: Any) -> Object:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    by = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": f"{owner}-uid", "controller": True}
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "creationTimestamp": stamp(created_s),
        "annotations": {"kaiwo.ai/traceparent": PARENT},
        "ownerReferences": [by],
    }
    return {"metadata": metadata, "spec": {"nodeName": "node", "containers": [container]}, "status": status}


def running(name: str = "train-0", *, owner: str = "job", created_s: float = 100) -> Object:
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(created_s + 10)},
        {"type": "Ready", "status": "True", "lastTransitionTime": stamp(created_s + 25)},
    ]
    states = [{"name": "main", "state": {"running": {"startedAt": stamp(created_s + 20)}}}]
    return pod(name, owner=owner, created_s=created_s, phase="Running", conditions=conditions, containerStatuses=states)


def workload(*conditions: tuple[str, str, float, str], annotation: str = PARENT) -> Object:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-uid", "controller": True}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {
        "metadata": {"annotations": {"kaiwo.ai/job-traceparent": annotation}},
        "spec": {"containers": [container]},
    }
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "metadata": {
            "name": "job-train",
            "namespace": "team",
            "uid": "workload-uid",
            "creationTimestamp": stamp(90),
            "ownerReferences": [owner],
        },
        "spec": {"queueName": "gpus", "podSets": [{"name": "main", "count": 2, "template": template}]},
        "status": {
            "conditions": [
                {"type": kind, "status": status, "lastTransitionTime": stamp(at_s), "reason": reason}
                for kind, status, at_s, reason in conditions
            ]
        },
    }


def test_a_pod_that_ran_has_each_phase() -> None:
    assert brief(pod_spans("uid", replace(POD, ended_s=200.0))) == [
        ("wait for node", 100, 110, ""),
        ("start containers", 110, 120, ""),
        ("become ready", 120, 125, ""),
        ("run pod", 120, 200, ""),
    ]
    assert brief(pod_spans("uid", POD))[-1][0] == "become ready", "it still runs"


def test_a_phase_that_is_cut_off_ends_as_an_error_that_says_why() -> None:
    unbound = replace(POD, bound_s=None, started_s=None, ready_s=None, node="")
    assert brief(pod_spans("uid", unbound)) == []
    assert brief(pod_spans("uid", unbound, gone_s=150.0)) == [
        ("wait for node", 100, 150, "deleted: it was never bound to a node")
    ]
    bound = replace(POD, started_s=None, ready_s=None, ended_s=140.0, failed="Evicted")
    assert brief(pod_spans("uid", bound))[-1] == ("start containers", 110, 140, "Evicted: it never ran")
    evicted = replace(POD, deleted_s=160.0, failed="PreemptionByScheduler")
    assert brief(pod_spans("uid", evicted)) == brief(pod_spans("uid", POD)), "its grace period runs"
    assert brief(pod_spans("uid", evicted, gone_s=170.0))[-1] == ("run pod", 120, 160, "PreemptionByScheduler")


def restarted(*runs: tuple[float, float | None], count: int) -> Object:
    """A running pod whose container has run before; of its runs a status has the last two."""
    document, (last, *now) = running(), runs
    ended = {"terminated": {"startedAt": stamp(last[0]), "finishedAt": stamp(last[1] or 0.0), "exitCode": 1}}
    state = {"running": {"startedAt": stamp(now[0][0])}} if now else {"waiting": {"reason": "CrashLoopBackOff"}}
    document["status"]["containerStatuses"] = [{"state": state, "lastState": ended, "restartCount": count}]
    return document


def test_a_pod_runs_from_the_first_start_of_its_containers() -> None:
    for document in (restarted((120, 28920), count=1), restarted((120, 300), (310, None), count=1)):
        ledger = Ledger()
        ledger.pod(document)
        ledger.pod(document, gone=True)
        assert ledger.brief("start containers") == [("start containers", 110, 120, "")]
        assert ledger.brief("run pod") == [("run pod", 120, 1000, "deleted")]


def test_what_has_started_often_is_remembered_by_who_has_seen_the_first_start() -> None:
    ledger = Ledger()
    for document in (running(), restarted((120, 300), (310, None), count=1), restarted((310, 400), count=2)):
        ledger.pod(document)
    ledger.pod(document, gone=True)
    assert ledger.brief()[1:] == [
        ("start containers", 110, 120, ""),
        ("become ready", 120, 125, ""),
        ("run pod", 120, 1000, "deleted"),
    ]


def test_who_has_not_seen_a_start_says_nothing_of_it() -> None:
    unknown = restarted((120, 300), count=3)
    del unknown["status"]["containerStatuses"][0]["lastState"]
    ledger = Ledger()
    ledger.pod(unknown)
    ledger.pod(unknown, gone=True)
    assert ledger.brief() == [("wait for node", 100, 110, "")]


def test_no_span_ends_before_it_starts_where_clocks_differ() -> None:
    late = replace(POD, bound_s=130.0)
    assert ("start containers", 130, 130, "") in brief(pod_spans("uid", late))


def test_ids_are_the_same_whoever_sends_them_and_differ_otherwise() -> None:
    first, again = (list(pod_spans("uid", replace(POD, ended_s=200.0))) for _ in range(2))
    assert first == again
    other = list(pod_spans("other", replace(POD, ended_s=200.0)))
    ids = [span.context.span_id for span in (*first, *other)]
    assert len(ids) == len({*ids}) == 8
    assert {(span.context.trace_id, span.context.parent_id) for span in first} == {(TRACE, CONTEXT.span_id)}


def test_a_workload_waits_and_holds_its_quota() -> None:
    assert brief(workload_spans("uid", WORKLOAD)) == [("wait for quota", 90, 95, "")]
    done = replace(WORKLOAD, finished_s=200.0)
    assert brief(workload_spans("uid", done))[-1] == ("hold quota", 95, 200, "")
    checked = replace(WORKLOAD, checked=True, admitted_s=99.0)
    assert brief(workload_spans("uid", checked)) == [
        ("wait for quota", 90, 95, ""),
        ("pass admission checks", 95, 99, ""),
    ]
    never = replace(WORKLOAD, reserved_s=None, admitted_s=None)
    assert brief(workload_spans("uid", never)) == []
    assert brief(workload_spans("uid", never, gone_s=130.0)) == [
        ("wait for quota", 90, 130, "deleted: it was never admitted")
    ]


class Recorded(SpanExport):
    """Keeps spans instead of sending them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @property
    def wanted(self) -> bool:
        return True

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def flush(self) -> None:
        pass


class Ledger:
    """Observes as the process does; the leader unless told otherwise."""

    def __init__(self, *, leads: bool = True) -> None:
        self.export, self.leads, self.now_s = Recorded(), leads, 1000.0
        self.observed = Observed(lambda: 0.0)
        self.lives = LifeSpans(self.observed, self.export, lambda: self.leads, lambda: self.now_s)
        self._pods: dict[str, Any] = {}
        self._workload: Any = None

    def pod(self, document: Object, *, gone: bool = False) -> None:
        new, old = None if gone else read_pod(document), self._pods.get(document["metadata"]["uid"])
        self._pods[document["metadata"]["uid"]] = new
        self.observed.pod(old, new)
        self.lives.pod(old, new)

    def workload(self, document: Object | None) -> None:
        new, old = None if document is None else read_workload(document), self._workload
        self._workload = new
        self.observed.workload(old, new)
        self.lives.workload(old, new)

    def brief(self, name: str = "") -> list[tuple[str, float, float, str]]:
        return [item for item in brief(self.export.spans) if name in ("", item[0])]


def test_an_eviction_and_the_way_back_are_spans_of_their_own() -> None:
    ledger = Ledger()
    back = [("QuotaReserved", "True", 300.0, ""), ("Admitted", "True", 300.0, ""), ("Evicted", "False", 300.0, "")]
    for conditions in (
        [],
        [("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")],
        [
            ("QuotaReserved", "False", 200.0, ""),
            ("Admitted", "False", 200.0, ""),
            ("Evicted", "True", 200.0, "Preempted"),
        ],
        back,
        [*back, ("Finished", "True", 400.0, "Succeeded")],
    ):
        for _ in range(2):
            ledger.workload(workload(*conditions))
    ledger.workload(None)
    assert ledger.brief() == [
        ("wait for quota", 90, 95, ""),
        ("hold quota", 95, 200, "evicted: Preempted"),
        ("wait for quota", 200, 300, ""),
        ("hold quota", 300, 400, ""),
    ]
    assert len({span.context.span_id for span in ledger.export.spans}) == 4


def test_a_ledger_that_has_not_seen_the_eviction_makes_nothing_up() -> None:
    ledger = Ledger()
    ledger.workload(
        workload(("QuotaReserved", "True", 300.0, ""), ("Admitted", "True", 300.0, ""), ("Evicted", "False", 300.0, ""))
    )
    assert ledger.brief() == []


async def test_the_next_leader_sends_the_same_spans() -> None:
    first, second = Ledger(), Ledger(leads=False)
    for ledger in (first, second):
        ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")))
        ledger.pod(running())
    assert second.export.spans == []
    second.leads = True
    await second.lives.send_all()
    key = [(span.name, span.context, span.start_ns, span.end_ns) for span in first.export.spans]
    assert sorted(key, key=str) == sorted(
        ((span.name, span.context, span.start_ns, span.end_ns) for span in second.export.spans), key=str
    )
    assert len(key) == 4
    await second.lives.send_all()
    assert len(second.export.spans) == 4


def test_pods_of_a_gang_are_linked_to_the_first_and_to_the_wait_for_their_quota() -> None:
    ledger = Ledger()
    ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")))
    names = ("train-0", "train-1", "train-2")
    for name in names:
        ledger.pod(pod(name, phase="Pending"))
    for name in names:
        ledger.pod(running(name))
    waited = next(span for span in ledger.export.spans if span.name == "wait for quota").context.span_id
    starts = [span for span in ledger.export.spans if span.name == "start containers"]
    links = {span.about["k8s.pod.name"]: [link.span_id for link in span.links] for span in starts}
    first = starts[0].context.span_id
    assert links == {"train-0": [waited], "train-1": [first, waited], "train-2": [first, waited]}


def test_a_pod_alone_is_linked_to_the_wait_for_its_quota() -> None:
    ledger = Ledger()
    ledger.pod(running("train-1", owner="other"))
    ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")))
    ledger.pod(running())
    assert [span.links for span in ledger.export.spans if span.about.get("k8s.pod.name") == "train-1"] == [()] * 3
    waited = next(span for span in ledger.export.spans if span.name == "wait for quota").context.span_id
    assert [[link.span_id for link in span.links] for span in ledger.export.spans if span.links] == [[waited]]


def test_pods_of_the_next_attempt_are_linked_to_each_other_and_to_the_wait_before_it() -> None:
    ledger = Ledger()
    ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")))
    for name in ("old-0", "old-1"):
        ledger.pod(running(name))
    gone = [("QuotaReserved", "False", 200.0, ""), ("Evicted", "True", 200.0, "Preempted")]
    ledger.workload(workload(*gone))
    ledger.pod(running("old-0"), gone=True)
    back = [("QuotaReserved", "True", 300.0, ""), ("Admitted", "True", 300.0, ""), ("Evicted", "False", 300.0, "")]
    for late in (False, True):
        # A pod of the first attempt may still be there, or its end be seen late.
        if late:
            ledger.workload(workload(*back))
        ledger.pod(running("old-1"), gone=late)
    for name in ("new-1", "new-0"):
        ledger.pod(pod(name, created_s=301.0, phase="Pending"))
    for name in ("new-0", "new-1"):
        ledger.pod(running(name, created_s=301.0))
    first, second = (span.context.span_id for span in ledger.export.spans if span.name == "wait for quota")
    starts = {span.about["k8s.pod.name"]: span for span in ledger.export.spans if span.name == "start containers"}
    links = {name: [link.span_id for link in span.links] for name, span in starts.items()}
    assert links["old-1"] == [starts["old-0"].context.span_id, first]
    assert links["new-0"] == [second]
    assert links["new-1"] == [starts["new-0"].context.span_id, second]
    ends = {span.about["k8s.pod.name"]: span.links for span in ledger.export.spans if span.name == "run pod"}
    assert ends == {name: starts[name].links for name in ("old-0", "old-1")}


async def test_what_was_deleted_between_two_leaders_is_sent_by_the_next() -> None:
    first, second = Ledger(), Ledger(leads=False)
    for ledger in (first, second):
        ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")))
        ledger.pod(running())
        ledger.pod(running(), gone=True)
        ledger.workload(None)
    assert second.export.spans == []
    second.leads = True
    await second.lives.send_all()
    assert {span.context.span_id: span for span in second.export.spans} == {
        span.context.span_id: span for span in first.export.spans
    }
    await second.lives.send_all()
    assert len(second.export.spans) == len(first.export.spans) == 6


async def test_what_was_deleted_long_before_was_sent_by_its_leader() -> None:
    ledger = Ledger(leads=False)
    ledger.pod(running())
    ledger.pod(running(), gone=True)
    ledger.leads, ledger.now_s = True, 2000.0
    await ledger.lives.send_all()
    assert ledger.export.spans == []


def test_of_what_has_gone_nothing_is_kept_whatever_became_of_its_annotation() -> None:
    def kept(ledger: Ledger) -> int:
        return sum(len(value) for value in vars(ledger.lives).values() if isinstance(value, Sized))

    queued, plain = workload(("QuotaReserved", "True", 95.0, "")), running()
    del plain["metadata"]["annotations"]
    for last_pod, last in ((running(), queued), (plain, workload(("QuotaReserved", "True", 95.0, ""), annotation=""))):
        ledger = Ledger()
        ledger.workload(queued)
        ledger.pod(running())
        assert kept(ledger) > 5
        ledger.pod(last_pod)
        ledger.pod(last_pod, gone=True)
        ledger.workload(last)
        ledger.workload(None)
        assert kept(ledger) == 0


async def test_a_slow_collector_gets_every_span_of_a_large_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector(delay_s=0.05) as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        # A fourth of the defaults, so that a gang of 300 is large.
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "128")
        export, observed = SpanExport("kopt-evictions"), Observed(lambda: 0.0)
        lives = LifeSpans(observed, export, lambda: True, lambda: 1000.0)
        for number in range(300):
            observed.pod(None, read_pod(running(f"train-{number}")))
        await lives.send_all()
        await asyncio.to_thread(export.close)
        spans = [
            span.span_id
            for batch in received
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len(spans) == len({*spans}) == 900


async def test_a_large_gang_leaves_the_loop_to_the_lease() -> None:
    ledger = Ledger(leads=False)
    ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), ("Admitted", "True", 95.0, "")))
    for number in range(1000):
        ledger.pod(running(f"train-{number}"))
    ledger.leads = True
    longest_s, sending = 0.0, asyncio.create_task(ledger.lives.send_all())
    while not sending.done():
        began = time.process_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.process_time() - began)
    assert len(ledger.export.spans) == 1 + 3 * 1000
    assert sum(len(span.links) for span in ledger.export.spans) == 2 * 1000 - 1
    assert longest_s < 0.5, "Links that each pod looked for in its gang took 3 s."


@pytest.mark.parametrize("annotation", ["", "nonsense", PARENT[:-1] + "0", PARENT * 2])
def test_without_a_sampled_context_nothing_is_traced(annotation: str) -> None:
    ledger, untraced = Ledger(), running()
    untraced["metadata"]["annotations"]["kaiwo.ai/traceparent"] = annotation
    ledger.pod(untraced)
    ledger.pod(untraced, gone=True)
    ledger.workload(workload(("QuotaReserved", "True", 95.0, ""), annotation=annotation))
    ledger.workload(None)
    assert ledger.export.spans == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(stamp(120)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_PARTS = ("conditions", "containerStatuses", "phase", "reason", "admissionChecks")


@given(st.dictionaries(st.sampled_from(_PARTS), _JSON), _JSON)
def test_whatever_stands_in_a_status_is_read(status: Object, grace: Any) -> None:
    hostile = pod(**status)
    hostile["metadata"]["deletionGracePeriodSeconds"] = grace
    traced = read_traced_pod(hostile)
    assert traced is not None
    spans = list(pod_spans("uid", traced, 130.0))
    assert all(span.start_ns <= span.end_ns for span in spans)
    queued = read_traced_workload(workload() | {"status": status})
    assert queued is not None
    assert all(span.start_ns <= span.end_ns for span in workload_spans("uid", queued, None, 130.0))


def test_however_often_and_late_it_is_seen_each_span_is_sent_once() -> None:
    ended = running()
    ended["status"]["phase"] = "Succeeded"
    ended["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"startedAt": stamp(120), "finishedAt": stamp(180), "exitCode": 0}
    }
    for order in itertools.permutations([pod(phase="Pending"), running(), ended]):
        ledger = Ledger()
        for document in (*order, *order, ended):
            ledger.pod(document)
        ledger.pod(ended, gone=True)
        ids = [span.context.span_id for span in ledger.export.spans]
        assert len(ids) == len({*ids}) == 4
        assert ledger.brief("run pod") == [("run pod", 120, 180, "")]
