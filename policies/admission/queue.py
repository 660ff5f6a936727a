"""Which queue a GPU workload belongs to (K1), and the refusal when no rule says so.

The first source that names a queue wins: the workload's own label, its namespace's annotation, its priority class, the
groups of its creator (in the order of the rules), the default. A rule whose queue is known not to exist is skipped,
because a workload labelled with it would wait forever.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kopt.core.reason import Reason
from kopt.core.scheduling.submission import Framework, Submission
from kopt.core.units import format_gpus

NAMESPACE_ANNOTATION = "kaiwo.ai/queue"
_MOST_GROUPS = 3


class Source(StrEnum):
    """Where a queue's name came from."""

    LABEL = "label"
    KEPT = "kept"
    NAMESPACE = "namespace"
    PRIORITY_CLASS = "priority-class"
    GROUP = "group"
    DEFAULT = "default"


@dataclass(frozen=True)
class QueueRule:
    """Workloads of the priority class or group ``name`` go to ``queue``."""

    name: str
    queue: str


@dataclass(frozen=True)
class QueueSettings:
    """The rules, in the order of the policy. An empty ``default`` means: refuse workloads that match no rule."""

    framework: Framework = Framework.KUEUE
    priority_classes: tuple[QueueRule, ...] = ()
    groups: tuple[QueueRule, ...] = ()
    default: str = ""


@dataclass(frozen=True)
class QueueChoice:
    """The queue and where its name came from; an empty queue and no source when no rule matches."""

    queue: str
    source: Source | None
    reasons: tuple[Reason, ...]

    @property
    def conforms(self) -> bool:
        return bool(self.queue)


def choose_queue(
    submission: Submission, settings: QueueSettings, existing: Collection[str] | None = None
) -> QueueChoice:
    """The queue of a workload. ``existing`` are the queues that exist for its namespace; None if unknown.

    A queue that the workload names itself is kept, even one that does not exist; the user gets a warning.
    """
    if submission.queue:
        reasons = [Reason("LABEL", f"It names queue {submission.queue!r} itself.")]
        if existing is not None and submission.queue not in existing:
            reasons.append(_missing("its own label", submission.queue, submission.namespace))
        return QueueChoice(submission.queue, Source.LABEL, tuple(reasons))
    passed: list[Reason] = []
    for source, why, queue in _candidates(submission, settings):
        if existing is None or queue in existing:
            reason = Reason(source.name, f"Queue {queue!r} comes from {why}.", {"queue": queue})
            return QueueChoice(queue, source, (reason, *passed))
        passed.append(_missing(why, queue, submission.namespace))
    return QueueChoice("", None, (*passed, Reason("NO_RULE", refusal(submission, settings, tuple(passed)))))


def choose_at_update(choice: QueueChoice, old_queue: str, *, takes_running: bool, runs: bool) -> QueueChoice:
    """The queue of a workload that is being updated, from the rules now and the queue it had before.

    A label that the update leaves out is kept. A workload that runs without a queue stays without one if the framework
    accepts no running workloads: it would reject the update.
    """
    if choice.source is Source.LABEL:
        return choice
    if old_queue:
        return QueueChoice(old_queue, Source.KEPT, (Reason("KEPT", f"It keeps its queue {old_queue!r}."),))
    if runs and not takes_running:
        text = "It runs without a queue, and its queueing system accepts no running workloads; the audit lists it."
        return QueueChoice("", None, (Reason("RUNNING", text),))
    return choice


def refusal(submission: Submission, settings: QueueSettings, passed: tuple[Reason, ...] = ()) -> str:
    """Why no queue was found and which rule to add, for the user whose workload is refused."""
    about = f"{submission.kind} {submission.namespace}/{submission.name or '(generated name)'}"
    looked = [f"namespace {submission.namespace!r} has no annotation {NAMESPACE_ANNOTATION}"]
    if submission.priority_class:
        looked.append(f"priority class {submission.priority_class!r} has no rule")
    groups = [group for group in submission.groups if not group.startswith("system:")]
    if groups:
        looked.append(f"none of the groups {', '.join(groups[:_MOST_GROUPS])} has a rule")
    looked.append("there is no default")
    tried = " ".join(reason.message for reason in passed)
    wanted = groups[0] if groups else "GROUP"
    return (
        f"{about} requests {format_gpus(submission.gpus)} GPU(s), but no rule names a {settings.framework} queue for "
        f"it: {'; '.join(looked)}. {tried + ' ' if tried else ''}Name the queue yourself, or have one of these added: "
        f"`kubectl annotate namespace {submission.namespace} {NAMESPACE_ANNOTATION}=QUEUE`, or in ConformancePolicy "
        f"'default' spec.queues.groups: [{{name: {wanted}, queue: QUEUE}}] or spec.queues.default: QUEUE."
    )


def _candidates(submission: Submission, settings: QueueSettings) -> Iterator[tuple[Source, str, str]]:
    """(source, its description, queue), the nearest first."""
    if submission.namespace_queue:
        yield Source.NAMESPACE, f"the annotation of namespace {submission.namespace!r}", submission.namespace_queue
    for rule in settings.priority_classes:
        if rule.name == submission.priority_class:
            yield Source.PRIORITY_CLASS, f"the rule for priority class {rule.name!r}", rule.queue
    for rule in settings.groups:
        if rule.name in submission.groups:
            yield Source.GROUP, f"the rule for group {rule.name!r}", rule.queue
    if settings.default:
        yield Source.DEFAULT, "the default", settings.default


def _missing(why: str, queue: str, namespace: str) -> Reason:
    text = f"Queue {queue!r} from {why} does not exist for namespace {namespace!r}."
    return Reason("QUEUE_MISSING", text, {"queue": queue})
