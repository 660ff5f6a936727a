"""Needs above any GPU: said with what would make the job fit, or refused where it is likely that the job was misread.

Every way out is the plan with one thing changed, priced by the same formulas.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kopt.core.gpu import GpuModel, Vendor
from kopt.core.gpu_catalogue import gpu_catalogue
from kopt.core.reason import Reason
from kopt.core.units import format_bytes
from kopt.core.workload.sizing import MemoryBreakdown
from kopt.core.workload.training_plan import PlanError, Recompute, Sharding, TrainingPlan
from kopt.formats.trainers.names import adapter
from kopt.models.sizing.analytic import estimate_plan
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.plans import LEAST_TOKENS, SHORTER, from_plan

DOUBTFUL_SIZE = "DOUBTFUL_SIZE"
_ABSURD = 8
"""Times the largest GPU: a few times is a model that needs sharding, more is no job that anybody starts."""
_MOST_GPUS, _MOST_SPLIT = 1024, 64
_MOST_LAYERS = 6_000
"""Layers of all the plans that are priced for one answer: what a price takes grows with them."""
_RANK = 16


class ImplausibleSizeError(PlanError):
    """The formulas' answer is above any GPU, and likely not the job's; ``reason`` says what was likely misread."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass(frozen=True)
class Way:
    """A change that brings a job below the largest GPU, and what each GPU then holds."""

    change: str
    needed_bytes: int

    def __str__(self) -> str:
        return f"{self.change} ({format_bytes(self.needed_bytes)} each)"


def largest_gpu(vendor: Vendor | None = None) -> GpuModel:
    """The GPU of the catalogue, or of one vendor's, that a process can have the most memory of."""
    models = (gpu for gpu in gpu_catalogue().values() if vendor in (None, gpu.vendor))
    return max(models, key=lambda gpu: gpu.usable_bytes)


def from_plausible_plan(plan: TrainingPlan, *, gpu: GpuModel, processes_stated: bool) -> CodeEstimate:
    """The estimate of a plan for ``gpu``; above any GPU it says what would make the job fit.

    ``processes_stated``: the number of processes is the user's or the command's, and not taken as one.

    Raises:
        ImplausibleSizeError: so far above that something was likely misread.
    """
    code = from_plan(plan, gpu_bytes=int(gpu.usable_bytes))
    largest = largest_gpu()
    usable, needed = int(largest.usable_bytes), code.breakdown.total
    if needed <= usable:
        return code
    has = f"{largest.name}, the largest GPU of the catalogue, has {format_bytes(usable)}"
    text = f"it needs {format_bytes(needed)} on each GPU, and {has}"
    numbers: dict[str, float | int | str] = {
        "bytes": int(needed),
        "largest_bytes": usable,
        "largest": largest.name,
    }
    is_absurd = needed > _ABSURD * usable
    doubt = _misread(plan, code.breakdown, usable, stated=processes_stated, is_absurd=is_absurd)
    prices = _Prices(_MOST_LAYERS // plan.model.layers)
    if is_absurd:
        raise ImplausibleSizeError(Reason("DOUBTFUL_SIZE", f"{text}: {doubt}", numbers))
    shorter = "" if doubt else _if_shorter(plan, usable, prices)
    fits = f"{shorter}{_fits(plan, gpu, prices)}"
    if doubt:
        raise ImplausibleSizeError(Reason("DOUBTFUL_SIZE", f"{text}: {doubt}{fits}", numbers))
    return replace(code, reasons=(*code.reasons, Reason("ABOVE_ANY_GPU", text + fits, numbers)))


def _fits(plan: TrainingPlan, gpu: GpuModel, prices: "_Prices") -> str:
    """What would make it fit the GPU that is asked about; where nothing would, its vendor's largest."""
    for model in dict.fromkeys((gpu, largest_gpu(gpu.vendor))):
        if ways := ways_to_fit(plan, int(model.usable_bytes), prices):
            return f"; it would fit the {model.name} with {', or with '.join(str(way) for way in ways)}"
    return ""


def _if_shorter(plan: TrainingPlan, usable: int, prices: "_Prices") -> str:
    if not plan.varying:
        return ""
    short = replace(plan, sequence=max(LEAST_TOKENS, plan.sequence // SHORTER))
    if (least := prices.need(short, usable)) > usable:
        return ""
    return (
        f"; its batches may be shorter than the {plan.sequence:,} tokens that are allowed, and with "
        f"{short.sequence:,} it would need {format_bytes(int(least))}"
    )


def _misread(plan: TrainingPlan, parts: MemoryBreakdown, usable: int, *, stated: bool, is_absurd: bool) -> str:
    """Why the figure is likely not the job's, with what to give; empty where it likely is."""
    kept = parts.weights + parts.gradients + parts.optimizer
    if not stated and plan.parallel.world == 1 and kept > usable:
        return (
            "the command does not say on how many GPUs it runs and one was taken, so give their number (--world-size)"
        )
    if not is_absurd:
        return ""
    if kept > usable:
        gpus = f"{plan.parallel.world:,} GPUs" if plan.parallel.world > 1 else "one GPU"
        return (
            f"{plan.model.parameters() / 1e9:,.0f} billion weights on {gpus}, with what is kept beside "
            "them: likely the number of GPUs or how they share the model was not read, so give both"
        )
    return (
        f"{plan.micro_batch:,} sequences of {plan.sequence:,} tokens at once on each GPU: likely the batch or the "
        "length is another one, so give those of one GPU and one pass"
    )


class _Prices:
    """What changed plans need, until as many have been asked as is worth their time."""

    def __init__(self, most: int) -> None:
        self._left = most

    def need(self, plan: TrainingPlan, usable_bytes: int) -> float:
        """Infinity where no more are asked."""
        if self._left <= 0:
            return math.inf
        self._left -= 1
        return int(estimate_plan(plan, gpu_bytes=usable_bytes).worst.total)


def ways_to_fit(plan: TrainingPlan, usable_bytes: int, prices: _Prices | None = None) -> tuple[Way, ...]:
    """Single changes that suffice; where none does, as few as do together."""
    prices = prices or _Prices(_MOST_LAYERS // plan.model.layers)
    if plan.serving is not None:
        return tuple(_fitting([*_served(plan)], usable_bytes, prices))
    single = tuple(
        way for label, change in _CHANGES for way in _fitting([*_shared(plan, label, [change])], usable_bytes, prices)
    )
    if single:
        return single
    for count in range(2, len(_CHANGES) + 1):
        label = " and ".join(label for label, _ in _CHANGES[:count] if label)
        changes = [change for _, change in _CHANGES[:count]]
        if together := tuple(_fitting([*_shared(plan, label, changes)], usable_bytes, prices)):
            return together
    return ()


Change = Callable[[TrainingPlan], TrainingPlan | None]


def _single_sequence(plan: TrainingPlan) -> TrainingPlan | None:
    return replace(plan, micro_batch=1, accumulation=max(2, plan.accumulation)) if plan.micro_batch > 1 else None


def _recomputed(plan: TrainingPlan) -> TrainingPlan | None:
    return replace(plan, recompute=Recompute.FULL, recompute_layers=1) if plan.recompute is not Recompute.FULL else None


def _adapted(plan: TrainingPlan) -> TrainingPlan | None:
    if plan.adapter is not None:
        return None
    low_rank = adapter(plan.model, _RANK, ["all-linear"])
    return replace(plan, adapter=low_rank, master_bytes=0.0, step_bytes=0.0, gradient_bytes=low_rank.held_bytes)


def _same(plan: TrainingPlan) -> TrainingPlan | None:
    return plan


_CHANGES: tuple[tuple[str, Change], ...] = (
    ("micro-batches of one sequence", _single_sequence),
    ("layers recomputed in the backward pass", _recomputed),
    ("", _same),
    (f"adapters of rank {_RANK} in place of all weights", _adapted),
)
"""In the order in which they change least of what is trained; the one without a name stands for more GPUs alone."""


def _shared(plan: TrainingPlan, label: str, changes: Sequence[Change]) -> Iterator[tuple[str, TrainingPlan]]:
    """The changed plan, as it is started or, for the change without a name or several, on more and more GPUs."""
    alone = len(changes) == 1
    changed: TrainingPlan | None = plan
    for change in changes:
        result = change(changed) if changed is not None else None
        if result is None and alone:
            return
        changed = result or changed
    assert changed is not None
    if label and changed != plan:
        yield label, changed
    if alone and label:
        return
    parallel, gpus = changed.parallel, max(2, changed.parallel.world)
    while gpus <= _MOST_GPUS:
        data = gpus // (parallel.tensor * parallel.pipeline * parallel.context)
        split = replace(parallel, data=max(1, data), sharding=Sharding.PARAMETERS, shards=0)
        sharded = f"weights, gradients and optimizer states sharded over {split.world:,} GPUs"
        # What gathers and reduces works layer by layer then.
        layer = 4.0 * changed.model.parameters() / changed.model.layers
        spread = replace(changed, parallel=split, buffer_bytes=layer, step_bytes=0.0, loads_whole=False)
        yield " and ".join(filter(None, (label, sharded))), spread
        gpus *= 2


def _served(plan: TrainingPlan) -> Iterator[tuple[str, TrainingPlan]]:
    tensor = max(2, 2 * plan.parallel.tensor)
    while tensor <= _MOST_SPLIT:
        yield f"the model split over {tensor} GPUs", replace(plan, parallel=replace(plan.parallel, tensor=tensor))
        tensor *= 2


def _fitting(candidates: list[tuple[str, TrainingPlan]], usable_bytes: int, prices: _Prices) -> Iterator[Way]:
    """The first of the candidates that fits, each of which needs less than the one before it."""
    low, high, best = 0, len(candidates) - 1, None
    at = high
    while low <= high:
        label, plan = candidates[at]
        needed = prices.need(plan, usable_bytes)
        if needed <= usable_bytes:
            best, high = Way(label, int(needed)), at - 1
        elif at == len(candidates) - 1:
            return
        else:
            low = at + 1
        at = (low + high) // 2
    if best is not None:
        yield best
