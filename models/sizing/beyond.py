"""Needs above any GPU: said with what would make the job fit, or refused where it is likely that the job was misread.

Every way out is the plan with one thing changed, priced by the same formulas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kopt.core.gpu import GpuModel
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


def largest_gpu() -> GpuModel:
    """The GPU of the catalogue that a process can have the most memory of."""
    return max(gpu_catalogue().values(), key=lambda gpu: gpu.usable_bytes)


def from_plausible_plan(plan: TrainingPlan, *, gpu_bytes: int, processes_stated: bool) -> CodeEstimate:
    """The estimate of a plan; above any GPU it says what would make the job fit.

    ``processes_stated``: the number of processes is the user's or the command's, and not taken as one.

    Raises:
        ImplausibleSizeError: so far above that something was likely misread.
    """
    code = from_plan(plan, gpu_bytes=gpu_bytes)
    largest = largest_gpu()
    needed = code.breakdown.total
    if needed <= largest.usable_bytes:
        return code
    ways = ways_to_fit(plan, int(largest.usable_bytes))
    has = f"{largest.name}, the largest GPU of the catalogue, has {format_bytes(largest.usable_bytes)}"
    text = f"it needs {format_bytes(needed)} on each GPU, and {has}"
    fits = f"; it would fit with {', or with '.join(str(way) for way in ways)}" if ways else ""
    numbers: dict[str, float | int | str] = {
        "bytes": int(needed),
        "largest_bytes": int(largest.usable_bytes),
        "largest": largest.name,
    }
    doubt = _misread(plan, code.breakdown, int(largest.usable_bytes), stated=processes_stated)
    if doubt:
        raise ImplausibleSizeError(Reason("DOUBTFUL_SIZE", f"{text}: {doubt}{fits}", numbers))
    return replace(code, reasons=(*code.reasons, Reason("ABOVE_ANY_GPU", text + fits, numbers)))


def _misread(plan: TrainingPlan, parts: MemoryBreakdown, usable: int, *, stated: bool) -> str:
    """Why the figure is likely not the job's, with what to give; empty where it likely is."""
    kept = parts.weights + parts.gradients + parts.optimizer
    if not stated and plan.parallel.world == 1 and kept > usable:
        return (
            "the command does not say on how many GPUs it runs and one was taken, so give their number (--world-size)"
        )
    if plan.varying:
        short = replace(plan, sequence=max(LEAST_TOKENS, plan.sequence // SHORTER))
        if (least := _need(short, usable)) <= usable:
            return (
                f"its batches may be shorter than the {plan.sequence:,} tokens that are allowed, and with "
                f"{short.sequence:,} it would need {format_bytes(least)}, so give the length that they really have"
            )
    if parts.total <= _ABSURD * usable:
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


def ways_to_fit(plan: TrainingPlan, usable_bytes: int) -> tuple[Way, ...]:
    """Single changes that suffice; where none does, as few as do together."""
    if plan.serving is not None:
        return tuple(_fitting(_served(plan), usable_bytes))
    single = tuple(way for label, change in _CHANGES for way in _fitting(_shared(plan, label, [change]), usable_bytes))
    if single:
        return single
    for count in range(2, len(_CHANGES) + 1):
        label = " and ".join(label for label, _ in _CHANGES[:count] if label)
        changes = [change for _, change in _CHANGES[:count]]
        if together := tuple(_fitting(_shared(plan, label, changes), usable_bytes)):
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


def _fitting(candidates: Iterator[tuple[str, TrainingPlan]], usable_bytes: int) -> Iterator[Way]:
    """The first of the candidates that fits."""
    for label, plan in candidates:
        if (needed := _need(plan, usable_bytes)) <= usable_bytes:
            yield Way(label, needed)
            return


def _need(plan: TrainingPlan, usable_bytes: int) -> int:
    return int(estimate_plan(plan, gpu_bytes=usable_bytes).worst.total)
