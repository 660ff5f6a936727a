"""What ``kopt why`` says of a job, from its objects alone: every holder, verdict and state; hostile text too."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kopt.cli.cluster.queueing.queue import answer
from kopt.cli.main import app
from kopt.cluster.client.resources import JOBS, KAI_POD_GROUPS, PODS
from kopt.cluster.holds.hold import hold_metadata
from kopt.cluster.objects.eviction import notice_text
from kopt.controllers.overview.asking import wanted_of
from kopt.controllers.overview.documents import number, pool_of, staged_of
from kopt.controllers.overview.job import JobSnapshot, Thing
from kopt.controllers.overview.queues import lines, queued_of, unqueued
from kopt.controllers.overview.reading import Lines, Wanted
from kopt.controllers.overview.text import sentence
from kopt.controllers.overview.why import Now, Why, why
from kopt.core.scheduling.eviction import Cause, Entry, Eviction, Notice, Phase, Return, System, Verified, WorkloadRef
from kopt.core.scheduling.queued import State

NOW_S = 1_900_000_000.0
GPU = "nvidia.com/gpu"
Object = dict[str, Any]


def stamp(ago_s: float = 0.0) -> str:
    return datetime.fromtimestamp(NOW_S - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def job(
    name: str = "train", *, notes: dict[str, str] | None = None, labels: dict[str, str] | None = None, **more: Any
) -> Object:
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"job-{name}",
        "creationTimestamp": stamp(600),
        "annotations": notes or {},
        "labels": labels or {},
    }
    return {"metadata": meta, "spec": {"suspend": True}, "status": {}} | more


def workload(
    name: str = "train",
    gpus: int = 2,
    *,
    priority: int = 100,
    age_s: float = 500,
    state: str = "waits",
    notes: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    limits = {"limits": {GPU: str(gpus)}}
    template = {"spec": {"containers": [{"name": "a", "resources": limits}]}}
    reserved = {
        "type": "QuotaReserved",
        "status": "True" if state != "waits" else "False",
        "message": "couldn't assign flavors",
        "lastTransitionTime": stamp(age_s - 10),
    }
    conditions = [reserved]
    status: Object = {"conditions": conditions}
    if state != "waits":
        conditions.append({"type": "Admitted", "status": "True", "lastTransitionTime": stamp(age_s - 10)})
        usage = {"name": "main", "count": 1, "flavors": {GPU: "lent"}, "resourceUsage": {GPU: str(gpus)}}
        status["admission"] = {"clusterQueue": "research", "podSetAssignments": [usage]}
    meta = {
        "name": f"job-{name}",
        "namespace": "team",
        "uid": f"workload-{name}",
        "resourceVersion": "1",
        "creationTimestamp": stamp(age_s),
        "annotations": notes or {},
        "labels": labels or {},
        "ownerReferences": [{"kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}],
    }
    pods = [{"name": "main", "count": 1, "template": template}]
    return {
        "metadata": meta,
        "status": status,
        "spec": {"queueName": "gpus", "priority": priority, "podSets": pods, "active": True} | spec,
    }


def pod(
    name: str = "train-0",
    *,
    node: str = "",
    phase: str = "Pending",
    notes: dict[str, str] | None = None,
    message: str = "",
    containers: Any = (),
    **spec: Any,
) -> Object:
    conditions = [
        {
            "type": "PodScheduled",
            "status": "True" if node else "False",
            "message": message,
            "lastTransitionTime": stamp(60),
        }
    ]
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"pod-{name}",
        "annotations": notes or {},
        "creationTimestamp": stamp(60),
        "ownerReferences": [
            {"kind": "Job", "apiVersion": "batch/v1", "name": "train", "uid": "job-train", "controller": True}
        ],
    }
    limits = {"limits": {GPU: "1"}}
    return {
        "metadata": meta,
        "spec": {"nodeName": node, "containers": [{"name": "a", "resources": limits}]} | spec,
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": list(containers),
            "startTime": stamp(50),
        },
    }


CLUSTER_QUEUE = {
    "metadata": {"name": "research"},
    "status": {"conditions": [{"type": "Active", "status": "True"}]},
    "spec": {"resourceGroups": [{"flavors": [{"name": "lent", "resources": [{"name": GPU, "nominalQuota": "8"}]}]}]},
}
LOCAL_QUEUE = {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"clusterQueue": "research"}}


def facts(root: Object | None = None, *workloads: Object, **more: Any) -> JobSnapshot:
    """A Job, its own Workload first, and others of its queue."""
    thing = Thing(JOBS, root or job())
    known = Lines(workloads, [LOCAL_QUEUE], more.get("pools", ()), True)
    base: Object = {
        "workloads": workloads[:1],
        "queued": tuple(known.queued(more.get("pods", ()), now_s=NOW_S)),
        "queue": "gpus" if workloads else "",
        "local_queue": LOCAL_QUEUE,
        "cluster_queue": CLUSTER_QUEUE,
        "has_kueue": True,
    }
    return JobSnapshot(NOW_S, thing, thing, **base | more)


def said(found: Why, code: str) -> str:
    return " ".join(one.message for one in found.findings if one.code == code)


def first(found: Why) -> str:
    return found.findings[0].code


def held_by(holder: str, **undo: Any) -> Object:
    return dict(hold_metadata(holder, undo))


def test_profiling_says_what_the_dry_run_is_for() -> None:
    state = json.dumps({"phase": "profile", "since_s": NOW_S - 120, "asked": {}})
    found = why(facts(job(labels=held_by("profiling")["labels"], notes={"kaiwo.ai/sizing-state": state})))
    assert (found.now, first(found)) == (Now.HELD, "HELD_PROFILING")
    assert "a dry run measures what it needs" in found.findings[0].message
    assert "(2 min)" in found.findings[0].message
    assert found.summary == "Job team/train is held; it was created 10 min ago."


def test_staging_says_how_far_it_is_and_that_no_gpu_waits() -> None:
    note = json.dumps({"state": "held", "data": ["corpus"], "bytes": 1 << 40, "bytesDone": 1 << 38, "secondsLeft": 780})
    found = why(facts(job(labels=held_by("staging")["labels"], notes={"kaiwo.ai/staging": note})))
    assert "corpus is being downloaded (25% of 1.0 TiB, about 13 min left). No GPU is reserved meanwhile." in said(
        found, "HELD_STAGING"
    )
    data = staged_of(
        {
            "metadata": {"name": "corpus", "namespace": "team"},
            "spec": {"source": "s3://user:pw@b/c"},
            "status": {"phase": "Failed", "reason": "NoRoom", "message": "12 GiB are missing", "attempts": 3},
        }
    )
    found = why(
        facts(job(notes={"kaiwo.ai/staged-data": "corpus, gone"}), staged=(data,), requested_data=("corpus", "gone"))
    )
    assert "failed after 3 attempts (NoRoom). 12 GiB are missing." in said(found, "DATA_FAILED")
    assert "gone, which does not exist" in said(found, "DATA_UNKNOWN")
    assert "pw@" not in said(found, "DATA_FAILED")
    assert found.next.startswith("Make room")
    again = why(facts(staged=(replace(data, retry_at_s=NOW_S + 300),), requested_data=("corpus",)))
    assert said(again, "DATA_FAILED").endswith("12 GiB are missing. It is tried again in 5 min.")
    ready = replace(data, phase="Ready", ready_at_s=NOW_S - 60, bytes=1 << 30)
    assert "is whole since" in said(why(facts(staged=(ready,), requested_data=("corpus",))), "DATA_READY")
    bad = why(facts(job(notes={"kaiwo.ai/stage": "s3://bucket/corpus"})))
    assert "SOURCE -> pvc://claim/path" in said(bad, "DATA_NOT_UNDERSTOOD")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (
            {"verdict": "wait", "until": stamp(-240), "reason": "A checkpoint is due"},
            "waits for a better moment, until",
        ),
        (
            {"verdict": "preempt", "victims": ["team/a", "team/b"], "lostGpuSeconds": 90, "reason": "They lose least"},
            "selected team/a, team/b to make room for it, which loses 90 s of GPU time. They lose least.",
        ),
        ({"verdict": "leave", "reason": "All write"}, "leaves it to the queue's own rule. All write."),
        ({"verdict": "lapsed", "reason": "x"}, "did not suffice in time"),
        (
            {"verdict": "advice", "victims": ["team/a"], "native": ["team/c"], "reason": "r"},
            "would select team/a to make room for it; nothing was done, and Kueue takes team/c by its own rule.",
        ),
    ],
)
def test_the_verdict_on_whom_it_may_pre_empt(verdict: Object, words: str) -> None:
    note = {"kaiwo.ai/preemption": json.dumps(verdict | {"at": stamp(5)})}
    found = why(facts(job(), workload(notes=note)))
    assert words in said(found, f"PREEMPTION_{verdict['verdict'].upper()}")
    held = why(
        facts(
            job(),
            workload(
                notes=note | held_by("preemption", active=True)["annotations"],
                labels=held_by("preemption")["labels"],
                active=False,
            ),
        )
    )
    assert first(held) == "HELD_PREEMPTION"
    assert held.now is Now.HELD


def test_a_verdict_on_the_pods_of_a_gang_is_told_once_and_while_they_wait() -> None:
    note = {"kaiwo.ai/preemption": json.dumps({"verdict": "wait", "reason": "soon", "at": stamp(5)})}
    found = why(facts(pods=(pod(notes=note), pod("train-1", notes=note))))
    assert said(found, "PREEMPTION_WAIT") == "Pre-emption waits for a better moment. soon."
    placed = why(facts(pods=(pod(notes=note, node="n1"),)))
    assert not said(placed, "PREEMPTION_WAIT")


def test_a_covered_workload_is_not_held() -> None:
    cover = held_by("preemption", raised=1001, priority=100)
    one = workload(state="runs", labels=cover["labels"], notes=cover["annotations"], priority=1001)
    found = why(facts(job(), one, pods=(pod(node="n1", phase="Running"),)))
    assert found.now is Now.RUNNING
    assert not [one for one in found.findings if one.code.startswith("HELD")]


def entry(name: str = "train", phase: Phase = Phase.WAITING, ago_s: float = 240, order: int = 1, **more: Any) -> Entry:
    ref = WorkloadRef("batch/v1", "Job", name, f"job-{name}")
    outcome = {
        "resumed_at_s": more.pop("back", None),
        "resumed_step": more.pop("step", None),
        "verified": more.pop("verified", None),
    }
    base: Object = {
        "by": "kopt-reallocation",
        "for_whom": "prod/chat",
        "reason": "A spike comes",
        "gpus": 4000,
        "last_durable_step": 500,
        "lost_gpu_s": 7200.0,
        "cause": Cause.LENDING,
    }
    base |= more
    eviction = Eviction(
        "team", f"{name}-{order}", ref, System.KUEUE, NOW_S - ago_s, base.pop("cause"), order=order, **base
    )
    return Entry(eviction, Return(phase, **outcome))


def test_an_eviction_tells_why_what_was_lost_and_as_which_it_returns() -> None:
    ledger = (
        entry(order=7),
        entry("other", order=3),
        entry("later", order=9),
        entry("preempted", order=1, cause=Cause.PREEMPTED),
    )
    found = why(facts(job(), workload(), evictions=ledger))
    words = said(found, "EVICTED_WAITING")
    assert found.now is Now.EVICTED
    assert "as GPUs that were lent to it were taken back 4 min ago by kopt-reallocation, for prod/chat" in words
    assert "gave 4 GPUs back. A spike comes. Lost: 2 GPU-hours of work, step 500 was saved." in words
    assert "It returns as the 2nd of 3." in words
    wrong = why(
        facts(job(), workload(), evictions=(entry(phase=Phase.RESUMED, back=NOW_S - 60, step=3, verified=Verified.NO),))
    )
    assert "back after 3 min at step 3, which is NOT where its checkpoint was" in said(wrong, "EVICTED_RESUMED")
    many = why(
        facts(job(), workload(), evictions=tuple(entry(order=i, ago_s=9000 + i, phase=Phase.RESUMED) for i in range(5)))
    )
    assert "evicted 5 times in all; 10 GPU-hours" in said(many, "EVICTIONS")
    made = why(facts(job(), workload(), evictions=(entry("victim", for_whom="team/job-train"),)))
    assert "team/victim gave 4 GPUs back" in said(made, "ROOM_MADE")


def pool(**status: Any) -> Any:
    return pool_of(
        {
            "metadata": {"name": "gpus"},
            "spec": {"gpus": 16, "borrowers": [{"system": "Kueue", "queue": "research", "flavor": "lent"}]},
            "status": {
                "lentGpus": 8,
                "borrowedGpus": 4,
                "decision": {"verb": "reclaim", "gpus": 4, "reasons": [{"code": "S", "message": "p99 rises to 14"}]},
            }
            | status,
        }
    )


def test_loans_of_its_queue_are_told() -> None:
    running = (pod(node="n1", phase="Running"),)
    found = why(facts(job(), workload(state="runs"), pools=(pool(),), pods=running))
    assert "LendingPool gpus lends its queue 8 GPUs, 4 of them in use. p99 rises to 14." in said(found, "POOL_LENDS")
    back = pool(reclaiming={"gpus": 4, "by": stamp(-300), "victims": ["team/train"]})
    found = why(facts(job(), workload(state="runs"), pools=(back,), pods=running))
    assert "takes 4 GPUs back until" in said(found, "POOL_RECLAIMS")
    assert "It is among those that give them back." in said(found, "POOL_RECLAIMS")
    (own,) = facts(job(), workload(state="runs"), pools=(pool(),)).own
    assert own.pool == "gpus"
    held = why(facts(job(labels=held_by("lending")["labels"]), workload(), pools=(back,)))
    assert "LendingPool gpus has taken back what it lent" in said(held, "HELD_LENDING")
    other = pool_of(
        {
            "metadata": {"name": "another"},
            "spec": {"borrowers": [{"system": "KAI", "queue": "vision"}]},
            "status": {"reclaiming": {"gpus": 2}},
        }
    )
    held = why(facts(job(labels=held_by("lending")["labels"]), workload(), pools=(other, back)))
    assert "LendingPool gpus has taken back" in said(held, "HELD_LENDING"), "that of its queue"
    held = why(facts(job(labels=held_by("lending")["labels"]), workload(), pools=(other,)))
    assert "another" not in said(held, "HELD_LENDING")


def test_what_is_asked_of_a_running_job_is_told_while_it_holds() -> None:
    ask = {"at": stamp(30), "until": stamp(-60), "by": "kopt-preemption", "reason": "prod/x needs its GPUs"}
    notice = Notice("kopt-preemption", Cause.PREEMPTED, "prod/x", NOW_S - 10, "it loses least")
    running = pod(node="n1", phase="Running", notes={"kaiwo.ai/save-requested": json.dumps(ask)})
    one = workload(state="runs", notes={"kaiwo.ai/evicting": notice_text(notice)})
    found = why(facts(job(), one, pods=(running,)))
    assert "asked by kopt-preemption to save a checkpoint by" in said(found, "SAVE_ASKED")
    assert "selected by kopt-preemption to make room for prod/x, 10 s ago. it loses least." in said(found, "TOLD_TO_GO")
    old = {"kaiwo.ai/save-requested": json.dumps(ask | {"until": stamp(1)})}
    assert not said(why(facts(job(), one, pods=(pod(node="n", phase="Running", notes=old),))), "SAVE_ASKED")


def test_containers_that_fail_come_before_everything_that_waits() -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    status = {
        "name": "main",
        "restartCount": 4,
        "state": {"waiting": waiting},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamp(30)}},
    }
    found = why(facts(job(), workload(state="runs"), pods=(pod(node="n1", containers=[status]),)))
    assert (found.now, first(found)) == (Now.FAILING, "CONTAINER_FAILS")
    words = found.findings[0].message
    assert "does not start (CrashLoopBackOff). back-off." in words
    assert "It ended 30 s ago with exit status 137 (OOMKilled). 4 restarts so far." in words
    assert "resources.limits.memory" in found.next
    image = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    assert "image's name" in why(facts(job(), workload(state="runs"), pods=(pod(node="n", containers=[image]),))).next


def test_gates_and_gangs_are_told() -> None:
    gated = pod(schedulingGates=[{"name": "example.com/wait"}])
    assert "scheduling gates (example.com/wait)" in said(why(facts(pods=(gated,))), "GATED")
    group = {
        "metadata": {"name": "pg", "namespace": "team", "uid": "pg"},
        "status": {
            "schedulingConditions": [
                {
                    "type": "UnschedulableOnNodePool",
                    "status": "True",
                    "message": "queue team quota is 8, 8 are allocated",
                }
            ]
        },
    }
    found = why(
        facts(pods=(pod(message="gang"), pod("train-1", message="gang")), groups=(Thing(KAI_POD_GROUPS, group),))
    )
    assert first(found) == "GANG_UNSCHEDULABLE"
    assert "queue team quota is 8, 8 are allocated." in found.findings[0].message
    assert said(found, "UNSCHEDULABLE").startswith("2 of its 2 pods have no node")


def test_what_has_ended_says_how_and_nothing_of_queues() -> None:
    done = job(status={"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": stamp(60)}]})
    found = why(facts(done, workload()))
    assert found.summary == "Job team/train has finished."
    assert [one.code for one in found.findings] == ["FINISHED"]
    failed = job(
        status={
            "conditions": [
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": "BackoffLimitExceeded",
                    "message": "it has reached the limit",
                }
            ]
        }
    )
    found = why(facts(failed))
    assert found.now is Now.FAILED
    assert "BackoffLimitExceeded: it has reached the limit." in said(found, "FAILED")
    assert "kubectl -n team logs job/train" in found.next


def test_a_job_that_its_owner_suspended_says_so() -> None:
    found = why(facts())
    assert (found.now, first(found)) == (Now.BLOCKED, "SUSPENDED")
    assert '"suspend":false' in found.next
    free = why(facts(job(spec={"suspend": False})))
    assert first(free) == "NO_PODS"


def test_what_is_decided_and_who_gave_the_queue() -> None:
    notes = {"kaiwo.ai/recommended-reason": "It needs 9 GiB", "kaiwo.ai/gpu-indices": "2,3"}
    found = why(facts(job(notes=notes, labels={"kaiwo.ai/queue-source": "namespace"}), workload()))
    told = [one.message for one in found.findings if one.code in ("DECIDED", "QUEUE_GIVEN")]
    assert "Its size: It needs 9 GiB." in told
    assert "It was placed on the GPUs 2,3 of its node." in told
    assert "Its queue gpus was set by the webhook (from the namespace)." in told


def test_positions_are_by_priority_then_age_and_eviction_for_late_pods_counts_as_age() -> None:
    others = [workload("old", age_s=900), workload("new", age_s=100), workload("urgent", age_s=50, priority=1000)]
    late = workload("late", age_s=2000)
    late["status"]["conditions"].append(
        {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout", "lastTransitionTime": stamp(70)}
    )
    preempted = workload("preempted", age_s=3000)
    preempted["status"]["conditions"].append(
        {"type": "Evicted", "status": "True", "reason": "Preempted", "lastTransitionTime": stamp(5)}
    )
    found = facts(job(), workload(age_s=500), *others, late, preempted)
    order = [(one.name, one.position) for one in found.queued if one.state is State.PENDING]
    assert order == [("urgent", 1), ("preempted", 2), ("old", 3), ("train", 4), ("new", 5), ("late", 6)]
    words = said(why(found), "QUEUED")
    assert "4th of 6" in words
    assert "Ahead: team/urgent (2 GPUs, priority 1000), team/preempted (2 GPUs, priority 100), team/old" in words


def test_gangs_of_other_schedulers_are_one_line_each() -> None:
    gang = [
        pod(f"w-{i}", notes={"pod-group-name": "pg-1"}, schedulerName="kai-scheduler", node="n" * (i == 0))
        for i in range(2)
    ]
    for one in gang:
        one["metadata"]["labels"] = {"kai.scheduler/queue": "team-a"}
    (line,) = lines(unqueued([*gang, {"metadata": {"name": "cpu", "uid": "c"}, "spec": {}}], NOW_S))
    assert (line.system, line.queue, line.gpus, line.state) == (System.KAI, "team-a", 2000, State.PENDING)
    shown = answer([line], ("evictions",), NOW_S)
    assert "You may not read evictions" in shown.remarks[-1]
    assert answer([line], (), NOW_S, waiting=True, name="team-a").rows
    assert not answer([line], (), NOW_S, name="team-b").rows
    assert not answer([line], (), NOW_S, namespace="other").rows


@pytest.mark.parametrize(
    ("text", "namespace", "wanted"),
    [
        ("train", "", Wanted("train")),
        ("team/train", "", Wanted("train", "team")),
        ("job/train", "", Wanted("train", kind="job")),
        ("pods/x", "n", Wanted("x", "n", "pods")),
        ("rayjob/team/x", "", Wanted("x", "team", "rayjob")),
        ("team/x", "team", Wanted("x", "team")),
    ],
)
def test_names(text: str, namespace: str, wanted: Wanted) -> None:
    assert wanted_of(text, namespace) == wanted


def test_two_namespaces_are_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["why", "a/b", "-n", "c"])
    assert done.exit_code == 2


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_NOTES = st.dictionaries(
    st.sampled_from(
        [
            "kaiwo.ai/preemption",
            "kaiwo.ai/staging",
            "kaiwo.ai/held-undo",
            "kaiwo.ai/sizing-state",
            "kaiwo.ai/save-requested",
            "kaiwo.ai/evicting",
            "kaiwo.ai/stage",
            "kaiwo.ai/staged-data",
            "kaiwo.ai/checkpoint-state",
            "kaiwo.ai/last-checkpoint-time",
            "kaiwo.ai/work-at-risk",
            "kaiwo.ai/checkpoint-observed-at",
            "kaiwo.ai/recommended-reason",
        ]
    ),
    st.text(max_size=20)
    | _JSON.map(json.dumps)
    | st.builds(
        lambda **found: json.dumps(found),
        state=_JSON,
        verdict=st.text(max_size=5) | _JSON,
        until=_JSON,
        victims=_JSON,
        by=_JSON,
        reason=_JSON,
        data=_JSON,
        bytes=_JSON,
        bytesDone=_JSON,
        secondsLeft=_JSON,
        raised=_JSON,
        since_s=_JSON,
        phase=_JSON,
        at=st.just(stamp(3)) | _JSON,
    ),
    max_size=5,
)


@given(
    notes=_NOTES,
    holder=st.sampled_from(["", "staging", "profiling", "preemption", "lending", "x" * 60]),
    status=_JSON,
    spec=_JSON,
    conditions=_JSON,
    statuses=_JSON,
)
@settings(max_examples=examples(200))
def test_nothing_in_the_objects_breaks_the_answer(
    notes: Any, holder: str, status: Any, spec: Any, conditions: Any, statuses: Any
) -> None:
    labels = {"kaiwo.ai/held": holder} if holder else {}
    root = job(notes=notes, labels=labels, status=status, spec=spec)
    own = workload(notes=notes, labels=labels)
    own["status"]["conditions"] = conditions
    one = pod(notes=notes)
    one["status"] |= {"containerStatuses": statuses, "conditions": conditions}
    group = {"metadata": {"name": "g", "namespace": "team", "uid": "g"}, "status": {"schedulingConditions": conditions}}
    found = why(
        facts(
            root,
            own,
            pods=(one,),
            groups=(Thing(KAI_POD_GROUPS, group),),
            requested_data=("a",),
            staged=(staged_of({"metadata": {"name": "a"}, "spec": spec, "status": status}),),
            pools=(pool_of({"metadata": {"name": "p"}, "spec": spec, "status": status}),),
        )
    )
    assert found.summary
    assert all("\n" not in one.message for one in found.findings)
    json.dumps([one.message for one in found.findings])


def test_a_pod_alone_is_a_job_of_its_own() -> None:
    alone = pod(node="n1", phase="Running")
    alone["metadata"]["ownerReferences"] = []
    thing = Thing(PODS, alone)
    found = why(JobSnapshot(NOW_S, thing, thing, pods=(alone,)))
    assert found.summary == "Pod team/train-0 runs."


def test_figures_that_are_none_are_left_out_and_foreign_text_is_one_line() -> None:
    for bad in (float("nan"), float("inf"), 10**400, 1e300, True, "8", [], None):
        assert number({"a": bad}, "a") is None
    assert number({"a": 3}, "a") == 3.0
    assert sentence(" two\n lines\x1b[31m ") == "two lines\x1b[31m."
    assert len(sentence("x" * 5000)) == 600


def test_a_workload_of_no_gpus_is_no_line() -> None:
    assert queued_of(workload(gpus=0), {}) is None


def test_quota_is_told_by_flavour_and_with_what_its_cohort_lets_it_borrow() -> None:
    flavors = [
        {"name": "lent", "resources": [{"name": GPU, "nominalQuota": "4", "borrowingLimit": "2"}]},
        {"name": "h100", "resources": [{"name": GPU, "nominalQuota": "2", "borrowingLimit": "0"}]},
    ]
    queue = {**CLUSTER_QUEUE, "spec": {"cohort": "all", "resourceGroups": [{"flavors": flavors}]}}
    words = said(why(facts(job(), workload("train"), workload("other", state="runs"), cluster_queue=queue)), "QUEUED")
    used = "4 GPUs of flavor lent, 2 in use; it may borrow 2 GPUs in cohort all"
    assert f"The queue has {used}; 2 GPUs of flavor h100, 0 in use; it may borrow none in cohort all." in words
