"""Size advice as the endpoint keeps it: what a workload asks for, what it needs, and the patch that says so.

Standard library only: the command line and the pages read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.reason import Reason
from kopt.core.units import GIB, MIB, WHOLE_GPU
from kopt.core.workload.sizing import ShareKind

MEMORY_ANNOTATION = "kaiwo.ai/gpu-memory"
_WHOLE_RESOURCE = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}


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

    @property
    def known(self) -> bool:
        return self.peak_bytes is not None

    @property
    def asked_milli_gpu(self) -> int | None:
        """GPUs that the workload asks for, in thousandths; None where it does not say."""
        if self.asked_mib is not None:
            try:
                return min(WHOLE_GPU, -(-self.asked_mib * MIB * WHOLE_GPU // find_gpu(self.gpu).usable_bytes))
            except UnknownGpuError:
                return None
        if self.asked_fraction is not None:
            return round(self.asked_fraction * WHOLE_GPU)
        return None if self.asked_gpus is None else self.asked_gpus * WHOLE_GPU

    @property
    def needed_milli_gpu(self) -> int | None:
        """GPUs that are advised, in thousandths; a partition counts by its memory. None without advice."""
        if self.why_no_advice:
            return None
        if self.kind is ShareKind.PARTITION:
            try:
                return -(-self.bytes * WHOLE_GPU // find_gpu(self.gpu).usable_bytes)
            except UnknownGpuError:
                return None
        return self.milli_gpu * self.count

    @property
    def saved_milli_gpu(self) -> int | None:
        """Asked for less needed; negative where too little is asked for. None where either is not known."""
        requested, needed = self.asked_milli_gpu, self.needed_milli_gpu
        return None if requested is None or needed is None or self.to_gpu != self.gpu else requested - needed

    @property
    def advised(self) -> str:
        """The advice in a few words."""
        if self.why_no_advice:
            return "no advice"
        if self.kind is ShareKind.FRACTION:
            return f"{self.milli_gpu / 1000:g} of a GPU ({self.bytes / GIB:.1f} GiB)"
        if self.kind is ShareKind.PARTITION:
            return f"partition {self.profile}"
        return f"{self.count} × {self.to_gpu}"

    @property
    def why_no_advice(self) -> str:
        """Why nothing is advised; empty where something is."""
        if not self.known:
            return "its size is not known"
        return "no GPU holds it" if self.kind is ShareKind.NONE else ""

    def patch(self) -> dict[str, Any] | None:
        """A merge patch for the pod template's metadata and container resources; None where nothing is advised.

        ``{"metadata": {"annotations": …}}`` for a share of a GPU, ``{"resources": {"limits": …}}`` for the container.
        """
        if self.why_no_advice:
            return None
        try:
            resource = _WHOLE_RESOURCE[find_gpu(self.to_gpu).vendor.value]
        except (UnknownGpuError, KeyError):
            return None
        if self.kind is ShareKind.FRACTION:
            return {"metadata": {"annotations": {MEMORY_ANNOTATION: str(-(-self.bytes // MIB))}}}
        if self.kind is ShareKind.PARTITION:
            if resource != _WHOLE_RESOURCE["nvidia"]:
                # How AMD's partitions are called depends on the node's device plugin.
                return None
            return {"resources": {"limits": {resource: None, f"nvidia.com/mig-{self.profile}": "1"}}}
        return {"resources": {"limits": {resource: str(self.count)}}}
