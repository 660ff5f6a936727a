"""What an eviction cost, who returns first, and which records may go."""

import pytest

from kopt.core.scheduling.eviction import Cause, Entry, Eviction, LastReport, Phase, Return, System, WorkloadRef
from kopt.core.workload.checkpoint import LONGEST_START_S
from kopt.policies.evictions import Keeping, lost_gpu_s, order_of_return, outlived

HOUR = 3600.0


def entry(name: str, uid: str, at_s: float, phase: Phase) -> Entry:
    ref = WorkloadRef("batch/v1", "Job", uid, uid)
    eviction = Eviction("n", name, ref, System.NONE, at_s, Cause.DRAINED, "", "", "", 1000, 0)
    return Entry(eviction, Return(phase))


def names(entries: list[Entry]) -> list[str]:
    return [each.eviction.name for each in entries]


def test_no_more_is_lost_than_its_gpus_can_have_computed_since_it_began() -> None:
    claimed = LastReport(1000.0, risk_gpu_s=1e9)
    assert lost_gpu_s(claimed, 4000, 1060.0, began_at_s=1000.0) == 4 * (60.0 + LONGEST_START_S)
    assert lost_gpu_s(claimed, 4000, 1060.0, began_at_s=2000.0) == 4 * LONGEST_START_S, "clocks differ"
    assert lost_gpu_s(claimed, 4000, 1060.0) == 1e9 + 4 * 60.0, "when it began is not known"
    modest = LastReport(1060.0, risk_gpu_s=5.0)
    assert lost_gpu_s(modest, 4000, 1060.0, began_at_s=1000.0) == 5.0
    assert lost_gpu_s(None, 4000, 1060.0, began_at_s=1000.0) is None


def test_what_was_observed_after_the_eviction_adds_nothing() -> None:
    assert lost_gpu_s(LastReport(1000.0, risk_gpu_s=7.0), 2000, 999.0) == 7.0
    assert lost_gpu_s(LastReport(1000.0, durable_at_s=1000.0), 2000, 999.0) == 0.0


def test_the_order_is_the_second_with_the_tenths_of_an_hour_that_each_gpu_lost() -> None:
    assert order_of_return(12.9, None, 1000) == 12_999
    assert order_of_return(12.0, 0.0, 1000) == 12_999
    assert order_of_return(12.0, 2 * HOUR, 1000) == 12_979
    assert order_of_return(12.0, 2 * HOUR, 4000) == 12_994, "half an hour of each"
    assert order_of_return(12.0, 2 * HOUR, 500) == 12_959
    assert order_of_return(12.0, 99.84 * HOUR, 1000) == 12_001
    assert order_of_return(12.0, 99.86 * HOUR, 1000) == 12_000
    assert order_of_return(12.0, 100.24 * HOUR, 1000) == order_of_return(12.0, 1e12, 1000) == 12_000
    assert order_of_return(12.0, 1.0 * HOUR, 0) == 12_000


@pytest.mark.parametrize(("age_s", "most"), [(0.0, 1), (-1.0, 1), (1.0, 0), (0.0, 0)])
def test_something_is_kept_for_some_time(age_s: float, most: int) -> None:
    with pytest.raises(ValueError, match=r"^age_s must be positive, and most at least 1$"):
        Keeping(age_s, most)
    Keeping(0.5, 1)


def test_records_that_are_too_old_go_and_one_of_just_that_age_stays() -> None:
    entries = [entry(str(at_s), str(at_s), float(at_s), Phase.RESUMED) for at_s in (300, 100, 200)]
    assert names(outlived(entries, 300.0, Keeping(100.0, 10))) == ["100"]


def test_of_too_many_records_as_many_go_as_are_too_many_the_oldest_first() -> None:
    entries = [entry(f"{at_s}", f"w{at_s}", float(at_s), Phase.FINISHED) for at_s in range(5)]
    assert names(outlived(entries, 5.0, Keeping(100.0, 3))) == ["0", "1"]
    assert outlived(entries, 5.0, Keeping(100.0, 5)) == []
    assert outlived(entries, 5.0, Keeping(100.0, 9)) == []


def test_what_is_too_old_counts_no_more_among_too_many() -> None:
    entries = [entry(f"{at_s}", f"w{at_s}", float(at_s), Phase.FINISHED) for at_s in range(6)]
    assert names(outlived(entries, 10.0, Keeping(8.0, 4))) == ["0", "1"]
    assert names(outlived(entries, 10.0, Keeping(8.0, 3))) == ["0", "1", "2"]


def test_for_their_number_go_only_final_records_and_those_with_a_newer_one() -> None:
    entries = [
        entry("earlier", "again", 1.0, Phase.RESUMED),
        entry("waits", "b", 2.0, Phase.WAITING),
        entry("runs", "c", 3.0, Phase.RESUMED),
        entry("ended", "d", 4.0, Phase.GONE),
        entry("newest", "again", 5.0, Phase.RESUMED),
    ]
    assert names(outlived(entries, 6.0, Keeping(100.0, 1))) == ["earlier", "ended"]
