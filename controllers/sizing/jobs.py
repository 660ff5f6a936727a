"""Jobs as the sizing controller reads and changes them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kopt.cluster.held import holder_of, queue_of
from kopt.cluster.namespaces import MODE_ANNOTATION, NamespaceView
from kopt.cluster.requests import FRACTION_ANNOTATION, with_request
from kopt.cluster.resources import Object
from kopt.controllers.sizing.offers import PRODUCT_LABELS
from kopt.controllers.sizing.pods import PodView
from kopt.controllers.sizing.selection import wanted_labels
from kopt.controllers.webhook.facts import OPT_OUT_ANNOTATION
from kopt.controllers.webhook.gpus import FRACTION_ANNOTATIONS, memory_of, milli_of
from kopt.controllers.webhook.objects import at, count, items, mapping, text, texts
from kopt.core.decision import Mode
from kopt.core.profile import JobType
from kopt.core.sizing import ShareKind
from kopt.core.units import MIB, WHOLE_GPU, Bytes, MilliGpu, format_gpus
from kopt.policies.profiling import Ask, JobFacts
from kopt.policies.profiling_pod import PROFILING_LABEL

HOLDER = "profiling"
STATE_ANNOTATION = "kaiwo.ai/sizing-state"
"""JSON on a Job that was held: since when, what it asked for itself, how often it ran out of memory."""
REASON_ANNOTATION = "kaiwo.ai/recommended-reason"
"""On a Job: why it has the request that it has."""
PROFILING_OPT_OUT = "kaiwo.ai/profiling"
"""``false`` keeps a Job from being held and profiled."""
_MOST_SEEN = 50
_STOPPING = "kueue.x-k8s.io/stopping"
"""On a Job while Kueue stops it and puts its template back."""


@dataclass(frozen=True)
class State:
    """``phase``: ``stop`` while its queue, which had admitted it, is to stop it (``stopped``: and has), ``profile``
    while held for a dry run, ``retry`` while held for a new try, ``sized`` with a request of ours, ``own`` with the
    user's.
    ``asked`` is the user's own request as it has to be restored, ``type`` the digest of its job type: while it runs, a
    queue may have added to its node selector."""

    phase: str
    since_s: float
    asked: Mapping[str, Any]
    tries: int = 0
    granted_bytes: int = 0
    need_bytes: int = 0
    seen: tuple[str, ...] = ()
    type: str = ""
    stopped: bool = False

    def having_seen(self, pods: Iterable[str]) -> "State":
        """The state after these failed pods, which say nothing any more about the request that the Job has then."""
        return replace(self, seen=tuple(dict.fromkeys([*self.seen, *pods]))[-_MOST_SEEN:])

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)


def state_of(job: Object) -> State | None:
    """None where there is none, or none that can be read: users may write annotations as well."""
    try:
        found = json.loads(text(job, "metadata", "annotations", STATE_ANNOTATION) or "null")
        if not isinstance(found, dict) or not isinstance(found["asked"], dict):
            return None
        return State(
            str(found["phase"]), float(found["since_s"]), found["asked"], int(found["tries"]),
            int(found["granted_bytes"]), int(found["need_bytes"]),
            tuple([str(one) for one in found["seen"]][-_MOST_SEEN:]), str(found.get("type", "")),
            found.get("stopped") is True,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def gpu_container(job: Object) -> tuple[int, str] | None:
    """The first container that asks for GPUs, and the resource by which; None for a Job without."""
    for index, container in items(job, "spec", "template", "spec", "containers"):
        for part in ("limits", "requests"):
            for name, amount in items(container, "resources", part):
                if milli_of(str(name), amount):
                    return int(index), str(name)
    return None


def gpus_per_pod(job: Object) -> MilliGpu:
    """Milli-GPU that the containers of one pod ask for."""
    total = 0
    for _, container in items(job, "spec", "template", "spec", "containers"):
        limits = sum(milli_of(str(name), amount) for name, amount in items(container, "resources", "limits"))
        total += limits or sum(
            milli_of(str(name), amount) for name, amount in items(container, "resources", "requests")
        )
    return MilliGpu(total)


def pods_of(job: Object) -> int:
    parallel = count(job, "spec", "parallelism")
    return min(parallel, count(job, "spec", "completions", default=parallel))


def facts_of(job: Object, namespace: NamespaceView, default: Mode) -> JobFacts:
    """What the policy looks at."""
    annotations = mapping(job, "metadata", "annotations")
    template_notes = mapping(job, "spec", "template", "metadata", "annotations")
    found, holder = gpu_container(job), holder_of(job)
    sized = state_of(job) is not None
    status = mapping(job, "status")
    ran = any(count(status, name, default=0) for name in ("ready", "succeeded", "failed"))
    return JobFacts(
        mode=_mode(str(annotations.get(MODE_ANNOTATION, "")) or namespace.mode, default),
        managed=namespace.managed,
        gpus=gpus_per_pod(job),
        resource=found[1] if found else "",
        pods=pods_of(job),
        opted_out=_opts_out(job),
        has_command=bool(texts(job, "spec", "template", "spec", "containers", found[0] if found else 0, "command")),
        states_size=not sized and any(
            memory_of(notes) or any(name in notes for name in FRACTION_ANNOTATIONS)
            for notes in (annotations, template_notes)
        ),
        queued=bool(queue_of(job)),
        admitted=bool(queue_of(job)) and at(job, "spec", "suspend") is not True,
        started=ran,
        stopped=at(job, "spec", "suspend") is True and not holder and not queue_of(job),
        finished=is_finished(job) or at(job, "metadata", "deletionTimestamp") is not None,
        held_by_others=holder not in ("", HOLDER),
        retriable=_retriable(job),
    )  # fmt: skip


def job_type_of(job: Object) -> JobType | None:
    """None for a Job whose command nobody outside of its image knows."""
    found = gpu_container(job)
    if found is None:
        return None
    container = at(job, "spec", "template", "spec", "containers", found[0])
    command = texts(container, "command")
    if not command:
        return None
    world = max(1, pods_of(job) * max(1, gpus_per_pod(job) // WHOLE_GPU))
    gpus = ",".join(sorted(wanted_labels(pod_of(job), PRODUCT_LABELS)))
    return JobType(text(container, "image"), command + texts(container, "args"), gpus, world)


def asked_of(state: State) -> dict[str, Any]:
    """The user's own request, with the retries that tries of ours have used up on top."""
    own = state.asked.get("backoff_limit")
    limit = own if isinstance(own, int) and not isinstance(own, bool) else 6
    return {**state.asked, "backoff_limit": limit + state.tries}


def restored(job: Object, state: State) -> Object:
    """The change of ``spec`` that gives a Job its own request back."""
    return with_request(job, asked_of(state))


def pod_of(job: Object) -> Object:
    """The spec of its pods."""
    return dict(mapping(job, "spec", "template", "spec"))


def as_written(job: Object) -> Object:
    """The Job as its user wrote it, whatever it asks for now."""
    state = state_of(job)
    if state is None:
        return job
    changed = restored(job, state)["template"]["spec"]
    template = job["spec"]["template"]
    return job | {"spec": job["spec"] | {"template": template | {"spec": template["spec"] | changed}}}


def asking(job: Object, state: State, ask: Ask, retries: int) -> Object:
    """The change of ``spec`` that makes a Job ask for what the policy says. Its own resource gives way to a partition,
    or to the annotation of a fraction; tries that run out of memory come on top of the user's own retries."""
    spec = restored(job, state)
    if ask.kind is ShareKind.WHOLE:
        return spec
    spec["backoffLimit"] += retries - state.tries
    found = gpu_container({"spec": {"template": spec["template"]}})
    if found is None:
        return spec
    container = spec["template"]["spec"]["containers"][found[0]]
    for part in ("limits", "requests"):
        amounts = (container.get("resources") or {}).get(part) or {}
        if amounts.pop(found[1], None) is not None and ask.kind is ShareKind.PARTITION:
            amounts[ask.resource] = "1"
    if ask.kind is ShareKind.FRACTION:
        spec["template"]["metadata"]["annotations"][FRACTION_ANNOTATION] = format_gpus(ask.milli_gpu)
    return spec


def notes_of(ask: Ask, state: State) -> dict[str, str]:
    """Annotations that tell people, and this controller after a restart, what was decided."""
    found = {STATE_ANNOTATION: state.to_json(), REASON_ANNOTATION: ask.reason.message}
    if ask.bytes:
        found["kaiwo.ai/recommended-memory"] = str(-(-ask.bytes // MIB))
    return found


def granted(state: State, ask: Ask, need_bytes: int) -> State:
    """The state of a Job that now has what ``ask`` says."""
    phase = "own" if ask.kind is ShareKind.WHOLE else "sized"
    return replace(state, phase=phase, granted_bytes=int(ask.bytes), need_bytes=need_bytes)


def is_finished(job: Object) -> bool:
    return any(
        text(one, "type") in ("Complete", "Failed") and text(one, "status") == "True"
        for _, one in items(job, "status", "conditions")
    )


def is_changeable(job: Object) -> bool:
    """Whether its controller has stopped it; only then does the API server let its request be changed."""
    stopped = any(
        text(one, "type") == "Suspended" and text(one, "status") == "True"
        for _, one in items(job, "status", "conditions")
    )
    is_stopping = text(job, "metadata", "annotations", _STOPPING) == "true"
    return stopped and at(job, "spec", "suspend") is True and not is_stopping and not _pods_that(job, "active")


def is_untouched(job: Object, pods: Sequence[PodView]) -> bool:
    """Whether all pods of a Job are seen, and no container of any has begun."""
    return len(pods) >= _pods_that(job, "active") and not any(one.begun for one in pods)


def is_at_rest(job: Object) -> bool:
    """Whether no pod of a stopped Job is left either that could still write what its next one reads."""
    return is_changeable(job) and not _pods_that(job, "terminating")


def _pods_that(job: Object, are: str) -> int:
    return count(job, "status", are, default=0)


def _opts_out(job: Object) -> bool:
    """By annotation; and a dry run needs none itself."""
    annotations = mapping(job, "metadata", "annotations")
    says_so = annotations.get(OPT_OUT_ANNOTATION) == "true" or annotations.get(PROFILING_OPT_OUT) == "false"
    return says_so or PROFILING_LABEL in mapping(job, "metadata", "labels")


def _mode(written: str, default: Mode) -> Mode:
    try:
        return Mode(written) if written else default
    except ValueError:
        return Mode.OBSERVE


def _retriable(job: Object) -> bool:
    """Whether a failed pod is followed by another: a failure policy of the user's may say otherwise."""
    rules = items(job, "spec", "podFailurePolicy", "rules")
    per_index = at(job, "spec", "backoffLimitPerIndex") is not None
    return not per_index and not any(text(rule, "action") in ("FailJob", "FailIndex") for _, rule in rules)


def granted_of(state: State) -> Bytes:
    return Bytes(max(0, state.granted_bytes))
