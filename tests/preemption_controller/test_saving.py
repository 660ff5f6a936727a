"""Who can save on request is asked once and waited for; what was saved is not lost, and no wait is too long."""

import asyncio
import contextlib
import json
from typing import Any

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.holds.checkpoint_request import request_of
from kopt.controllers.preemption.patches import stamp
from kopt.controllers.preemption.reconciler import Reconciler
from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint_request import SaveRequest

from .builders import NOW_S, Books, KilledError, notes, pod, workload
from .test_any_state import SETTINGS, Gang, books, marks, own, passes, priorities

ASKABLE = {"kaiwo.ai/saves-on-request": "true"}
gangs = st.lists(
    st.tuples(
        st.sampled_from(["safe", "cheap", "writing", "silent", "stale"]),
        st.integers(1, 4),
        st.sampled_from([50, 100, 100, 999]),
        st.integers(600, 9000),
    ),
    min_size=1,
    max_size=5,
)


def trains(cluster: Books, name: str, since_s: float = 3600.0) -> None:
    """Its last checkpoint is so long ago, on the present clock; it can be asked."""
    lost = since_s * 4
    kept = {key: value for key, value in cluster.annotations.get(name, {}).items() if key.startswith("kaiwo.ai/save")}
    cluster.annotations[name] = notes(lost=lost, now_s=cluster.now_s) | ASKABLE | kept
    cluster.annotations[name]["kaiwo.ai/last-checkpoint-time"] = stamp(cluster.now_s - since_s)


def answers(cluster: Books, name: str) -> None:
    """It has written the checkpoint just now."""
    cluster.annotations[name] |= notes("CKPT_DONE", lost=4, age_s=0, now_s=cluster.now_s)
    cluster.annotations[name]["kaiwo.ai/last-checkpoint-time"] = stamp(cluster.now_s)


def request(cluster: Books, name: str) -> Any:
    return request_of({"metadata": {"annotations": cluster.annotations[name]}})


def at_work(*others: str) -> Books:
    """One that can be asked, with much to lose, beside others that lose more."""
    cluster = books([("safe", 4, 100, 9000), *((kind, 4, 100, 5000) for kind in others)], 4)
    trains(cluster, "gang-0")
    return cluster


def test_it_is_asked_and_taken_once_it_has_saved() -> None:
    cluster = at_work("writing")
    passes(cluster)
    assert (cluster.asked, cluster.taken) == (["gang-0"], [])
    found = request(cluster, "gang-0")
    assert (found.by, found.for_whom) == ("kopt-preemption", "team/urgent")
    assert found.until_s <= NOW_S - 1 + SETTINGS.budget_s + 1
    assert ("gang-0", "SaveRequested") in cluster.told
    cluster.now_s += 10
    trains(cluster, "gang-0")
    cluster.annotations["gang-0"]["kaiwo.ai/checkpoint-state"] = "CKPT_WRITING"
    cluster.annotations["gang-0"]["kaiwo.ai/checkpoint-safe"] = "false"
    passes(cluster)
    assert cluster.taken == [], "it is in the write that we wanted"
    cluster.now_s += 5
    answers(cluster, "gang-0")
    passes(cluster)
    assert (cluster.asked, cluster.taken) == (["gang-0"], ["gang-0"])
    durable_s = seconds_or_none(cluster.annotations["gang-0"]["kaiwo.ai/last-checkpoint-time"])
    assert durable_s is not None
    assert durable_s >= found.at_s, "what was done since the request alone is lost"
    decision = json.loads(cluster.documents["urgent"]["metadata"]["annotations"]["kaiwo.ai/preemption"])
    assert decision["lostGpuSeconds"] < 100
    assert marks(cluster) == []


def test_who_does_not_answer_is_taken_when_the_time_is_over() -> None:
    cluster = at_work("writing")
    trains(cluster, "gang-0", 150.0)
    passes(cluster)
    until_s = request(cluster, "gang-0").until_s
    while cluster.now_s < until_s - 1:
        cluster.now_s += 1
        trains(cluster, "gang-0", 150.0 + cluster.now_s - NOW_S)
        passes(cluster, 1)
        assert cluster.taken == []
    cluster.now_s += 1.5
    trains(cluster, "gang-0", 150.0 + cluster.now_s - NOW_S)
    passes(cluster)
    assert (cluster.asked, cluster.taken) == (["gang-0"], ["gang-0"])
    assert ("gang-0", "Preempting") in cluster.told


def test_who_can_be_asked_goes_before_who_loses_less_as_it_is() -> None:
    cluster = at_work("safe")
    cluster.annotations["gang-1"] = notes(lost=4000)
    passes(cluster)
    assert cluster.asked == ["gang-0"]
    cluster.now_s += 5
    answers(cluster, "gang-0")
    cluster.annotations["gang-1"] = notes(lost=4020, now_s=cluster.now_s)
    passes(cluster)
    assert cluster.taken == ["gang-0"]


def test_who_has_just_saved_is_not_asked() -> None:
    cluster = at_work("writing")
    trains(cluster, "gang-0", since_s=3.0)
    passes(cluster)
    assert (cluster.asked, cluster.taken) == ([], ["gang-0"])


def test_it_is_not_asked_when_the_time_would_not_suffice() -> None:
    cluster = at_work("writing")
    trains(cluster, "gang-0", 150.0)
    cluster.documents["urgent"]["metadata"]["creationTimestamp"] = stamp(NOW_S - SETTINGS.budget_s + 20)
    passes(cluster)
    assert (cluster.asked, cluster.taken) == ([], ["gang-0"])


def test_a_checkpoint_that_was_asked_for_is_no_mistake_of_the_rhythm() -> None:
    """Seen alone it comes far too early; the work before it would count as lost."""
    cluster = at_work("writing")
    saves = [NOW_S - 4000, NOW_S - 3000, NOW_S - 2000, NOW_S - 1000, NOW_S]
    urgent = cluster.documents.pop("urgent")
    reconciler = Reconciler(cluster, cluster, SETTINGS, cluster.tell, lambda: cluster.now_s)  # type: ignore[arg-type]
    for at_s in saves:
        cluster.now_s = at_s
        trains(cluster, "gang-0", since_s=0.0)
        asyncio.run(reconciler.step())
    cluster.now_s = NOW_S + 400
    urgent["metadata"]["creationTimestamp"] = stamp(cluster.now_s)
    cluster.documents["urgent"] = urgent
    trains(cluster, "gang-0", since_s=400.0)
    asyncio.run(reconciler.step())
    assert cluster.asked == ["gang-0"]
    cluster.now_s += 5
    answers(cluster, "gang-0")
    asyncio.run(reconciler.step())
    assert cluster.taken == ["gang-0"]
    decision = json.loads(cluster.documents["urgent"]["metadata"]["annotations"]["kaiwo.ai/preemption"])
    assert decision["lostGpuSeconds"] < 100


def test_its_answer_is_not_taken_for_its_rhythm() -> None:
    """Two checkpoints 30 seconds apart would let a third be expected at any moment."""
    cluster = at_work("writing")
    trains(cluster, "gang-0", 20.0)
    passes(cluster, 1)
    reconciler = Reconciler(cluster, cluster, SETTINGS, cluster.tell, lambda: cluster.now_s)  # type: ignore[arg-type]
    asyncio.run(reconciler.step())
    cluster.now_s += 10
    answers(cluster, "gang-0")
    asyncio.run(reconciler.step())
    assert ("gang-0", "Preempting") in cluster.told
    assert cluster.taken == ["gang-0"]


def test_who_is_in_a_write_is_not_asked_for_another() -> None:
    cluster = at_work("writing")
    cluster.annotations["gang-0"] |= {"kaiwo.ai/checkpoint-state": "CKPT_WRITING", "kaiwo.ai/checkpoint-safe": "false"}
    passes(cluster)
    assert (cluster.asked, cluster.taken) == ([], [])


def test_another_request_of_long_ago_does_not_keep_it_from_being_asked() -> None:
    cluster = at_work("writing")
    old = SaveRequest.of("kopt-reallocation", "", NOW_S - 900, NOW_S - 600)
    cluster.annotations["gang-0"]["kaiwo.ai/save-requested"] = old.to_text()
    passes(cluster)
    assert cluster.asked == ["gang-0"]


@settings(max_examples=examples(20), deadline=None)
@given(
    gangs,
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
    st.integers(1, 5),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_whoever_answers_and_wherever_it_dies(
    made: list[Gang], can: set[int], deaf: set[int], asks: int, deaths: list[int]
) -> None:
    """Nobody is asked twice, nobody is taken in a write or without evidence, and the wait ends with the budget."""
    cluster = books(made, asks)
    kinds = {f"gang-{n}": kind for n, (kind, _, _, _) in enumerate(made)}
    for number in can & set(range(len(made))):
        if kinds[f"gang-{number}"] in ("safe", "cheap"):
            trains(cluster, f"gang-{number}", 1800.0)
    answered: set[str] = set()
    ends_s = NOW_S - 1 + SETTINGS.budget_s + SETTINGS.overdue_s
    while cluster.now_s < ends_s + 10:
        cluster.writes, cluster.dies_after = 0, deaths.pop() if deaths else None
        with contextlib.suppress(KilledError):
            passes(cluster, 2)
        for name in kinds:
            if name in cluster.asked and name not in answered and int(name[-1]) not in deaf:
                answers(cluster, name)
                answered.add(name)
            elif kinds[name] in ("safe", "cheap"):
                cluster.annotations[name]["kaiwo.ai/checkpoint-observed-at"] = stamp(cluster.now_s + 4)
        cluster.now_s += 5
    cluster.dies_after = None
    for _ in range(4):
        passes(cluster)
        cluster.now_s += SETTINGS.budget_s
    assert len(cluster.asked) == len(set(cluster.asked)), "somebody was asked twice"
    ours = {name for name, reason in cluster.told if reason == "Preempting"}
    assert all(kinds[name] in ("safe", "cheap") for name in ours)
    assert cluster.documents["urgent"]["spec"]["active"] is True, "it is let go in the end"
    assert marks(cluster) == []
    assert priorities(cluster) == own(made)
    assert len(cluster.taken) == len(set(cluster.taken))


def test_a_gang_of_several_pods_is_asked_as_one_although_the_first_controller_died() -> None:
    cluster = Books(8, workload("gang", 8), workload("urgent", 8, 1000, held=True, started_s=NOW_S - 1))
    shared: dict[int, dict[str, str]] = {}

    def pods_of(view: Any) -> list[Any]:
        if view.key[1] != "gang":
            return []
        base = notes(lost=28800, now_s=cluster.now_s) | ASKABLE
        base["kaiwo.ai/last-checkpoint-time"] = stamp(cluster.now_s - 3600)
        return [pod("gang", 4, base | shared.get(number, {}), number) for number in (0, 1)]

    async def ask(view: Any, changes: Any) -> None:
        if cluster.dies_after is not None and cluster.writes >= cluster.dies_after:
            raise KilledError
        cluster.writes += 1
        number = int(view.key[1][-1])
        assert number not in shared
        shared[number] = changes["metadata"]["annotations"]

    cluster.pods_of = pods_of  # type: ignore[method-assign]
    cluster.ask = ask  # type: ignore[method-assign]
    cluster.dies_after = 1
    with contextlib.suppress(KilledError):
        passes(cluster)
    assert len(shared) == 1
    cluster.dies_after = None
    cluster.now_s += 7
    passes(cluster)
    assert len(shared) == 2
    requests = [json.loads(one["kaiwo.ai/save-requested"]) for one in shared.values()]
    assert len({one.pop("proof") for one in requests}) == 2, "each proof is of its own pod"
    assert len({json.dumps(one) for one in requests}) == 1, "both are asked the same"
    assert cluster.taken == []
