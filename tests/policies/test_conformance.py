"""Queue rules, scheduler classes, modes and rollouts, as properties over any settings."""

import string

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.decision import Mode
from kopt.core.scheduling.submission import Framework, Submission, WorkloadShape
from kopt.core.scheduling.workload_class import WorkloadClass, default_classes
from kopt.core.units import MilliGpu
from kopt.policies.admission.mode import is_reached, nearest_mode, parse_mode
from kopt.policies.admission.queue import QueueRule, QueueSettings, Source, choose_at_update, choose_queue, refusal
from kopt.policies.admission.scheduler import (
    GangClass,
    PackingClass,
    Placement,
    SchedulerSettings,
    SpreadClass,
    choose_scheduler,
)

names = st.text(string.ascii_lowercase, min_size=1, max_size=4)
maybe = st.one_of(st.just(""), names)
rules = st.lists(st.builds(QueueRule, names, names), max_size=4).map(tuple)
settings = st.builds(QueueSettings, st.sampled_from(Framework), rules, rules, maybe)
submissions = st.builds(
    Submission,
    kind=st.just("Job"),
    namespace=names,
    name=names,
    gpus=st.integers(1, 10**6).map(MilliGpu),
    queue=maybe,
    namespace_queue=maybe,
    priority_class=maybe,
    groups=st.lists(names, max_size=4).map(tuple),
)
ORDER = [Source.LABEL, Source.NAMESPACE, Source.PRIORITY_CLASS, Source.GROUP, Source.DEFAULT]


def job(**fields: object) -> Submission:
    return Submission(**{"kind": "Job", "namespace": "team", "name": "train", "gpus": MilliGpu(4000)} | fields)  # type: ignore[arg-type]


RULES = QueueSettings(Framework.KUEUE, (QueueRule("high", "fast"),), (QueueRule("nlp", "research"),), "rest")


def test_the_nearest_source_names_the_queue() -> None:
    known: dict[str, object] = {
        "queue": "mine",
        "namespace_queue": "ours",
        "priority_class": "high",
        "groups": ("nlp",),
    }
    found = []
    for name in [*known, ""]:
        choice = choose_queue(job(**known), RULES)
        found.append((choice.source, choice.queue))
        known.pop(name, None)
    assert found == list(zip(ORDER, ["mine", "ours", "fast", "research", "rest"], strict=True))


@given(submissions, settings)
def test_a_label_of_the_users_own_always_stays(submission: Submission, rules: QueueSettings) -> None:
    choice = choose_queue(submission, rules, existing=())
    if submission.queue:
        assert (choice.queue, choice.source) == (submission.queue, Source.LABEL)


@given(submissions, settings, st.sets(names))
def test_a_rule_never_sends_work_to_a_queue_that_does_not_exist(
    submission: Submission, rules: QueueSettings, known: set[str]
) -> None:
    choice = choose_queue(submission, rules, known)
    if choice.source not in (Source.LABEL, None):
        assert choice.queue in known
    assert choice.conforms == (choice.source is not None)


@given(submissions, settings)
def test_the_labelled_workload_keeps_its_queue(submission: Submission, rules: QueueSettings) -> None:
    first = choose_queue(submission, rules)
    if first.conforms:
        fields = {name: getattr(submission, name) for name in ("namespace_queue", "priority_class", "groups")}
        again = choose_queue(job(**fields, queue=first.queue), rules)
        assert again.queue == first.queue


@given(submissions, settings)
def test_a_refusal_is_told_with_the_rule_that_would_help(submission: Submission, rules: QueueSettings) -> None:
    choice = choose_queue(submission, rules, existing=())
    if not choice.conforms:
        message = choice.reasons[-1].message
        assert choice.reasons[-1].code == "NO_RULE"
        assert submission.namespace in message
        assert "kaiwo.ai/queue=QUEUE" in message
        assert "spec.queues.groups" in message


def test_the_refusal_names_the_users_own_group_and_not_the_systems() -> None:
    message = refusal(job(groups=("system:authenticated", "vision")), QueueSettings())
    assert "{name: vision, queue: QUEUE}" in message
    assert "system:authenticated" not in message


def test_a_rule_for_a_missing_queue_is_passed_over_and_told() -> None:
    choice = choose_queue(job(groups=("nlp",)), RULES, existing={"rest"})
    assert choice.queue == "rest"
    assert [reason.code for reason in choice.reasons] == ["DEFAULT", "QUEUE_MISSING"]


def test_a_change_keeps_the_queue_and_never_labels_what_runs_where_that_is_refused() -> None:
    chosen = choose_queue(job(), RULES)
    assert choose_at_update(chosen, "mine", takes_running=False, runs=True).queue == "mine"
    assert choose_at_update(chosen, "", takes_running=False, runs=False).queue == "rest"
    assert choose_at_update(chosen, "", takes_running=True, runs=True).queue == "rest"
    assert not choose_at_update(chosen, "", takes_running=False, runs=True).conforms
    own = choose_queue(job(queue="new"), RULES)
    assert choose_at_update(own, "mine", takes_running=False, runs=True).queue == "new"


def test_the_nearest_mode_wins_and_typing_errors_change_nothing() -> None:
    assert nearest_mode("enforce", "annotate", Mode.OBSERVE) is Mode.ENFORCE
    assert nearest_mode(None, "annotate", Mode.OBSERVE) is Mode.ANNOTATE
    assert nearest_mode("enfoce", 7, Mode.OBSERVE) is Mode.OBSERVE
    assert parse_mode("") is None


@given(st.sampled_from(["observe", "annotate", "enforce", "x"]), st.sampled_from(["observe", "annotate", "enforce"]))
def test_a_workload_cannot_lower_its_mode_where_that_is_forbidden(own: str, around: str) -> None:
    order = list(Mode)
    mode = nearest_mode(own, around, Mode.OBSERVE, workload_may_lower=False)
    assert order.index(mode) >= order.index(Mode(around))


@given(st.lists(st.text(), min_size=1), st.integers(0, 100), st.integers(0, 100))
def test_a_rollout_only_grows(parts: list[str], few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert not is_reached(few, parts) or is_reached(more, parts)
    assert is_reached(100, parts)
    assert not is_reached(0, parts)


def test_a_rollout_of_a_third_reaches_about_a_third() -> None:
    reached = sum(is_reached(33, ("jobs", "team", f"job-{number}")) for number in range(3000))
    assert 800 < reached < 1200


CLASSES = SchedulerSettings(
    PackingClass("packer", MilliGpu(1000)), GangClass("kai-scheduler", min_pods=3), SpreadClass(("zone",))
)
RUNNING = {"packer", "kai-scheduler"}
shapes = st.builds(
    WorkloadShape,
    st.just("Job"),
    st.sampled_from(WorkloadClass),
    st.integers(0, 9),
    st.integers(0, 9000).map(MilliGpu),
    st.sampled_from(["", "default-scheduler", "theirs"]),
    st.booleans(),
)


def shape(pods: int, gpus: int, role: WorkloadClass = WorkloadClass.UNATTENDED, **fields: object) -> WorkloadShape:
    placement = default_classes().of(role).placement
    return WorkloadShape("Job", role, pods, MilliGpu(gpus), placement=placement, **fields)  # type: ignore[arg-type]


@given(shapes, st.sets(st.sampled_from(sorted(RUNNING))))
def test_only_schedulers_that_run_are_named_and_written_ones_stay(one: WorkloadShape, running: set[str]) -> None:
    choice = choose_scheduler(one, CLASSES, running)
    assert choice.scheduler in running | {""}
    if one.scheduler == "theirs":
        assert choice.placement is Placement.AS_WRITTEN
    assert choice.reasons


def test_small_is_packed_distributed_is_ganged_services_are_spread() -> None:
    assert choose_scheduler(shape(1, 500), CLASSES, RUNNING).scheduler == "packer"
    assert choose_scheduler(shape(1, 2000), CLASSES, RUNNING).placement is Placement.AS_WRITTEN
    assert choose_scheduler(shape(3, 24000), CLASSES, RUNNING).scheduler == "kai-scheduler"
    assert choose_scheduler(shape(2, 16000), CLASSES, RUNNING).placement is Placement.AS_WRITTEN
    service = choose_scheduler(shape(2, 2000, WorkloadClass.INFERENCE), CLASSES, RUNNING)
    assert (service.placement, service.topology_keys) == (Placement.SPREAD, ("zone",))


def test_a_scheduler_that_is_down_is_told_and_not_named() -> None:
    choice = choose_scheduler(shape(4, 4000), CLASSES, {"packer"})
    assert (choice.placement, choice.reasons[0].code) == (Placement.AS_WRITTEN, "NOT_RUNNING")


def test_a_class_that_is_switched_off_does_nothing() -> None:
    assert choose_scheduler(shape(4, 4000), SchedulerSettings(), RUNNING).placement is Placement.AS_WRITTEN
