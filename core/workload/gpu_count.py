"""How many GPUs of a training job are useful: its scaling curve, the advice, and the change of the manifest.

A ``GpuCountAdvice`` is part of what ``/v1/sizing`` answers about a workload whose trainer's arguments can be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.notebook import scaling_row, table
from kopt.core.reason import Reason

Operation = Mapping[str, Any]
"""One operation of a JSON Patch (RFC 6902)."""


@dataclass(frozen=True)
class CountPoint:
    """The best split on so many GPUs, in words. ``step_low_seconds`` to ``step_high_seconds`` hold the step's time with
    the advice's ``probability``; ``marginal_efficiency`` is what each GPU more than at the point before brings, by what
    each GPU of the first point brings."""

    gpus: int
    split: str
    fit_probability: float
    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    tokens_per_second: float
    speedup: float
    marginal_efficiency: float
    gpu_hours_per_billion_tokens: float

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class GpuCountAdvice:
    """``points`` by rising number of GPUs, ``requested_gpus`` among them where the job fits there.

    ``useful_gpus`` is the largest count up to which every point's marginal efficiency is ``threshold`` or more, None
    where nothing fits; ``advised_gpus`` is that, and never more than is asked for. ``settings`` are the split on the
    advised GPUs in the ``framework``'s words; ``patch`` makes the workload's manifest ask for them, empty where it asks
    for as many, or where ``no_patch`` says why there is none.
    """

    model: str
    gpu: str
    framework: str
    requested_gpus: int
    useful_gpus: int | None
    advised_gpus: int
    threshold: float
    probability: float
    points: tuple[CountPoint, ...]
    reasons: tuple[Reason, ...]
    settings: str = ""
    patch: tuple[Operation, ...] = ()
    no_patch: str = ""

    @property
    def gives_back(self) -> int:
        """GPUs that the job would do without."""
        return self.requested_gpus - self.advised_gpus

    @property
    def in_words(self) -> str:
        """The advice in one line."""
        if self.useful_gpus is None:
            return "not known"
        return f"{self.advised_gpus} of {self.requested_gpus}" if self.gives_back else f"all {self.requested_gpus}"

    def to_dict(self) -> dict[str, Any]:
        result = {name: getattr(self, name) for name in self.__dataclass_fields__}
        result["points"] = [point.to_dict() for point in self.points]
        result["reasons"] = [reason.to_dict() for reason in self.reasons]
        result["patch"] = [dict(operation) for operation in self.patch]
        return result

    def _repr_html_(self) -> str:
        """For notebooks: the curve, with what is useful in bold."""
        head = f"{self.model} on {self.gpu}: {self.in_words} GPUs are useful at {self.threshold:.0%} or more each"
        rows = [
            scaling_row(
                point.gpus,
                (
                    point.split,
                    f"{point.step_seconds:.3g}",
                    f"{point.step_low_seconds:.3g} to {point.step_high_seconds:.3g}",
                ),
                point.speedup,
                point.marginal_efficiency,
                useful=self.useful_gpus or 0,
                threshold=self.threshold,
            )
            for point in self.points
        ]
        titles = ("GPUs", "split", "step (s)", "between", "speed-up", "each further GPU brings", "")
        return table(head, titles, rows, " ".join(reason.message for reason in self.reasons[:3]))
