"""Whatever the cluster looks like and wherever the controller dies: only the safe are taken, everything comes back."""

import asyncio
import contextlib
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.api import Conflict
from kopt.controllers.preemption.given import ControllerSettings, Writer
from kopt.controllers.preemption.marks import stamp
from kopt.controllers.preemption.reconciler import Reconciler
from kopt.controllers.preemption.views import WorkloadView
from kopt.core.decision import Mode

from .builders import NOW_S, Books, KilledError, notes, queue, workload

SETTINGS = ControllerSettings(Mode.ENFORCE, budget_s=120.0, cover_s=30.0)
KINDS = {
    "safe": notes(), "cheap": notes(lost=1), "writing": notes("CKPT_WRITING", safe=False), "silent": {},
    "unknown": notes("UNKNOWN", safe=False), "no evidence": notes(safe=True, known=False), "stale": notes(age_s=500),
    "lies": notes("CKPT_WRITING", safe=True),
}  # fmt: skip
SAFE = ("safe", "cheap")
Gang = tuple[str, int, int, int]
gangs = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 4), st.sampled_from([50, 100, 100, 999]),
              st.integers(600, 9000)), min_size=1, max_size=6,
)  # fmt: skip


def books(made: list[Gang], asks: int, spare: int = 0) -> Books:
    """A full queue (but ``spare``) and one that waits for our decision."""
    documents = [workload(f"gang-{n}", gpus, priority, started_s=NOW_S - ran)
                 for n, (_, gpus, priority, ran) in enumerate(made)]  # fmt: skip
    urgent = workload("urgent", asks, 1000, held=True, started_s=NOW_S - 1)
    found = Books(sum(gpus for _, gpus, _, _ in made) + spare, *documents, urgent)
    found.notes = {f"gang-{n}": dict(KINDS[kind]) for n, (kind, _, _, _) in enumerate(made)}
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
    return [name for name, one in cluster.documents.items() if "kaiwo.ai/held" in one["metadata"].get("labels", {})
            or "kaiwo.ai/held-undo" in one["metadata"].get("annotations", {})]  # fmt: skip


def own(made: list[Gang]) -> dict[str, int]:
    return {"urgent": 1000, **{f"gang-{n}": priority for n, (_, _, priority, _) in enumerate(made)}}


def priorities(cluster: Books) -> dict[str, Any]:
    return {name: one["spec"].get("priority") for name, one in cluster.documents.items()}


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=50, deadline=None)
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
    cluster = Books(8, workload("safe", 4, 0), workload("plain", 4, None),
                    workload("urgent", 4, 1000, held=True, started_s=NOW_S - 1))  # fmt: skip
    cluster.notes = {"safe": notes(lost=1)}
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
    cluster.now_s += SETTINGS.cover_s + 1
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


@pytest.mark.parametrize("word", ["cohort", "flavours", "never"])
def test_what_is_not_ours_to_choose_is_let_go(word: str) -> None:
    cluster = books([("safe", 4, 100, 9000), ("silent", 4, 100, 600)], 4)
    if word == "flavours":
        quota = {**cluster.queue.quota, ("a100", "nvidia.com/gpu"): 0}
        cluster.queue = type(cluster.queue)("research", quota, "LowerPriority", "", True)
    else:
        cluster.queue = queue(8, cohort="all") if word == "cohort" else queue(8, preempts="Never")
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
    cluster.notes["gang-0"] = notes(lost=1)
    passes(cluster)
    assert cluster.taken == ["gang-0"]


def test_advice_that_met_a_write_of_kueues_is_given_again() -> None:
    cluster = Books(8, workload("safe", 4, started_s=NOW_S - 9000), workload("silent", 4, started_s=NOW_S - 600))
    cluster.notes = {"safe": notes(lost=1)}
    cluster.kueue = lambda: None  # type: ignore[method-assign]
    cluster.mode = lambda _: "annotate"  # type: ignore[method-assign]
    reconciler = Reconciler(cluster, cast(Writer, cluster), SETTINGS, cluster.tell, lambda: cluster.now_s)
    write, conflicts = cluster.patch, [Conflict(409, "Conflict", "it has changed")]

    async def patch(view: WorkloadView, changes: Any) -> None:
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


@pytest.mark.parametrize(("name", "words"), [
    ("last-checkpoint-step", "\N{SUPERSCRIPT TWO}"), ("last-checkpoint-step", "9" * 5000), ("work-at-risk", "1e308"),
    ("last-checkpoint-time", "0001-01-01"), ("checkpoint-observed-at", "0001-01-01T00:00:00+23:00"),
])  # fmt: skip
def test_whatever_stands_on_a_pod_nobody_is_held_for_ever(name: str, words: str) -> None:
    cluster = books([("safe", 4, 100, 9000), ("safe", 4, 100, 600)], 4)
    cluster.notes["gang-1"] |= {f"kaiwo.ai/{name}": words, "kaiwo.ai/work-at-risk-interval": "0-1e308"}
    passes(cluster)
    assert cluster.taken == ["gang-0"]
    assert marks(cluster) == []
