"""Whatever the cluster looks like and wherever the controller dies: only the safe are taken, everything comes back."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any, cast

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.api import ApiError, Conflict
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.controllers.preemption.patches import stamp
from kopt.controllers.preemption.ports import ControllerSettings, Writer
from kopt.controllers.preemption.reconciler import Reconciler
from kopt.core.decision import Mode
from kopt.core.scheduling.quota import Quota

from .builders import NOW_S, Books, KilledError, notes, queue, workload

SETTINGS = ControllerSettings(Mode.ENFORCE, budget_s=120.0, shield_s=30.0)
KINDS = {
    "safe": notes(),
    "cheap": notes(lost=1),
    "writing": notes("CKPT_WRITING", safe=False),
    "silent": {},
    "unknown": notes("UNKNOWN", safe=False),
    "no evidence": notes(safe=True, known=False),
    "stale": notes(age_s=500),
    "lies": notes("CKPT_WRITING", safe=True),
}
SAFE = ("safe", "cheap")
Gang = tuple[str, int, int, int]
gangs = st.lists(
    st.tuples(
        st.sampled_from(sorted(KINDS)), st.integers(1, 4), st.sampled_from([50, 100, 100, 999]), st.integers(600, 9000)
    ),
    min_size=1,
    max_size=6,
)


def books(made: list[Gang], asks: int, spare: int = 0) -> Books:
    """A full queue (but ``spare``) and one that waits for our decision."""
    documents = [
        workload(f"gang-{n}", gpus, priority, started_s=NOW_S - ran) for n, (_, gpus, priority, ran) in enumerate(made)
    ]
    urgent = workload("urgent", asks, 1000, held=True, started_s=NOW_S - 1)
    found = Books(sum(gpus for _, gpus, _, _ in made) + spare, *documents, urgent)
    found.annotations = {f"gang-{n}": dict(KINDS[kind]) for n, (kind, _, _, _) in enumerate(made)}
    return found


def passes(cluster: Books, count: int = 3) -> None:
    """One life of the controller."""
    reconciler = Reconciler(cluster, cast(Writer, cluster), SETTINGS, cluster.tell, lambda: cluster.now_s)

    async def work() -> None:
        for _ in range(count):
            await reconciler.step()

    asyncio.run(work())


def marks(cluster: Books) -> list[str]:
    """What is still held, covered or raised."""
    return [
        name
        for name, one in cluster.documents.items()
        if "kaiwo.ai/held" in one["metadata"].get("labels", {})
        or "kaiwo.ai/held-undo" in one["metadata"].get("annotations", {})
    ]


def own(made: list[Gang]) -> dict[str, int]:
    return {"urgent": 1000, **{f"gang-{n}": priority for n, (_, _, priority, _) in enumerate(made)}}


def priorities(cluster: Books) -> dict[str, Any]:
    return {name: one["spec"].get("priority") for name, one in cluster.documents.items()}


@settings(max_examples=examples(60), deadline=None)
@given(gangs, st.integers(1, 6), st.integers(0, 2))
def test_within_the_budget_only_the_safe_are_taken(made: list[Gang], asks: int, spare: int) -> None:
    cluster = books(made, asks, spare)
    passes(cluster)
    kinds = {f"gang-{n}": kind for n, (kind, _, _, _) in enumerate(made)}
    ours = [name for name, reason in cluster.told if reason == "Preempting"]
    assert all(kinds[name] in SAFE for name in ours)
    if ("urgent", "PreemptionChosen") in cluster.told:
        assert sorted(cluster.taken[: len(ours)]) == sorted(ours)
        # Whoever was taken goes by Kueue's rule in turn, where one of lower priority is left.
        least = max(priority for n, (_, _, priority, _) in enumerate(made) if f"gang-{n}" in ours)
        assert all(own(made)[name] < least for name in cluster.taken[len(ours) :])
    assert len(cluster.taken) == len(set(cluster.taken))


@settings(max_examples=examples(25), deadline=None)
@given(gangs, st.integers(1, 6), st.integers(0, 12), st.integers(0, 12))
def test_wherever_it_dies_everything_comes_back(made: list[Gang], asks: int, first: int, second: int) -> None:
    cluster = books(made, asks)
    for dies_after in (first, second):
        cluster.writes, cluster.dies_after = 0, dies_after
        with contextlib.suppress(KilledError):
            passes(cluster)
        cluster.now_s += 2
    cluster.dies_after = None
    for _ in range(4):
        passes(cluster)
        cluster.now_s += SETTINGS.budget_s
    assert marks(cluster) == []
    assert priorities(cluster) == own(made)
    assert cluster.documents["urgent"]["spec"]["active"] is True
    assert len(cluster.taken) == len(set(cluster.taken)), "somebody was taken twice"


def test_the_safe_one_is_taken_and_the_others_are_as_before() -> None:
    cluster = books([("safe", 4, 100, 9000), ("writing", 4, 100, 5000), ("silent", 4, 100, 600)], 4)
    passes(cluster)
    assert cluster.taken == ["gang-0"]
    assert marks(cluster) == []


def test_a_priority_that_was_not_set_is_not_set_again() -> None:
    cluster = Books(
        8,
        workload("safe", 4, 0),
        workload("plain", 4, None),
        workload("urgent", 4, 1000, held=True, started_s=NOW_S - 1),
    )
    cluster.annotations = {"safe": notes(lost=1)}
    passes(cluster)
    assert cluster.taken == ["safe"]
    assert "priority" not in cluster.documents["plain"]["spec"]


def test_kueue_goes_by_its_own_rule_when_the_covers_end() -> None:
    """The chosen alone do not suffice any more: the quota has become less."""
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)

    def kueue() -> None:
        if cluster.documents["urgent"]["spec"]["active"]:
            cluster.queue = queue(4)
        Books.kueue(cluster)

    cluster.kueue = kueue  # type: ignore[method-assign]
    passes(cluster)
    assert cluster.taken == [], "only the chosen can be taken, and they are not enough"
    assert marks(cluster) == ["gang-1"]
    cluster.now_s += SETTINGS.shield_s + 1
    passes(cluster)
    assert sorted(cluster.taken) == ["gang-0", "gang-1"]
    assert marks(cluster) == []


def test_who_was_told_and_stayed_can_be_chosen_again() -> None:
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)
    cluster.kueue = lambda: None  # type: ignore[method-assign]
    reconciler = Reconciler(cluster, cast(Writer, cluster), SETTINGS, cluster.tell, lambda: cluster.now_s)
    asyncio.run(reconciler.step())
    assert "kaiwo.ai/evicting" in cluster.documents["gang-0"]["metadata"]["annotations"]
    del cluster.documents["urgent"]
    asyncio.run(reconciler.step())
    assert "kaiwo.ai/evicting" not in cluster.documents["gang-0"]["metadata"]["annotations"]
    assert marks(cluster) == []
    del cluster.kueue
    cluster.documents["other"] = workload("other", 4, 1000, held=True, started_s=NOW_S - 1)
    asyncio.run(reconciler.step())
    assert cluster.taken == ["gang-0"]


def test_a_priority_that_somebody_else_writes_meanwhile_stays() -> None:
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)
    cluster.kueue = lambda: None  # type: ignore[method-assign]
    passes(cluster)
    cluster.documents["gang-1"]["spec"]["priority"] = 7
    del cluster.documents["urgent"]
    passes(cluster)
    assert cluster.documents["gang-1"]["spec"]["priority"] == 7
    assert marks(cluster) == []


@pytest.mark.parametrize("word", ["fair", "flavours", "never"])
def test_what_is_not_ours_to_choose_is_let_go(word: str) -> None:
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)
    if word == "flavours":
        quotas = {**cluster.queue.quotas, ("a100", "nvidia.com/gpu"): Quota()}
        cluster.queue = replace(cluster.queue, quotas=quotas, preference=True)
    else:
        cluster.queue = replace(queue(8), fair=True) if word == "fair" else queue(8, preempts="Never")
    passes(cluster, 1)
    assert cluster.documents["urgent"]["spec"]["active"] is True
    assert ("urgent", "PreemptionLeft") in cluster.told


def test_the_budget_of_one_that_was_held_by_others_counts_from_when_they_let_it_go() -> None:
    for since_s, left in ((None, True), (NOW_S - 5, False)):
        cluster = books([("writing", 4, 100, 9000)], 4)
        metadata = cluster.documents["urgent"]["metadata"]
        metadata["creationTimestamp"] = stamp(NOW_S - 5000)
        if since_s is not None:
            metadata["annotations"]["kaiwo.ai/held-undo"] = f'{{"active":true,"since":"{stamp(since_s)}"}}'
        passes(cluster)
        assert (("urgent", "PreemptionLeft") in cluster.told) is left
        assert (marks(cluster) == ["urgent"]) is not left
    cluster.annotations["gang-0"] = notes(lost=1)
    passes(cluster)
    assert cluster.taken == ["gang-0"]


def test_advice_that_met_a_write_of_kueues_is_given_again() -> None:
    cluster = Books(8, workload("safe", 4, started_s=NOW_S - 9000), workload("silent", 4, started_s=NOW_S - 600))
    cluster.annotations = {"safe": notes(lost=1)}
    cluster.kueue = lambda: None  # type: ignore[method-assign]
    cluster.mode = lambda _: "annotate"  # type: ignore[method-assign]
    reconciler = Reconciler(cluster, cast(Writer, cluster), SETTINGS, cluster.tell, lambda: cluster.now_s)
    write, conflicts = cluster.patch, [Conflict(409, "Conflict", "it has changed")]

    async def patch(view: KueueWorkload, changes: Any) -> None:
        if conflicts:
            raise conflicts.pop()
        await write(view, changes)

    cluster.patch = patch  # type: ignore[method-assign]

    async def work() -> None:
        await reconciler.step()
        cluster.documents["urgent"] = workload("urgent", 4, 1000, runs=False, started_s=NOW_S - 1)
        for _ in range(3):
            await reconciler.step()

    asyncio.run(work())
    assert "kaiwo.ai/preemption" in cluster.documents["urgent"]["metadata"]["annotations"]
    assert [reason for name, reason in cluster.told if name == "urgent"] == ["PreemptionAdvised"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("last-checkpoint-step", "\N{SUPERSCRIPT TWO}"),
        ("last-checkpoint-step", "9" * 5000),
        ("work-at-risk", "1e308"),
        ("last-checkpoint-time", "0001-01-01"),
        ("checkpoint-observed-at", "0001-01-01T00:00:00+23:00"),
    ],
)
def test_whatever_stands_on_a_pod_nobody_is_held_for_ever(name: str, words: str) -> None:
    cluster = books([("safe", 4, 100, 9000), ("safe", 4, 100, 600)], 4)
    cluster.annotations["gang-1"] |= {f"kaiwo.ai/{name}": words, "kaiwo.ai/work-at-risk-interval": "0-1e308"}
    passes(cluster)
    assert cluster.taken == ["gang-0"]
    assert marks(cluster) == []


def let_go(*kinds: str) -> tuple[Books, Reconciler]:
    """Gangs of four GPUs each, the first of which was chosen; Kueue has not looked yet."""
    cluster = books([(kind, 4, 100, 9000 - number) for number, kind in enumerate(kinds)], 4)
    cluster.kueue = lambda: None  # type: ignore[method-assign]
    reconciler = Reconciler(cluster, cast(Writer, cluster), SETTINGS, cluster.tell, lambda: cluster.now_s)
    asyncio.run(reconciler.step())
    assert cluster.documents["urgent"]["spec"]["active"] is True
    return cluster, reconciler


def looks(cluster: Books) -> None:
    """Kueue, at last."""
    del cluster.kueue
    cluster.kueue()


def touch(cluster: Books, name: str, **spec: Any) -> None:
    """Somebody else writes."""
    document = cluster.documents[name]
    document["spec"] |= spec
    document["metadata"]["resourceVersion"] = str(int(document["metadata"]["resourceVersion"]) + 1)


def test_a_chosen_one_that_begins_to_write_before_kueue_looks_is_not_taken() -> None:
    cluster, reconciler = let_go("safe", "silent")
    cluster.annotations["gang-0"] = notes("CKPT_WRITING", safe=False)
    asyncio.run(reconciler.step())
    looks(cluster)
    assert cluster.taken == []
    assert "urgent" in marks(cluster), "it is decided about again"
    cluster.annotations["gang-0"] = notes()
    asyncio.run(reconciler.step())
    assert cluster.taken == ["gang-0"]
    asyncio.run(reconciler.step())
    assert marks(cluster) == []


def test_who_comes_before_kueue_looks_is_not_taken() -> None:
    cluster, reconciler = let_go("safe", "silent")
    cluster.queue = queue(12)
    cluster.documents["new"] = workload("new", 4, started_s=NOW_S)
    asyncio.run(reconciler.step())
    looks(cluster)
    assert cluster.taken == ["gang-0"]


def test_a_cover_that_others_have_written_over_is_made_again_and_what_they_wrote_stays() -> None:
    cluster, reconciler = let_go("safe", "writing")
    touch(cluster, "gang-1", priority=7)
    asyncio.run(reconciler.step())
    looks(cluster)
    assert cluster.taken == ["gang-0"]
    asyncio.run(reconciler.step())
    assert cluster.documents["gang-1"]["spec"]["priority"] == 7
    assert marks(cluster) == []


def test_covers_rise_with_the_priority_of_the_one_that_waits() -> None:
    cluster, reconciler = let_go("safe", "writing")
    touch(cluster, "urgent", priority=2000)
    asyncio.run(reconciler.step())
    cluster.queue = queue(4)
    looks(cluster)
    assert cluster.taken == [], "the chosen alone are not enough any more"


def test_one_whose_priority_rises_while_covers_are_made_is_not_let_go_with_too_low_ones() -> None:
    cluster = books([("safe", 4, 100, 9000), ("writing", 4, 100, 600)], 4)
    write = cluster.patch

    async def patch(view: KueueWorkload, changes: Any) -> None:
        await write(view, changes)
        if view.key[1] == "gang-1" and changes["spec"]["priority"] == 1001:
            touch(cluster, "urgent", priority=2000)
            cluster.queue = queue(4)

    cluster.patch = patch  # type: ignore[method-assign]
    passes(cluster)
    assert cluster.taken == [], "the chosen alone are not enough any more"


def test_a_new_one_of_the_same_name_is_not_let_go_in_place_of_the_old() -> None:
    cluster = books([("safe", 4, 100, 9000), ("writing", 4, 100, 600)], 4)
    write = cluster.patch

    async def patch(view: KueueWorkload, changes: Any) -> None:
        await write(view, changes)
        if view.key[1] == "gang-1" and cluster.documents["urgent"]["metadata"]["uid"] == "uid-urgent":
            again = workload("urgent", 4, 3000, held=True, started_s=NOW_S)
            again["metadata"] |= {"uid": "another", "resourceVersion": "77"}
            cluster.documents["urgent"] = again
            cluster.queue = queue(4)

    cluster.patch = patch  # type: ignore[method-assign]
    passes(cluster)
    assert cluster.taken == [], "covers were made for the old one's priority"


def test_one_whose_room_is_being_left_does_not_leave_its_queue() -> None:
    """Training jobs take minutes to end; who waits would lose their room to the next in the queue."""
    cluster, reconciler = let_go("safe", "silent")
    evicted = {"type": "Evicted", "status": "True", "lastTransitionTime": stamp(NOW_S)}
    cluster.documents["gang-0"]["status"]["conditions"].append(evicted)
    cluster.now_s += 10 * SETTINGS.shield_s
    asyncio.run(reconciler.step())
    assert marks(cluster) == [], "nobody is covered for longer than is said"
    assert "lapsed" not in cluster.documents["urgent"]["metadata"]["annotations"]["kaiwo.ai/preemption"]
    assert cluster.documents["urgent"]["spec"]["active"] is True


def test_one_that_cannot_be_written_does_not_keep_the_others() -> None:
    cluster = books([("safe", 4, 100, 9000), ("writing", 4, 100, 600)], 4)
    broken = workload("broken", 1, 1001, started_s=NOW_S - 50)
    undo = '{"priority":100,"raised":1001,"for":"gone","until":"2030-01-01T00:00:00Z"}'
    broken["status"]["admission"]["clusterQueue"] = "another"
    broken["metadata"] |= {"labels": {"kaiwo.ai/held": "preemption"}, "annotations": {"kaiwo.ai/held-undo": undo}}
    first = workload("first", 4, 5000, held=True, started_s=NOW_S - 2)
    first["metadata"]["namespace"] = "strict"
    cluster.documents |= {"broken": broken, "first": first}
    cluster.queue = queue(9)
    write = cluster.patch

    async def patch(view: KueueWorkload, changes: Any) -> None:
        if view.key[1] in ("broken", "first"):
            raise ApiError(422, "Invalid", "a policy of this namespace refuses it")
        await write(view, changes)

    cluster.patch = patch  # type: ignore[method-assign]
    passes(cluster)
    assert cluster.documents["urgent"]["spec"]["active"] is True
    assert cluster.taken == ["gang-0"]


def test_who_can_never_be_covered_keeps_nobody_beyond_the_budget() -> None:
    cluster = books([("safe", 4, 100, 9000), ("writing", 4, 100, 600)], 4)
    write = cluster.patch

    async def patch(view: KueueWorkload, changes: Any) -> None:
        if view.key[1] == "gang-1":
            raise ApiError(422, "Invalid", "a policy of this namespace refuses it")
        await write(view, changes)

    cluster.patch = patch  # type: ignore[method-assign]
    passes(cluster)
    assert marks(cluster) == ["urgent"]
    cluster.now_s += SETTINGS.budget_s + SETTINGS.overdue_s
    cluster.annotations = {
        name: {**said, "kaiwo.ai/checkpoint-observed-at": stamp(cluster.now_s)}
        for name, said in cluster.annotations.items()
    }
    passes(cluster)
    assert marks(cluster) == []


def test_a_decision_that_says_that_it_holds_for_years_holds_nobody_up() -> None:
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)
    other = workload("other", 99, 50, runs=False, started_s=NOW_S - 5000)
    said = '{"verdict":"preempt","until":"2100-01-01T00:00:00Z"}'
    other["metadata"]["annotations"] = {"kaiwo.ai/preemption": said}
    cluster.documents["other"] = other
    passes(cluster)
    assert cluster.taken == ["gang-0"]


@pytest.mark.parametrize("where", ["label", "status"])
def test_what_multikueue_has_in_two_clusters_keeps_its_spec(where: str) -> None:
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)
    if where == "label":
        cluster.documents["gang-1"]["metadata"]["labels"] = {"kueue.x-k8s.io/multikueue-origin": "hub"}
    else:
        cluster.documents["gang-1"]["status"]["clusterName"] = "worker"
    specs = {name: dict(cluster.documents[name]["spec"]) for name in ("gang-0", "gang-1")}
    cluster.kueue = lambda: None  # type: ignore[method-assign]
    passes(cluster)
    assert {name: cluster.documents[name]["spec"] for name in specs} == specs
    assert "MULTIKUEUE" in cluster.documents["urgent"]["metadata"]["annotations"]["kaiwo.ai/preemption"]
    assert cluster.documents["urgent"]["spec"]["active"] is True


def test_where_one_in_a_write_is_kept_from_kueue_it_does_not_take_another_in_a_write() -> None:
    cluster = books([("writing", 4, 50, 9000), ("writing", 4, 100, 600)], 4)
    cluster.now_s += SETTINGS.budget_s
    cluster.annotations = {name: notes("CKPT_WRITING", safe=False, now_s=cluster.now_s) for name in cluster.annotations}
    passes(cluster)
    assert cluster.documents["urgent"]["spec"]["active"] is True
    assert cluster.taken == []
    cluster.now_s += SETTINGS.shield_s
    passes(cluster)
    assert cluster.taken == ["gang-0"], "Kueue's own choice"
