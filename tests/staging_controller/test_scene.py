"""What a pass is decided on: whose copies make room and for whom, folders that are shared, a Job's last words."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.custom.staged_data import staged_data_of, status_of
from kopt.cluster.objects.namespace import NamespaceSettings
from kopt.controllers.staging.ports import DataObject, Silent, StagingSettings
from kopt.controllers.staging.reading import read_pod
from kopt.controllers.staging.snapshot import StagingSnapshot, snapshot_of
from kopt.controllers.staging.views import (
    DownloadJob,
    DownloadPod,
    QueuedWorkload,
    RequestingWorkload,
    StagingNode,
)
from kopt.core.decision import Mode
from kopt.core.staging.manifest import Trouble
from kopt.core.staging.staged_data import (
    CLAIM,
    Amounts,
    ClaimFolder,
    Copy,
    DataPhase,
    DataSpec,
    NodeCache,
    Request,
    StagedData,
    StageResult,
)
from kopt.policies.staging.copies import Run, Verb
from kopt.policies.staging.decide import decide
from kopt.policies.staging.pod import PodSettings
from kopt.policies.staging.rules import StagingRules

NOW = 10_000.0


@dataclass
class Seen:
    """A cluster of what is given."""

    found: list[StagedData] = field(default_factory=list)
    asking: list[RequestingWorkload] = field(default_factory=list)
    made: list[DownloadJob] = field(default_factory=list)
    said: list[DownloadPod] = field(default_factory=list)

    def data(self) -> Sequence[DataObject]:
        return [DataObject({"metadata": {}}, "1", one) for one in self.found]

    def workloads(self) -> Sequence[RequestingWorkload]:
        return self.asking

    def jobs(self) -> Sequence[DownloadJob]:
        return self.made

    def pods(self) -> Sequence[DownloadPod]:
        return self.said

    def nodes(self) -> Sequence[StagingNode]:
        return [StagingNode("a", "a", (), 8000, usable=True)]

    def kueue(self) -> Sequence[QueuedWorkload]:
        return []

    def namespace(self, name: str) -> NamespaceSettings:
        return NamespaceSettings(managed=True)

    def noted(self, resource: Resource, document: Object) -> None:
        raise AssertionError

    def scene(self, **rules: Any) -> StagingSnapshot:
        return snapshot_of(self, Silent(), settings(**rules), NOW)


def settings(**rules: Any) -> StagingSettings:
    return StagingSettings(PodSettings("image"), Mode.ENFORCE, StagingRules(**rules))


def data(name: str, size: int, last_used_s: float, *, path: str = "", node: str = "", **copy: Any) -> StagedData:
    place = NodeCache() if node else ClaimFolder("claim", path or name)
    made = Copy(node or CLAIM, DataPhase.READY, 1, generation=1, digest="d", amounts=Amounts(size, size), removed=False)
    return StagedData(
        "team",
        name,
        f"uid-{name}",
        1,
        DataSpec("s3://b/c", place),
        copies=(replace(made, **copy),),
        last_used_at_s=last_used_s,
    )


def asks(name: str) -> RequestingWorkload:
    from kopt.cluster.client.resources import JOBS

    return RequestingWorkload(
        {},
        "1",
        JOBS,
        ("team", f"of-{name}"),
        f"of-{name}",
        Request((name,)),
        "",
        False,
        True,
        False,
        False,
        False,
        False,
        False,
        "",
        False,
        True,
        (),
    )


def test_a_full_disk_takes_what_was_used_longest_ago_of_the_same_claim_and_tries_again_soon() -> None:
    full = data(
        "full",
        100,
        0,
        phase=DataPhase.FAILED,
        reason=Trouble.NO_ROOM,
        failed_attempt=1,
        failures=1,
        retry_at_s=NOW + 600,
        amounts=Amounts(100, 40),
        digest="",
    )
    old, new, used = data("old", 50, 1), data("new", 50, 3), data("used", 500, 0)
    elsewhere = data("elsewhere", 500, 0, node="a")
    seen = Seen([full, old, new, used, elsewhere], [asks("full"), asks("used")])
    scene = seen.scene()
    assert scene.evicted == {("team", "old"), ("team", "new")}, "60 bytes are missing"
    outcome = decide(scene.data_snapshot(scene.data_objects["team", "full"], settings(), NOW), NOW, StagingRules())
    assert outcome.again_s == NOW + 10
    alone = Seen([full, used], [asks("full"), asks("used")]).scene()
    outcome = decide(alone.data_snapshot(alone.data_objects["team", "full"], settings(), NOW), NOW, StagingRules())
    assert outcome.again_s == NOW + 600


def test_a_node_keeps_to_its_budget_and_what_nobody_used_for_long_goes() -> None:
    seen = Seen([data("old", 50, 1, node="a"), data("new", 50, 2, node="a"), data("claimed", 500, 0)])
    assert seen.scene(node_budget_bytes=60).evicted == {("team", "old")}
    assert seen.scene(node_budget_bytes=100).evicted == frozenset()
    assert seen.scene(keep_unused_s=NOW - 1.5).evicted == {("team", "old"), ("team", "claimed")}
    seen.asking = [asks("old")]
    assert seen.scene(node_budget_bytes=60).evicted == {("team", "new")}, "what is used stays"


def test_a_folder_that_two_keep_is_not_taken_away_by_one() -> None:
    gone = replace(data("one", 5, 1, path="same"), deleting=True)
    for other, shared in ((data("two", 5, 1, path="same"), True), (data("two", 5, 1, path="other"), False)):
        scene = Seen([gone, other]).scene()
        outcome = decide(scene.data_snapshot(scene.data_objects["team", "one"], settings(), NOW), NOW, StagingRules())
        assert outcome.free is shared
        assert [one.verb for one in outcome.orders] == ([] if shared else [Verb.REMOVE])


def test_a_job_has_ended_once_its_pods_last_words_are_there_or_late() -> None:
    def run(ended_ago_s: float, *pods: DownloadPod) -> Run:
        ended = Run(CLAIM, Verb.STAGE, 1, 1, ended=True, ok=True, ended_at_s=NOW - ended_ago_s)
        job = DownloadJob({}, "1", ("team", "job"), "job", "uid-one", ended)
        return Seen([data("one", 5, 1)], made=[job], said=list(pods)).scene().jobs["uid-one"][CLAIM][1]

    def pod(result: StageResult | None) -> DownloadPod:
        return DownloadPod(("team", "pod"), "pod", "job", False, True, result=result, ended_at_s=NOW)

    assert not run(1, pod(None)).ended
    assert run(60, pod(None)).ended
    assert run(60, pod(None)).digest == ""
    assert run(60, replace(pod(None), died="for lack of memory")).message == "for lack of memory"
    assert run(1, pod(StageResult(True, "digest"))).digest == "digest"
    assert not run(1, pod(StageResult(False, reason=Trouble.DENIED))).ended, "the word of a pod before the last"


def test_the_pod_that_came_last_says_why_nothing_comes() -> None:
    def waiting(*pods: DownloadPod) -> str:
        job = DownloadJob({}, "1", ("team", "job"), "job", "uid-one", Run(CLAIM, Verb.STAGE, 1, 1))
        scene = Seen([data("one", 5, 1)], made=[job], said=list(pods)).scene()
        return scene.jobs["uid-one"][CLAIM][1].pending_reason

    evicted = DownloadPod(("team", "first"), "first", "job", False, True, ended_at_s=NOW - 90, started_s=NOW - 100)
    second = DownloadPod(("team", "second"), "second", "job", False, False)
    assert waiting(evicted, replace(second, pending_reason="no node has room")) == "no node has room"
    # The kubelet tells of volumes that cannot be mounted in events only.
    assert waiting(evicted, replace(second, scheduled_s=NOW - 5)) == ""
    assert "kubectl describe pod second" in waiting(evicted, replace(second, scheduled_s=NOW - 120))
    assert waiting(replace(second, scheduled_s=NOW - 120, running=True)) == ""
    leaving = replace(second, running=True, node="a", deleted_at_s=NOW - 120)
    assert "node a does not confirm" in waiting(leaving)
    assert waiting(replace(leaving, deleted_at_s=NOW + 20)) == ""


def test_a_status_is_read_as_it_was_written() -> None:
    for one in (data("one", 5, 1, ready_at_s=3.0), data("two", 5, 1, node="a", ready_at_s=3.0, machine="uid/system")):
        place = {"claim": "claim", "path": "one"} if one.name == "one" else {"nodeCache": {"copies": 1}}
        metadata = {"namespace": "team", "name": one.name, "uid": one.uid, "generation": 1}
        document = {
            "metadata": metadata,
            "spec": {"source": "s3://b/c", "destination": place},
            "status": status_of(one),
        }
        found = staged_data_of(document)
        assert status_of(found) == status_of(one)
        assert found.copies[0].phase is DataPhase.READY
        assert (found.copies[0].digest, found.copies[0].machine) == ("d", one.copies[0].machine)


def test_a_failure_names_the_folder_as_people_know_it() -> None:
    def message(one: StagedData) -> str:
        place = one.copies[0].location
        one = replace(one, copies=(Copy(place, DataPhase.STAGING, 1, generation=1),))
        told = "the disk under /copy/one is full" if place == CLAIM else "the disk under /copy is full"
        run = Run(place, Verb.STAGE, 1, 1, ended=True, reason=Trouble.NO_ROOM, message=told, ended_at_s=NOW - 60)
        scene = Seen([one], made=[DownloadJob({}, "1", ("team", "job"), "job", one.uid, run)]).scene()
        return (
            decide(scene.data_snapshot(scene.data_objects[one.key], settings(), NOW), NOW, StagingRules())
            .data.copies[0]
            .message
        )

    assert message(data("one", 5, 1)) == "the disk under pvc://claim/one is full"
    assert message(data("one", 5, 1, node="a")) == "the disk under /var/lib/kopt-cache/team/one is full"


def test_a_pod_that_could_say_nothing_is_told_of_in_the_systems_words() -> None:
    def died(**status: Any) -> str:
        metadata = {"namespace": "team", "name": "pod", "uid": "pod"}
        return read_pod({"metadata": metadata, "status": {"phase": "Failed"} | status}).died

    killed = {"name": "stage", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    assert "memoryLimit" in died(containerStatuses=[killed])
    assert died(reason="Evicted", message="The node was low on resource") == (
        "its pod was ended: Evicted The node was low on resource"
    )
    assert died() == ""
