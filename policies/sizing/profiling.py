"""Which jobs wait for a dry run, what they request afterwards, and what happens when that was too little (P2, K3).

Pure: snapshots in, decisions with reasons out. Whatever is unknown or unsure leads to the user's own request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kopt.core.decision import Mode
from kopt.core.gpu import GpuModel, PartitionProfile
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, Bytes, MilliGpu, format_bytes, format_gpus
from kopt.core.workload.executor import Executor
from kopt.core.workload.profile import DryRun
from kopt.core.workload.sizing import ShareKind
from kopt.policies.sizing.advice import NOT_OBSERVED, CertaintySettings, doubt, needed_bytes

ALONE = ModelVersion("dry-run", "1")
"""The model of a need that comes from a dry run alone, because no endpoint answered."""
NO_COMMAND = "NO_COMMAND"
"""The reason of a Job that would have to wait but cannot be profiled."""
_SKEW_S = 60.0
"""By which the clocks of two replicas may differ."""


@dataclass(frozen=True)
class ProfilingSettings:
    """Times in seconds. Raises ValueError for values out of range."""

    duration_s: float = 300.0
    """A dry run ends after this long, or earlier when it is steady."""
    budget_s: float = 1800.0
    """A job is released unchanged when it has been held for this long, whatever became of its dry run."""
    lasts_s: float = 30 * 86400.0
    """A profile is used for this long, a failed dry run for the time below."""
    failed_lasts_s: float = 86400.0
    retries: int = 2
    """Attempts with more memory after an out-of-memory failure; then the user's own request."""
    growth: float = 1.5
    """Growth of the need from one attempt to the next."""
    alone_margin: float = 0.15
    """Margin on the peak of a steady dry run when no endpoint predicts the need (as autoscalers use)."""
    alone_samples: int = 60
    """Samples that such a dry run must have."""
    fractions: bool = False
    """Whether Jobs are given shares of a GPU, by what hands them out in the cluster."""
    smallest_milli: MilliGpu = MilliGpu(100)
    step_milli: MilliGpu = MilliGpu(50)
    """Fractions are multiples of this, starting at the smallest."""
    certainty: CertaintySettings = field(default_factory=CertaintySettings)

    def __post_init__(self) -> None:
        times = (self.duration_s, self.budget_s, self.lasts_s, self.failed_lasts_s)
        if min(times) <= 0 or self.budget_s < self.duration_s:
            raise ValueError("times must be positive, and budget_s not below duration_s")
        if not 0 <= self.retries <= 2 or self.growth <= 1 or self.alone_margin < 0:
            raise ValueError("retries must be 0 to 2, growth above 1, and alone_margin not negative")
        if not 0 < self.step_milli <= WHOLE_GPU or not 0 < self.smallest_milli <= WHOLE_GPU:
            raise ValueError("fractions must be between 0 and a whole GPU")


@dataclass(frozen=True)
class JobSnapshot:
    """What this policy needs to know about a Job. ``gpus`` is per pod; ``resource`` the extended resource requested.

    ``queued``: Kueue decides when it runs; ``admitted``: Kueue has admitted it; ``untouched``: none of its containers
    has started, so that stopping it loses nothing.
    """

    mode: Mode
    managed: bool
    gpus: MilliGpu
    resource: str = ""
    pods: int = 1
    opted_out: bool = False
    has_command: bool = True
    states_size: bool = False
    queued: bool = False
    admitted: bool = False
    untouched: bool = False
    started: bool = False
    stopped: bool = False
    finished: bool = False
    held_by_others: bool = False
    retriable: bool = True
    """Whether its failure policy allows a retry after it ran out of memory."""
    executor: Executor = Executor.UNKNOWN
    """What would hand it a share of a GPU."""


@dataclass(frozen=True)
class HoldDecision:
    """Whether to hold a Job, and why."""

    yes: bool
    reason: Reason


def waits_for_dry_run(job: JobSnapshot, *, measured: bool, settings: ProfilingSettings) -> HoldDecision:
    """Whether to hold a Job until a dry run has measured what it needs."""
    refusals = (
        (job.gpus <= 0, "NO_GPU", "It requests no GPU."),
        (job.finished or job.started, "STARTED", "It runs or has run: stopping it would cost more than it saves."),
        (not job.managed, "UNMANAGED", "Its namespace has not opted in."),
        (job.mode is not Mode.ENFORCE, "MODE", f"Mode {job.mode.value}: only enforce holds jobs."),
        (job.opted_out, "OPT_OUT", "It has opted out of dry runs."),
        (job.states_size, "SIZE_STATED", "It says itself how much GPU memory it needs."),
        (measured, "KNOWN", "What this job type needs is known."),
        (job.held_by_others, "HELD", "Another controller holds it."),
        (job.stopped, "SUSPENDED", "It has been suspended by its owner."),
        (job.admitted and not job.untouched, "ADMITTED", "Its queue has admitted it, and its pods have started."),
        (
            not job.has_command,
            NO_COMMAND,
            "Not profiled: it runs its image's own entrypoint, which is not known outside "
            "of the image. Set `command` in its container to have it profiled and sized.",
        ),
    )
    for holds, code, text in refusals:
        if holds:
            return HoldDecision(False, Reason(code, text))
    text = f"Nothing is known about this job type: held for a dry run of at most {settings.duration_s:.0f} s."
    return HoldDecision(True, Reason("UNKNOWN_SIZE", text, {"budget_s": settings.budget_s}))


def is_over_budget(held_for_s: float, settings: ProfilingSettings) -> bool:
    """Whether a Job has been held for longer than allowed, also where the clock went back."""
    return not -_SKEW_S <= held_for_s < settings.budget_s


def has_expired(age_s: float, *, failed: bool, image: str, image_now: str, settings: ProfilingSettings) -> bool:
    """Whether a profile has expired: it is too old, or the image reference resolves to another image by now.

    Images are digests as the kubelet reports them; empty means unknown, which matches every image.
    """
    lasts_s = settings.failed_lasts_s if failed else settings.lasts_s
    return not -_SKEW_S <= age_s < lasts_s or bool(image and image_now and image != image_now)


@dataclass(frozen=True)
class PartitionOffer:
    """A partition that nodes offer: its extended resource, GPU model and size."""

    resource: str
    gpu: str
    profile: PartitionProfile


@dataclass(frozen=True)
class GpuShareRequest:
    """What a job should request per pod. WHOLE leaves the user's request unchanged; ``bytes`` is the memory it then
    has, ``milli_gpu`` the share for FRACTION, which ``executor`` hands out, ``resource`` the extended resource for
    PARTITION."""

    kind: ShareKind
    bytes: Bytes
    milli_gpu: MilliGpu = WHOLE_GPU
    resource: str = ""
    reason: Reason = field(default_factory=lambda: Reason("AS_WRITTEN", "It keeps its own request."))
    executor: Executor = Executor.UNKNOWN


def need_of(answer: Prediction | None, run: DryRun | None, settings: ProfilingSettings) -> Prediction | None:
    """The need to use: the endpoint's, which includes the dry run; otherwise that of a steady dry run alone."""
    if answer is not None and not answer.refused and not answer.fallback:
        return answer
    if run is None or not run.usable or not run.profile.steady or run.profile.samples < settings.alone_samples:
        return answer
    peak = float(run.profile.peak_bytes)
    text = f"A steady dry run of {run.profile.duration_s:.0f} s used {format_bytes(run.profile.peak_bytes)}."
    reason = Reason("DRY_RUN_ALONE", text, {"peak_bytes": int(peak), "margin": settings.alone_margin})
    high = peak * (1 + settings.alone_margin)
    return Prediction(peak, peak, high, 0.95, "bytes", 0.9, ALONE, (reason,))


def request_for(
    job: JobSnapshot,
    need: Prediction | None,
    run: DryRun | None,
    offers: Sequence[PartitionOffer],
    settings: ProfilingSettings,
    at_least: Bytes = NOT_OBSERVED,
) -> GpuShareRequest:
    """The smallest share that covers the need and does not slow the job down; otherwise the user's own request.

    ``at_least`` is the need that an earlier attempt has shown, in bytes per GPU.
    """
    if (why := doubt(need, settings.certainty)) is not None:
        return GpuShareRequest(ShareKind.WHOLE, Bytes(0), reason=why)
    assert need is not None
    observed = run.profile.peak_bytes if run is not None else NOT_OBSERVED
    wanted = Bytes(max(needed_bytes(need, observed), at_least))
    model = _model(run)
    whole = _whole(job, run, model, wanted)
    if whole is not None or model is None or run is None:
        return whole or GpuShareRequest(ShareKind.WHOLE, wanted)
    busy = run.activity.p95 if run.activity is not None else 1.0
    # Kueue counts resources: a share that is requested by annotation would bypass its quota.
    fraction = None if job.queued else _fraction(job.executor, model, wanted, busy, settings)
    return (
        _partition(model, wanted, busy, offers)
        or fraction
        or GpuShareRequest(ShareKind.WHOLE, model.usable_bytes, reason=_nothing_fits(wanted, busy))
    )


@dataclass(frozen=True)
class Attempts:
    """How often a job has run out of memory with a request of ours, and its memory then, in bytes per GPU."""

    count: int = 0
    granted_bytes: Bytes = Bytes(0)
    need_bytes: Bytes = Bytes(0)


def after_out_of_memory(
    job: JobSnapshot,
    attempts: Attempts,
    need: Prediction | None,
    run: DryRun | None,
    offers: Sequence[PartitionOffer],
    settings: ProfilingSettings,
) -> GpuShareRequest:
    """The request of the next attempt: more than the last, ``settings.retries`` times at most, then the user's own."""
    numbers = {"tries": attempts.count + 1, "granted_bytes": int(attempts.granted_bytes)}
    if attempts.count >= settings.retries:
        text = f"It ran out of memory {attempts.count + 1} times with requests of ours: back to its own."
        return GpuShareRequest(ShareKind.WHOLE, Bytes(0), reason=Reason("OWN_REQUEST", text, numbers))
    grown = math.ceil(max(attempts.need_bytes, attempts.granted_bytes) * settings.growth)
    request = request_for(job, need, run, offers, settings, Bytes(max(grown, attempts.granted_bytes + 1)))
    text = f"It ran out of {format_bytes(attempts.granted_bytes)}: the next attempt gets more. {request.reason.message}"
    return replace(request, reason=Reason("OUT_OF_MEMORY", text, numbers))


def _model(run: DryRun | None) -> GpuModel | None:
    try:
        return find_gpu(run.profile.gpu) if run is not None and run.profile.gpu else None
    except UnknownGpuError:
        return None


def _whole(job: JobSnapshot, run: DryRun | None, model: GpuModel | None, wanted: Bytes) -> GpuShareRequest | None:
    """The user's own request with a reason, if a smaller one is out of the question; otherwise None."""
    own = model.usable_bytes if model is not None else wanted
    reasons = (
        (run is None or not run.usable, "NOT_MEASURED", "No dry run has measured its full need."),
        (model is None, "UNKNOWN_GPU", "The GPU of the dry run is not in the catalogue."),
        (job.gpus != WHOLE_GPU, "SEVERAL_GPUS", f"It uses {format_gpus(job.gpus)} GPUs per pod: shares are for one."),
        (job.pods != 1, "SEVERAL_PODS", f"{job.pods} pods work together, and collectives need a GPU for each."),
        (not job.retriable, "NOT_RETRIABLE", "Its failure policy would not allow a retry with more."),
    )
    for holds, code, text in reasons:
        if holds:
            return GpuShareRequest(
                ShareKind.WHOLE, own, reason=Reason(code, f"{text} It needs {format_bytes(wanted)} per GPU.")
            )
    return None


def _partition(model: GpuModel, wanted: Bytes, busy: float, offers: Sequence[PartitionOffer]) -> GpuShareRequest | None:
    fitting = [
        offer
        for offer in offers
        if offer.gpu == model.name
        and offer.profile.memory_bytes >= wanted
        and offer.profile.count > 1
        and offer.profile.compute_units >= busy * model.compute_units
    ]
    if not fitting:
        return None
    best = min(
        fitting,
        key=lambda partition_offer: (
            partition_offer.profile.memory_bytes,
            partition_offer.profile.compute_units,
            partition_offer.resource,
        ),
    )
    size, units = best.profile.memory_bytes, best.profile.compute_units
    text = (
        f"{format_bytes(wanted)} and {busy:.0%} of {model.compute_units} compute units fit {best.profile.name} of "
        f"{model.name} ({format_bytes(size)}, {units} units)."
    )
    share = MilliGpu(max(1, WHOLE_GPU // best.profile.count))
    return GpuShareRequest(
        ShareKind.PARTITION, size, share, best.resource, Reason("PARTITION", text, {"bytes": int(wanted)})
    )


def _fraction(
    executor: Executor, model: GpuModel, wanted: Bytes, busy: float, settings: ProfilingSettings
) -> GpuShareRequest | None:
    if not settings.fractions or not executor.hands_out:
        return None
    # In integers: a share that is a millionth too small would not cover the need.
    by_memory = -(-wanted * WHOLE_GPU // model.usable_bytes)
    exact = max(by_memory, math.ceil(busy * WHOLE_GPU), settings.smallest_milli)
    milli = MilliGpu(-(-exact // settings.step_milli) * settings.step_milli)
    if milli >= WHOLE_GPU:
        return None
    has = Bytes(model.usable_bytes * milli // WHOLE_GPU)
    text = f"{format_bytes(wanted)} and {busy:.0%} activity fit {format_gpus(milli)} of {model.name}."
    return GpuShareRequest(
        ShareKind.FRACTION,
        has,
        milli,
        reason=Reason("FRACTION", text, {"bytes": int(wanted), "milli": milli}),
        executor=executor,
    )


def _nothing_fits(wanted: Bytes, busy: float) -> Reason:
    text = f"It needs {format_bytes(wanted)} and {busy:.0%} of the compute units; no smaller share offers that."
    return Reason("WHOLE_GPU", text, {"bytes": int(wanted), "activity": busy})
