"""Size advice as the endpoint keeps it: what a workload asks for, what it needs, and the patch that says so.

Standard library only: the command line and the pages read it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.reason import Reason
from kopt.core.units import GIB, Bytes, MilliGpu
from kopt.core.workload.executor import IF_SHARED, Executor
from kopt.core.workload.gpu_count import GpuCountAdvice
from kopt.core.workload.sizing import Recommendation, RequestedGpus, ShareKind
from kopt.policies.sizing.advice import NOTHING_ADVISED, pod_patch

_NO_REASON = "Nothing is advised, as its size is not known."


@dataclass(frozen=True)
class SizeAdvice:
    """One job type's newest answer. Amounts in bytes per GPU process; None where nothing is known.

    ``asked_gpus``, ``asked_mib`` and ``asked_fraction`` are the workload's own request, as far as it says.
    """

    name: str
    script: str
    image: str
    gpu: str
    asked_gpus: int | None
    asked_mib: int | None
    asked_fraction: float | None
    peak_bytes: int | None
    low_bytes: int | None
    high_bytes: int | None
    breakdown: Mapping[str, int]
    kind: ShareKind
    bytes: int
    milli_gpu: int
    profile: str
    count: int
    method: str
    confidence: float
    reasons: tuple[Reason, ...]
    made_at_s: float
    to_gpu: str = ""
    """The GPU that is advised, which may be a larger one than asked about."""
    executor: Executor = Executor.UNKNOWN
    """What hands out shares of a GPU where it runs."""
    namespace: str = ""
    """Whose jobs it is about; empty where the question named none."""
    gpu_count: GpuCountAdvice | None = None
    """How many of its GPUs are useful, where that is known."""

    @property
    def has_peak(self) -> bool:
        return self.peak_bytes is not None

    @property
    def requested(self) -> RequestedGpus:
        """What the workload asks for itself."""
        return RequestedGpus(self.asked_gpus, self.asked_mib, self.asked_fraction)

    @property
    def recommendation(self) -> Recommendation:
        return Recommendation(
            self.kind,
            Bytes(self.bytes),
            self.to_gpu,
            MilliGpu(self.milli_gpu),
            self.profile,
            self.count,
            executor=self.executor,
        )

    def with_recommendation(self, advice: Recommendation) -> "SizeAdvice":
        """The same with another recommendation and its reason."""
        is_stated = any(reason.code == advice.reason.code for reason in self.reasons)
        return replace(
            self,
            kind=advice.kind,
            bytes=advice.bytes,
            milli_gpu=advice.milli_gpu,
            profile=advice.profile,
            count=advice.count,
            to_gpu=advice.gpu,
            executor=advice.executor,
            reasons=self.reasons if is_stated else (*self.reasons, advice.reason),
        )

    @property
    def requested_milli_gpu(self) -> int | None:
        """GPUs that the workload asks for, in thousandths; None where it does not say."""
        return self.requested.milli_gpu(_model(self.gpu))

    @property
    def needed_milli_gpu(self) -> int | None:
        """GPUs that are advised, in thousandths; a partition counts by its memory. None without advice."""
        model = _model(self.gpu)
        return None if self.why_no_advice or model is None else self.recommendation.total_milli_gpu(model)

    @property
    def saved_milli_gpu(self) -> int | None:
        """Asked for less needed; negative where too little is asked for. None where either is not known."""
        requested, needed = self.requested_milli_gpu, self.needed_milli_gpu
        return None if requested is None or needed is None or self.to_gpu != self.gpu else requested - needed

    @property
    def advised(self) -> str:
        """The advice in a few words."""
        if self.why_no_advice:
            return "no advice"
        if self.kind is ShareKind.FRACTION:
            depends = f", {IF_SHARED}" if self.executor is Executor.UNKNOWN else ""
            return f"{self.milli_gpu / 1000:g} of a GPU ({self.bytes / GIB:.1f} GiB){depends}"
        if self.kind is ShareKind.PARTITION:
            return f"partition {self.profile}"
        return f"{self.count} × {self.to_gpu}"

    @property
    def why_no_advice(self) -> str:
        """Why nothing is advised, in one sentence; empty where something is."""
        if self.has_peak and self.confidence > 0 and self.kind is not ShareKind.NONE:
            return ""
        return next((reason.message for reason in self.reasons if reason.code in NOTHING_ADVISED), _NO_REASON)

    @property
    def why_no_patch(self) -> str:
        """Why there is no patch; empty where there is one."""
        if self.why_no_advice or self.patch() is not None:
            return self.why_no_advice
        if self.to_gpu != self.gpu:
            return f"It needs another GPU: {self.to_gpu}."
        if self.kind is ShareKind.FRACTION:
            return "Nothing hands this pod a share of a GPU."
        return f"{self.advised} is asked for differently on each node.".capitalize()

    def patch(self) -> dict[str, Any] | None:
        """A merge patch as ``policies.sizing.advice.pod_patch`` makes it; None where nothing is advised."""
        return None if self.why_no_advice else pod_patch(self.recommendation, self.requested, self.gpu)


def saved_together(saved_milli_gpu: Iterable[int | None]) -> int:
    """What workloads give back together if all do as advised, in milli-GPU: what some need more counts against it.

    Never below zero; None saves nothing.
    """
    return max(0, sum(saved or 0 for saved in saved_milli_gpu))


def _model(name: str) -> GpuModel | None:
    try:
        return find_gpu(name)
    except UnknownGpuError:
        return None
