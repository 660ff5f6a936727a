"""Advice divides what siblings have so that least demand is above a quota, says how sure that is, and can be undone."""

import itertools
import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.custom.advised_quota import ANNOTATION, with_quotas, without_advice
from kopt.core.scheduling.queue_tree import KaiwoQueue, Share
from kopt.policies.queues import QueueTree
from kopt.policies.queues.advice import AdviceSettings, QuotaDemand, advise, divide
from kopt.policies.queues.quota_groups import tradable

WEEKS = 4 * 7 * 24


def demand(seed: int, *gpus: int) -> list[int | None]:
    rng = random.Random(seed)
    return [1000 * rng.choice(gpus) for _ in range(WEEKS)]


def above(places: Sequence[QuotaDemand], quotas: Sequence[int]) -> int:
    return sum(
        max(0, (value or 0) - quota) for place, quota in zip(places, quotas, strict=True) for value in place.demand
    )


AT_ONCE = AdviceSettings(most_taken=1.0)


def test_quota_goes_to_who_demands_it_and_the_reason_has_the_figures() -> None:
    short, spare = advise(
        [
            QuotaDemand("short", "h100", 4000, demand(1, 0, 2, 10, 12)),
            QuotaDemand("spare", "h100", 12000, demand(2, 1, 3)),
        ],
        AT_ONCE,
    )
    assert (short.advised, spare.advised) == (12000, 4000)
    assert (short.reason.code, spare.reason.code) == ("QUOTA_SHORT", "QUOTA_SPARE")
    assert short.low is not None
    assert short.high is not None
    assert short.low <= 12000 <= short.high
    assert 0.4 < short.above_before < 0.6
    assert short.above_after == 0.0
    assert "4 GPUs" in short.reason.message
    assert "with 12" in short.reason.message


def test_a_guarantee_and_a_limit_hold_whatever_was_demanded() -> None:
    short, spare = advise(
        [
            QuotaDemand("short", "p", 4000, demand(1, 16), limit=9000),
            QuotaDemand("spare", "p", 12000, demand(2, 0), guarantee=10_000),
        ],
        AT_ONCE,
    )
    assert (short.advised, spare.advised) == (6000, 10_000)
    capped, idle = advise(
        [QuotaDemand("short", "p", 4000, demand(1, 16), limit=7000), QuotaDemand("spare", "p", 12000, demand(2, 0))],
        AT_ONCE,
    )
    assert (capped.advised, idle.advised) == (7000, 9000)


def test_quotas_stay_where_history_is_short_a_queue_is_alone_or_nothing_is_better() -> None:
    pair = [QuotaDemand("a", "p", 4000, demand(1, 9)[: 10 * 24]), QuotaDemand("b", "p", 4000, demand(2, 1)[: 10 * 24])]
    assert {(each.reason.code, each.changes) for each in advise(pair)} == {("QUOTA_HISTORY_SHORT", False)}
    (alone,) = advise([QuotaDemand("a", "p", 4000, demand(1, 9))])
    assert (alone.reason.code, alone.changes) == ("QUOTA_ALONE", False)
    alike = [QuotaDemand(name, "p", 6000, demand(seed, 2, 4, 6, 8)) for seed, name in enumerate("abc")]
    assert {(each.reason.code, each.changes) for each in advise(alike)} == {("QUOTA_FITS", False)}


def test_hours_that_were_not_seen_count_for_nobody() -> None:
    busy, idle = demand(1, 9), demand(2, 1)
    busy[100:400] = [None] * 300
    idle[100:400] = [80_000] * 300
    rows = advise([QuotaDemand("busy", "p", 4000, busy), QuotaDemand("idle", "p", 8000, idle)], AT_ONCE)
    assert [each.advised for each in rows] == [9000, 3000]


def test_what_a_queue_nearly_always_demands_and_most_of_its_quota_stay_with_it() -> None:
    """Whatever the queue beside it lacks."""
    backlog = demand(1, 12)
    rows = advise(
        [QuotaDemand("backlog", "p", 8000, backlog), QuotaDemand("steady", "p", 8000, demand(2, 6, 7))], AT_ONCE
    )
    assert [each.advised for each in rows] == [9000, 7000]
    rows = advise([QuotaDemand("backlog", "p", 8000, backlog), QuotaDemand("idle", "p", 8000, demand(2, 0, 1))])
    assert [each.advised for each in rows] == [10_000, 6000]


def test_newer_demand_counts_more() -> None:
    changed = [4000] * (WEEKS // 2) + [10_000] * (WEEKS // 2)
    other = [10_000] * (WEEKS // 2) + [4000] * (WEEKS // 2)
    rows = divide([QuotaDemand("now", "p", 7000, changed), QuotaDemand("then", "p", 7000, other)], weights(14 * 24))
    assert rows == [10_000, 4000]


def weights(half_life: float) -> dict[int, float]:
    return {hour: 0.5 ** ((WEEKS - hour) / half_life) for hour in range(WEEKS)}


@given(st.data())
def test_no_other_division_has_less_demand_above_quotas(data: st.DataObject) -> None:
    """Held against every division in whole GPUs; sums, guarantees and limits are kept."""
    places = []
    for name in "abc":
        quota = data.draw(st.integers(0, 4))
        limit = data.draw(st.none() | st.integers(quota, 12))
        values = data.draw(st.lists(st.integers(0, 9000), min_size=5, max_size=5))
        guarantee = data.draw(st.integers(0, quota))
        places.append(
            QuotaDemand(name, "p", 1000 * quota, values, 1000 * guarantee, None if limit is None else 1000 * limit)
        )
    divided = divide(places, dict.fromkeys(range(5), 1.0))
    total = sum(place.quota for place in places)
    assert sum(divided) == total
    for place, amount in zip(places, divided, strict=True):
        assert place.guarantee <= amount <= (amount if place.limit is None else place.limit)
    allowed = (
        quotas
        for quotas in itertools.product(range(0, total + 1000, 1000), repeat=3)
        if sum(quotas) == total
        and all(
            place.guarantee <= amount <= (amount if place.limit is None else place.limit)
            for place, amount in zip(places, quotas, strict=True)
        )
    )
    assert above(places, divided) <= min(above(places, quotas) for quotas in allowed)


def test_only_siblings_with_a_quota_of_one_pool_trade() -> None:
    def queue(name: str, parent: str, **pools: Share) -> KaiwoQueue:
        return KaiwoQueue(name, parent, pools={pool: {"gpu": share, "cpu": Share(1)} for pool, share in pools.items()})

    tree = QueueTree.of(
        [
            queue("a", "top", h100=Share(4000), a100=Share(2000)),
            queue("b", "top", h100=Share(4000, limit=6000, guarantee=1000)),
            queue("c", "other", h100=Share(4000)),
            queue("free", "top", h100=Share(-1)),
            queue("root", "", h100=Share(2000)),
        ]
    )
    groups = tradable(tree, "gpu".__eq__, lambda queue, pool: (1, 2), 2)
    assert sorted([(place.queue, place.pool) for place in group] for group in groups) == [
        [("a", "a100")],
        [("a", "h100"), ("b", "h100")],
        [("c", "h100")],
        [("root", "h100")],
    ]
    bounded = next(place for group in groups for place in group if place.queue == "b")
    assert (bounded.limit, bounded.guarantee) == (6000, 1000)


def document(quota: object, annotation: str = "") -> dict[str, object]:
    gpu = {"quota": quota, "limit": 40}
    pools = [{"name": "h100", "resources": {"gpu": gpu, "cpu": {"quota": "64"}}}]
    metadata = {"name": "a", **({"annotations": {ANNOTATION: annotation}} if annotation else {})}
    return {"metadata": metadata, "spec": {"pools": pools}}


def quota_of(item: dict[str, object]) -> object:
    spec = item["spec"]
    assert isinstance(spec, dict)
    return spec["pools"][0]["resources"]["gpu"]["quota"]


def test_the_quota_from_before_all_advice_is_given_back_as_it_was_written() -> None:
    original = document("8000m")
    once = with_quotas(original, {("h100", "gpu"): 12_000})
    twice = with_quotas(once, {("h100", "gpu"): 10_500})
    assert (quota_of(once), quota_of(twice)) == (12, "10500m")
    restored = without_advice(twice)
    assert restored is not None
    assert (restored.document, restored.kept) == (original | {"metadata": {"name": "a", "annotations": {}}}, ())
    assert without_advice(restored.document) is None


def test_what_somebody_wrote_since_is_left_and_is_what_the_next_advice_gives_back() -> None:
    by_hand = with_quotas(document(8), {("h100", "gpu"): 12_000})
    spec = by_hand["spec"]
    spec["pools"][0]["resources"]["gpu"]["quota"] = 20
    restored = without_advice(by_hand)
    assert restored is not None
    assert quota_of(restored.document) == 20
    assert "left as it is: h100/gpu" in restored.sentence
    again = without_advice(with_quotas(by_hand, {("h100", "gpu"): 14_000}))
    assert again is not None
    assert quota_of(again.document) == 20


@pytest.mark.parametrize("written", ["no json", "[]", '{"h100/gpu": 3}', '{"h100/gpu": {"before": "x", "advised": 1}}'])
def test_an_annotation_that_cannot_be_read_is_an_error_and_changes_nothing(written: str) -> None:
    item = document(8, written)
    before = json.dumps(item)
    with pytest.raises(AnnotationError, match=r"kaiwo\.ai/quota-before"):
        without_advice(item)
    with pytest.raises(AnnotationError):
        with_quotas(item, {("h100", "gpu"): 4000})
    assert json.dumps(item) == before
