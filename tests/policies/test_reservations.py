"""What may start while GPUs are reserved, what is held and reclaimed; when reservations recur, and their account."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.scheduling.reservation import Occurrence, Reservation
from kopt.policies.reservations import (
    Claim,
    Pending,
    PoolSnapshot,
    RecurrenceError,
    Running,
    advanced,
    is_unused,
    occurrences,
    opened,
    overbooked,
    plan_pool,
    result_of,
)

GPU, NOW_S, HOUR_S = 1000, 1_000_000.0, 3600.0
OWNERS = ("team/own", "team/other", "lab/gpus")


def claim(gpus: int = 8, start_s: float = HOUR_S, lead_s: float = 600.0, **changes: Any) -> Claim:
    """Times from now."""
    fields = {"name": "team/nightly", "owner": "team/own", "until_s": NOW_S + start_s + 4 * HOUR_S}
    return Claim(**(fields | {"gpus": gpus * GPU, "start_s": NOW_S + start_s, "lead_s": lead_s} | changes))


def pool(*jobs: Running | Pending, gpus: int = 16, claims: tuple[Claim, ...] = (claim(),)) -> PoolSnapshot:
    running = tuple(job for job in jobs if isinstance(job, Running))
    pending = tuple(job for job in jobs if isinstance(job, Pending))
    free = gpus * GPU - sum(job.gpus for job in running)
    return PoolSnapshot(NOW_S, gpus * GPU, free, claims, running, pending)


def runs(name: str, gpus: int, remaining_s: float | None = None, **changes: Any) -> Running:
    return Running(name, "lab/gpus", gpus * GPU, NOW_S - 60.0, remaining_s, **changes)


def waits(name: str, gpus: int, run_s: float | None = None, owner: str = "lab/gpus", **changes: Any) -> Pending:
    return Pending(name, owner, gpus * GPU, run_s, **changes)


def test_what_ends_in_time_runs_on_reserved_gpus_and_what_does_not_beside_them() -> None:
    plan = plan_pool(pool(waits("short", 4, 0.9 * HOUR_S), waits("long", 8, 9 * HOUR_S), waits("longer", 4, None)))
    assert plan.admitted == ("short", "long")
    assert plan.refused["longer"].code == "RESERVED"
    assert "it is not known when it ends" in plan.refused["longer"].message
    assert plan.holds == {"team/nightly": 4 * GPU}
    # It could start in place of those that may, on what is left for them.
    assert plan.blocked == ("longer",)


def test_what_could_not_start_anyway_is_left_alone_and_what_is_blocked_stays_so() -> None:
    full = runs("full", 8, None)
    assert plan_pool(pool(full, waits("long", 8, None))).blocked == ()
    assert plan_pool(pool(full, waits("long", 8, None, is_blocked=True))).blocked == ("long",)
    assert plan_pool(pool(full, waits("long", 8, None, preempts=True))).blocked == ("long",)


def test_what_can_be_stopped_in_time_runs_until_the_lead_begins() -> None:
    job, full = waits("saves", 8, None, is_killable=True), runs("full", 8, None)
    assert plan_pool(pool(full, job)).admitted == ("saves",)
    assert plan_pool(pool(full, job, claims=(claim(start_s=599.0),))).admitted == ()


def test_the_lead_reclaims_what_does_not_end_in_time_the_last_first() -> None:
    jobs = (runs("old", 8, None), runs("ends", 4, 500.0), Running("new", "lab/gpus", 4 * GPU, NOW_S - 1, None, True))
    before, after = (plan_pool(pool(*jobs, claims=(claim(start_s=at_s),))) for at_s in (601.0, 599.0))
    assert before.reclaims == ()
    (reclaim,) = after.reclaims
    assert (reclaim.claim, reclaim.gpus, reclaim.by_s) == ("team/nightly", 4 * GPU, NOW_S + 599.0)
    assert after.first == ("new",)


def test_its_owner_starts_on_it_once_it_has_begun() -> None:
    full = runs("full", 8, None)
    job = waits("own", 8, None, owner="team/own")
    assert plan_pool(pool(full, job)).admitted == ("own",)
    begun = plan_pool(pool(full, waits("long", 8), job, claims=(claim(start_s=-1.0),)))
    assert begun.admitted == ("own",)
    assert begun.holds == {"team/nightly": 0}
    used = plan_pool(pool(full, Running("own", "team/own", 8 * GPU, NOW_S), claims=(claim(start_s=-1.0),)))
    assert (used.holds, used.reclaims) == ({"team/nightly": 0}, ())


JOBS = {
    "owner": st.sampled_from(OWNERS),
    "gpus": st.integers(1, 12).map(lambda gpus: gpus * 500),
    "is_killable": st.booleans(),
}
LEFT = st.none() | st.floats(0, 3 * HOUR_S)
CLAIMS = st.builds(
    claim,
    gpus=st.integers(1, 8),
    start_s=st.floats(-HOUR_S, 2 * HOUR_S),
    lead_s=st.floats(0, HOUR_S),
    owner=st.sampled_from(OWNERS[:2]),
)


@st.composite
def pools(draw: st.DrawFn) -> PoolSnapshot:
    def named(number: int, item: Any) -> Any:
        return type(item)(**{**item.__dict__, "name": f"{type(item).__name__}-{number}"})

    running = draw(st.lists(st.builds(Running, name=st.just("r"), started_s=st.just(0.0), remaining_s=LEFT, **JOBS)))
    pending = draw(
        st.lists(st.builds(Pending, name=st.just("p"), run_s=LEFT, is_blocked=st.booleans(), **JOBS), max_size=6)
    )
    claims = draw(st.lists(CLAIMS, max_size=3))
    gpus = 16 * GPU + sum(job.gpus for job in running) // 2
    parts = (tuple(named(number, item) for number, item in enumerate(items)) for items in (claims, running, pending))
    return PoolSnapshot(NOW_S, gpus, max(0, gpus - sum(job.gpus for job in running)), *parts)


@given(pools(), st.data())
def test_what_starts_ends_or_can_be_stopped_in_time(snapshot: PoolSnapshot, data: st.DataObject) -> None:
    """Whichever of those that may start do: no reservation finds less room than without them, or than it needs."""
    plan = plan_pool(snapshot)
    assert sorted((*plan.admitted, *plan.refused)) == sorted(job.name for job in snapshot.pending)
    started = [job for job in snapshot.pending if job.name in plan.admitted and data.draw(st.booleans())]
    for at_claim in snapshot.claims:
        at_s = max(NOW_S, at_claim.start_s)
        claims = [each for each in snapshot.claims if each.start_s <= at_s < each.until_s]
        leads = [each.start_s - each.lead_s for each in claims if max(NOW_S, each.start_s) == at_s]

        def reaches(job: Any, remaining_s: float | None, at_s: float = at_s, lead_s: float = min(leads)) -> bool:
            return not (
                (remaining_s is not None and NOW_S + remaining_s <= at_s) or (job.is_killable and lead_s > NOW_S)
            )

        before = [job for job in snapshot.running if reaches(job, job.remaining_s)]
        after = [*before, *(job for job in started if reaches(job, job.run_s))]
        assert _short(after, claims, snapshot.gpus) <= max(0, _short(before, claims, snapshot.gpus))


def _short(jobs: list[Any], claims: list[Claim], gpus: int) -> int:
    """How many GPUs lack for all claims beside what is not their owners'."""
    needed = sum(job.gpus for job in jobs if job.owner not in {each.owner for each in claims})
    for owner in {each.owner for each in claims}:
        own = sum(job.gpus for job in jobs if job.owner == owner)
        needed += max(own, sum(each.gpus for each in claims if each.owner == owner))
    return needed - gpus


@given(pools())
def test_holds_are_never_more_than_is_idle_or_reserved(snapshot: PoolSnapshot) -> None:
    plan = plan_pool(snapshot)
    left = snapshot.free - sum(plan.holds.values())
    assert left >= 0
    reserved = {each.name: each.gpus for each in snapshot.claims}
    assert all(0 <= gpus <= reserved[name] for name, gpus in plan.holds.items())
    for job in (job for job in snapshot.pending if job.name in plan.admitted):
        if job.gpus <= left:
            left -= job.gpus
    unheld = PoolSnapshot(NOW_S, snapshot.gpus, snapshot.free, (), snapshot.running, snapshot.pending)
    free = plan_pool(unheld)
    assert (free.holds, free.blocked, free.reclaims) == ({}, (), ())
    assert len(free.admitted) == len(snapshot.pending)


def reserved(**changes: Any) -> Reservation:
    start_s = datetime(2026, 10, 19, 8, tzinfo=ZoneInfo("Europe/Helsinki")).timestamp()
    fields = {"name": "team/nightly", "queue": "gpus", "nodes": 2, "gpus_per_node": 4, "start_s": start_s}
    return Reservation(**(fields | {"until_s": start_s + 2 * HOUR_S, "time_zone": "Europe/Helsinki"} | changes))


def test_what_recurs_does_so_at_the_same_time_of_day_in_winter() -> None:
    weekly = reserved(recurrence="FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4")
    found = occurrences(weekly, weekly.start_s, weekly.start_s + 30 * 86_400)
    local = [datetime.fromtimestamp(each.start_s, ZoneInfo("Europe/Helsinki")) for each in found]
    assert [(each.day, each.hour) for each in local] == [(19, 8), (21, 8), (26, 8), (28, 8)]
    assert [datetime.fromtimestamp(each.start_s, UTC).hour for each in found] == [5, 5, 6, 6]
    # One that runs is among them until it ends.
    assert len(occurrences(weekly, found[1].start_s + 1.5 * HOUR_S, weekly.until_s + 30 * 86_400)) == 3
    assert occurrences(reserved(), reserved().until_s, float("inf")) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recurrence": "FREQ=OFTEN"}, "cannot be read"),
        ({"time_zone": "Mars", "recurrence": "FREQ=DAILY"}, "time zone"),
    ],
)
def test_a_recurrence_that_cannot_be_read_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(RecurrenceError, match=words):
        occurrences(reserved(**changes), 0.0, 4e9)


def test_of_two_that_do_not_fit_the_younger_is_refused() -> None:
    older = reserved(created_s=1.0)
    times = {"start_s": older.start_s + HOUR_S, "until_s": older.until_s + HOUR_S}
    younger = reserved(name="team/second", created_s=2.0, **times)
    refused = overbooked([younger, older], 15, older.start_s - HOUR_S)
    assert list(refused) == ["team/second"]
    assert "2026-10-19T06:00:00Z it and team/nightly would reserve 16 GPUs; the pool has 15" in refused["team/second"]
    assert overbooked([younger, older], 16, older.start_s - HOUR_S) == {}
    after = reserved(name="team/third", start_s=older.until_s, until_s=older.until_s + HOUR_S)
    assert overbooked([older, after], 8, older.start_s - HOUR_S) == {}
    long = reserved(recurrence="FREQ=DAILY", until_s=older.start_s + 30 * HOUR_S)
    assert "recurs before it has ended" in overbooked([long], 16, older.start_s)["team/nightly"]


def test_the_account_says_when_its_gpus_were_there_and_what_they_were_used_for() -> None:
    own = reserved(recurrence="")
    start_s, until_s = own.start_s, own.until_s
    account = opened(Occurrence(start_s, until_s), start_s - HOUR_S)
    account = advanced(account, own, start_s - HOUR_S, held=2, used=0)
    account = advanced(account, own, start_s - HOUR_S / 2, held=8, used=0)
    # Before the lead others may come: it was not met yet.
    assert (account.met_s, account.backfilled_gpu_s) == (None, 6 * HOUR_S / 2)
    account = advanced(account, own, start_s + 30, held=8, used=0)
    assert account.met_s == start_s + 30
    account = advanced(account, own, start_s + HOUR_S, held=0, used=8)
    assert not is_unused(account, own, start_s + HOUR_S)
    account = advanced(account, own, start_s + 1.5 * HOUR_S, held=8, used=0)
    assert not is_unused(account, own, start_s + 1.5 * HOUR_S + own.unused_after_s - 1)
    assert is_unused(account, own, start_s + 1.5 * HOUR_S + own.unused_after_s)
    result = result_of(advanced(account, own, until_s + 60, held=0, used=0), own)
    assert (result.late_s, result.used_share) == (30.0, 0.25)
    assert result.backfilled_share == pytest.approx(6 * HOUR_S / 2 / (8 * HOUR_S))


@given(st.lists(st.tuples(st.floats(-2 * HOUR_S, 3 * HOUR_S), st.integers(0, 9), st.integers(0, 9)), max_size=20))
def test_shares_are_shares_whatever_is_seen_and_when(seen: list[tuple[float, int, int]]) -> None:
    own = reserved(recurrence="")
    account = opened(Occurrence(own.start_s, own.until_s), own.start_s - 2 * HOUR_S)
    for at_s, held, used in sorted(seen):
        account = advanced(account, own, own.start_s + at_s, held=held, used=used)
    result = result_of(advanced(account, own, own.until_s + 1, held=0, used=0), own)
    assert 0 <= result.used_share <= 1
    assert 0 <= result.backfilled_share <= 1
    assert result.late_s is None or 0 <= result.late_s < own.until_s - own.start_s
