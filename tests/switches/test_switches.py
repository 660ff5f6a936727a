"""Switches and percentages, as properties: who is included, and what people and alarms may do to a switch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.objects.custom.feature_rollout import changes_of, rollout_document, switches_of
from kopt.cluster.workloads.owners import owner_of
from kopt.core.switches import FEATURES, LONGEST_REASON, MOST_FLIPS, Alarm, Owner, Setting, Switches, is_included

names = st.sampled_from([feature.name for feature in FEATURES])
percents = st.integers(0, 100)
owners = st.builds(Owner.of, st.sampled_from(["jobs", "pods"]), st.text(), st.text())
alarms = st.builds(Alarm, st.sampled_from(["Drift", "ErrorRate"]), st.text("ab", max_size=2), st.text(min_size=1))


@given(owners, percents, percents)
def test_what_is_included_stays_included_as_a_percentage_grows(owner: Owner, few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert not is_included(few, owner) or is_included(more, owner)
    assert is_included(100, owner)
    assert not is_included(0, owner)


@given(st.dictionaries(names, percents), names, owners, percents)
def test_all_replicas_give_the_same_answer(defaults: dict[str, int], name: str, owner: Owner, percent: int) -> None:
    switches = Switches(defaults).set_by("alice", name, percent, "trial", 1.0) or Switches(defaults)
    again = switches_of(
        rollout_document(switches) | {"spec": rollout_document(switches)["spec"] | {"defaults": defaults}}
    )
    assert all(switches.includes(each.name, owner) == again.includes(each.name, owner) for each in FEATURES)


acts = st.one_of(
    st.tuples(st.just("person"), names, st.none() | percents),
    st.tuples(st.just("alarm"), names, alarms),
)


@given(st.dictionaries(names, percents), st.lists(acts, max_size=20))
def test_every_change_is_recorded_and_alarms_only_switch_off(defaults: dict[str, int], acts: list[tuple]) -> None:  # type: ignore[type-arg]
    switches = Switches(defaults)
    for number, (who, name, what) in enumerate(acts):
        before = switches.percent(name)
        if who == "person":
            after = switches.set_by("alice", name, what, "because", float(number))
        else:
            after = switches.fall_back("kopt", name, what, float(number))
            assert after is None or after.percent(name) == 0 < before
            # A second replica that sees the same alarm finds nothing to do.
            assert after is None or after.fall_back("kopt-2", name, what, float(number)) is None
        if after is None:
            continue
        flip = after.history[0]
        assert (flip.feature, flip.before, flip.after) == (name, before, after.percent(name))
        assert flip.alarm == ("" if who == "person" else what.name)
        assert len(after.history) == min(MOST_FLIPS, len(switches.history) + 1)
        others = {each.name: switches.percent(each.name) for each in FEATURES if each.name != name}
        assert others == {each.name: after.percent(each.name) for each in FEATURES if each.name != name}
        switches = after


@given(names, alarms)
def test_an_alarm_that_a_person_has_overruled_does_not_switch_off_again(name: str, alarm: Alarm) -> None:
    off = Switches().fall_back("kopt", name, alarm, 1.0)
    assert off is not None
    on = off.set_by("alice", name, 100, "I know of it", 2.0)
    assert on is not None
    assert on.fall_back("kopt", name, alarm, 3.0) is None
    other = Alarm(alarm.kind, alarm.subject + "@next", alarm.message)
    assert on.fall_back("kopt", name, other, 3.0) is not None


def test_nothing_is_written_where_nothing_changes() -> None:
    switches = Switches().set_by("alice", "queues", 10, "trial", 1.0)
    assert switches is not None
    assert switches.set_by("bob", "queues", 10, "the same", 2.0) is None
    assert Switches().set_by("bob", "queues", None, "the default", 2.0) is None


def test_who_takes_over_an_alarms_switch_is_recorded_though_it_stays_off() -> None:
    off = Switches().fall_back("kopt", "sizing", Alarm("Drift", "sizing@7", "misses"), 1.0)
    assert off is not None
    kept = off.set_by("alice", "sizing", 0, "it stays off until Monday", 2.0)
    assert kept is not None
    assert kept.settings["sizing"] == Setting(0, "alice", 2.0, "it stays off until Monday")


@pytest.mark.parametrize(
    ("name", "percent", "reason", "says"),
    [("nope", 10, "x", "queues, schedulers"), ("queues", 101, "x", "0 to 100"), ("queues", 10, "  ", "needs a reason")],
)
def test_a_wrong_change_is_refused(name: str, percent: int, reason: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Switches().set_by("alice", name, percent, reason, 1.0)


def test_reasons_and_history_are_bounded() -> None:
    switches = Switches()
    for number in range(MOST_FLIPS + 20):
        switches = switches.set_by("alice", "queues", number % 100, "x" * 10_000, float(number)) or switches
    assert len(switches.history) == MOST_FLIPS
    assert switches.history[0].at_s > switches.history[-1].at_s
    assert max(len(flip.reason) for flip in switches.history) == LONGEST_REASON


@given(st.dictionaries(names, percents), st.lists(acts, max_size=8))
def test_what_is_written_is_what_is_read(defaults: dict[str, int], acts: list[tuple]) -> None:  # type: ignore[type-arg]
    from attacks.api_in_memory import merged

    switches = Switches(defaults)
    document = rollout_document(Switches()) | {"spec": {"defaults": defaults}}
    for number, (who, name, what) in enumerate(acts):
        at_s = 1.8e9 + number
        by_alarm = who == "alarm"
        after = (
            switches.fall_back("kopt", name, what, at_s)
            if by_alarm
            else switches.set_by("alice", name, what, "because", at_s)
        )
        if after is not None:
            document = merged(document, changes_of(switches, after))
            switches = after
        assert switches_of(document) == switches


@pytest.mark.parametrize("wrong", [None, "ten", -1, 101, True, {}, [], 5.5])
def test_a_switch_that_cannot_be_read_is_off(wrong: object) -> None:
    for spec in (
        {"defaults": {"queues": wrong}},
        {"settings": {"queues": {"percent": wrong}}},
        {"settings": {"queues": wrong}},
    ):
        assert switches_of({"spec": spec}).percent("queues") == 0


CRON = {"kind": "CronJob", "name": "nightly", "controller": True, "apiVersion": "batch/v1", "uid": "c"}
JOB = {"kind": "Job", "name": "nightly-29384756", "controller": True, "apiVersion": "batch/v1", "uid": "j"}


def test_one_workload_has_one_name_from_every_side() -> None:
    """Else it would be on both sides of a percentage."""
    job = {"metadata": {"name": "nightly-29384756", "namespace": "team", "ownerReferences": [CRON]}}
    pod = {"metadata": {"name": "nightly-29384756-x7k2p", "namespace": "team", "ownerReferences": [JOB]}}
    workload = {"metadata": {"name": "job-nightly-1", "namespace": "team", "ownerReferences": [JOB]}}
    new = {"metadata": {"generateName": "nightly-"}}
    expected = Owner("jobs", "team", "nightly")
    assert owner_of(job, "jobs") == owner_of(pod, "pods") == owner_of(workload, "workloads") == expected
    assert owner_of(new, "jobs", "team") == expected


def test_pods_of_a_deployment_stay_on_their_side_through_a_rollout() -> None:
    def pod(template: str) -> dict[str, object]:
        owner = {"kind": "ReplicaSet", "name": f"chat-{template}", "controller": True}
        labels = {"pod-template-hash": template}
        return {"metadata": {"name": "x", "namespace": "team", "labels": labels, "ownerReferences": [owner]}}

    assert owner_of(pod("5d4f"), "pods") == owner_of(pod("9abc"), "pods") == Owner("deployments", "team", "chat")
