"""One namespace asks for many downloads, or for some that never get on: others still have theirs."""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from staging_controller.test_passes import Written
from staging_controller.test_scene import NOW, settings

from kopt.cluster.client.resources import Object, Resource
from kopt.controllers.staging.reconciler import Reconciler
from kopt.controllers.staging.views import DownloadJob, DownloadPod
from kopt.core.staging.staged_data import CLAIM, Amounts, Copy, DataPhase
from kopt.policies.staging.copies import Run, Step, Verb, advance
from kopt.policies.staging.rules import StagingRules
from kopt.policies.staging.shares import Turns, Wish, share

GREEDY, MODEST = "greedy", "modest"


class Shared(Written):
    """Two namespaces that have opted in, downloads that run, and what their logs tell."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []
        self.told: dict[str, Amounts] = {}
        self.now_s = NOW
        self.reconciler = Reconciler(self, self, self, settings(), lambda *_: None, self, lambda: self.now_s)

    def ask(self, namespace: str, name: str, created_at: str) -> None:
        self.stage(name, f"s3://bucket/{name}")
        self.documents[name]["metadata"] |= {"namespace": namespace, "creationTimestamp": created_at}

    def runs(self, namespace: str, name: str) -> None:
        uid = f"uid-{name}"
        self.made.append(
            DownloadJob(
                {"metadata": {"name": name}},
                "1",
                (namespace, f"job-{name}"),
                f"job-{name}",
                uid,
                Run(CLAIM, Verb.STAGE, 1, 1),
            )
        )
        self.said.append(DownloadPod((namespace, f"pod-{name}"), f"pod-{name}", f"job-{name}", True, False))

    def follow(self, pods: Any) -> None:
        pass

    def amounts(self, pod_uid: str) -> Amounts | None:
        return self.told.get(pod_uid)

    async def delete(self, resource: Resource, seen: Object) -> None:
        self.deleted.append(seen["metadata"]["name"])

    def begun(self) -> Counter[str]:
        asyncio.run(self.reconciler.step())
        return Counter(one["metadata"]["namespace"] for one in self.created)


def test_a_namespace_with_many_requests_leaves_others_their_turn() -> None:
    cluster = Shared()
    for number in range(40):
        cluster.ask(GREEDY, f"many-{number}", "2026-01-01T00:00:00Z")
    cluster.ask(MODEST, "few-0", "2026-01-02T00:00:00Z")
    cluster.ask(MODEST, "few-1", "2026-01-02T00:00:00Z")
    begun = cluster.begun()
    assert begun[MODEST] == 2
    assert sum(begun.values()) == settings().rules.at_once


def test_a_namespace_that_came_first_leaves_a_slot_for_who_comes_later() -> None:
    cluster = Shared()
    for number in range(settings().rules.at_once + 5):
        cluster.ask(GREEDY, f"many-{number}", "2026-01-01T00:00:00Z")
    assert cluster.begun() == {GREEDY: settings().rules.at_once - 1}


def test_a_download_that_does_not_get_on_loses_its_slot_and_says_why() -> None:
    cluster = Shared()
    cluster.ask(GREEDY, "stuck", "2026-01-01T00:00:00Z")
    cluster.ask(GREEDY, "slow", "2026-01-01T00:00:00Z")
    for name in ("stuck", "slow"):
        cluster.runs(GREEDY, name)
        cluster.told[f"pod-{name}"] = Amounts(100, 10)
    cluster.begun()
    cluster.now_s += settings().rules.stalled_s - 1
    cluster.told["pod-slow"] = Amounts(100, 11)
    cluster.begun()
    assert cluster.deleted == []
    cluster.now_s += 2
    cluster.begun()
    assert cluster.deleted == ["stuck"]
    status = cluster.documents["stuck"]["status"]
    assert status["reason"] == "Stalled"
    assert "others have their turn" in status["message"]
    assert "reason" not in cluster.documents["slow"]["status"]


def test_one_whose_log_nobody_may_read_has_a_turn_of_limited_length() -> None:
    cluster = Shared()
    cluster.ask(GREEDY, "silent", "2026-01-01T00:00:00Z")
    cluster.runs(GREEDY, "silent")
    cluster.begun()
    cluster.now_s += settings().rules.longest_s - 1
    cluster.begun()
    assert cluster.deleted == []
    cluster.now_s += 2
    cluster.begun()
    assert cluster.deleted == ["silent"]


def trickling(*namespaces: str) -> Shared:
    """Downloads of these namespaces hold all slots; each gets one byte on every 600 seconds."""
    cluster = Shared()
    for number in range(settings().rules.at_once):
        namespace = namespaces[number % len(namespaces)]
        cluster.ask(namespace, f"slow-{number}", "2026-01-01T00:00:00Z")
        cluster.runs(namespace, f"slow-{number}")
    return cluster


def trickle(cluster: Shared) -> Counter[str]:
    """Ten minutes pass; Jobs that were deleted are gone after that."""
    for number in range(settings().rules.at_once):
        cluster.told[f"pod-slow-{number}"] = Amounts(1 << 40, int(cluster.now_s - NOW))
    begun = cluster.begun()
    gone = {f"job-{name.removeprefix('job-')}" for name in cluster.deleted}
    cluster.made = [job for job in cluster.made if job.uid not in gone]
    cluster.now_s += 600.0
    return begun


def test_downloads_that_trickle_give_others_their_turn() -> None:
    cluster, rules = trickling(GREEDY, "greedy too"), settings().rules
    cluster.ask(MODEST, "few", "2026-01-02T00:00:00Z")
    while not (begun := trickle(cluster))[MODEST]:
        assert cluster.now_s <= NOW + rules.longest_s + 1200.0, "it never began"
    assert cluster.now_s >= NOW + rules.longest_s, "each has had its time"
    assert set(begun) == {MODEST}
    assert len(cluster.deleted) <= 2, "one for each that waits: the first waits again by now"
    status = cluster.documents[cluster.deleted[0]]["status"]
    assert (status["reason"], status["phase"]) == ("Stalled", "Waiting")
    # It says why it lost its slot, and after one more pass what it waits for.
    assert "goes on where it was" in status["message"] or "until another download has ended" in status["message"]


def test_a_download_may_take_long_while_nobody_else_could_begin() -> None:
    cluster = trickling(GREEDY, "greedy too")
    while cluster.now_s < NOW + 3 * settings().rules.longest_s:
        assert not trickle(cluster)
    assert cluster.deleted == []


def test_it_begins_again_behind_those_that_wait() -> None:
    rules = StagingRules()
    run = Run(CLAIM, Verb.STAGE, 1, 1, stalled="it stands")
    ended = advance(Copy(attempts=1, generation=1), run, wanted=True, generation=1, now_s=NOW, rules=rules)
    assert (ended.step, ended.copy.phase, ended.copy.retry_at_s) == (Step.END, DataPhase.WAITING, NOW + 10.0)
    while_it_ends = advance(ended.copy, run, wanted=True, generation=1, now_s=NOW + 1, rules=rules)
    assert while_it_ends.copy == ended.copy
    gone = advance(ended.copy, None, wanted=True, generation=1, now_s=NOW + 1, rules=rules)
    assert gone.step is Step.NOTHING
    again = advance(ended.copy, None, wanted=True, generation=1, now_s=NOW + 11, rules=rules)
    assert again.step is Step.BEGIN
    since = again.copy.retry_at_s or 0.0
    chosen, _ = share([Wish("a", "stalled", since), Wish("a", "other", NOW)], {}, Turns(), at_once=1, per_namespace=1)
    assert [one.location for one in chosen] == ["other"]


@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(2, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_no_namespace_starves(at_once: int, limit: int, others: int, lengths: list[int], late: int) -> None:
    """Others ask for more than can ever be done, and before us: we begin after at most one slot for each of them."""
    rules = StagingRules(at_once=at_once, per_namespace=limit)
    running: list[tuple[str, int]] = []
    turns, freed = Turns(), 0
    for moment in range(200):
        wishes = [Wish(f"other-{n}", f"{moment}-{k}", 0.0) for n in range(others) for k in range(9)]
        wishes += [Wish("ours", "only", 1e9)] if moment >= late else []
        counts = Counter(name for name, _ in running)
        chosen, turns = share(wishes, counts, turns, at_once=at_once, per_namespace=rules.share)
        assert len(running) + len(chosen) <= at_once
        names = Counter(one.namespace for one in chosen) + counts
        assert all(number <= rules.share for number in names.values())
        if any(one.namespace == "ours" for one in chosen):
            return
        running += [(one.namespace, lengths[(moment + n) % len(lengths)]) for n, one in enumerate(chosen)]
        left = [(name, length - 1) for name, length in running if length > 1]
        freed += len(running) - len(left) if moment >= late else 0
        running = left
        assert freed <= others + at_once, "its turn has come long ago"
    raise AssertionError("it never began")
