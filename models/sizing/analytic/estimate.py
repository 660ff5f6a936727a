"""Memory per rank of a plan: what is kept, the worst moment of a step, an interval, and reasons with numbers."""

import math
from dataclasses import dataclass, field, replace

from kopt.core.reason import Reason
from kopt.core.units import MIB, Bytes, format_bytes
from kopt.core.workload.sizing import MemoryBreakdown
from kopt.core.workload.training_plan import Precision, Serving, Style, TrainingPlan
from kopt.models.sizing.analytic import activations, serving
from kopt.models.sizing.analytic.states import States, held, states, weight_bytes

_CONTEXT_BYTES = 450 * MIB
_COMMUNICATOR_BYTES = 250 * MIB
_CACHED_SHARE = 0.03
_BASE_WIDTH, _EAGER_WIDTH = 0.15, 0.1
_UNKNOWN_WIDTH = 0.08
_MAX_WIDTH = 1.2
_ROUTING_WIDTH, _PARALLEL_WIDTH, _SHARDED_WIDTH = 0.15, 0.04, 0.08


@dataclass(frozen=True)
class AnalyticEstimate:
    """Memory of every pipeline stage (ranks of one stage hold as much), and how sure it is.

    ``low_share`` and ``high_share`` bound the truth around the total; they widen with what had to be assumed, and are
    to be replaced by calibrated ones where measurements exist.
    """

    plan: TrainingPlan
    per_stage: tuple[MemoryBreakdown, ...]
    low_share: float
    high_share: float
    reasons: tuple[Reason, ...] = field(default_factory=tuple)

    @property
    def worst(self) -> MemoryBreakdown:
        """The stage that needs most."""
        return max(self.per_stage, key=lambda stage: stage.total)


def estimate_plan(plan: TrainingPlan, *, gpu_bytes: int | None = None) -> AnalyticEstimate:
    """The memory of a plan. ``gpu_bytes`` is the GPU's usable memory.

    Serving engines fill a share of it, and the allocator gives blocks back that lie unused when it is full.
    """
    stages = tuple(_stage(plan, stage, gpu_bytes) for stage in range(plan.parallel.pipeline))
    width = _width(plan, gpu_bytes)
    reasons = (*_reasons(plan, stages), *plan.unknown)
    return AnalyticEstimate(plan, stages, math.exp(-width), math.exp(width), reasons)


def _stage(plan: TrainingPlan, stage: int, gpu_bytes: int | None) -> MemoryBreakdown:
    kept = states(plan, stage)
    if plan.serving is not None:
        return _serving_stage(plan, plan.serving, kept, gpu_bytes)
    for_backward = activations.kept(plan, stage)
    gathered = activations.gathered(plan, stage) + plan.buffer_bytes + _dequantised(plan, stage)
    loss = activations.logits(plan, stage)
    layer = activations.backward_temporary(plan, stage)
    early_gradients = kept.gradients if plan.preallocated_gradients or plan.accumulation > 1 else 0.0
    engine = _engine(plan, gpu_bytes)
    # Moments that can be the worst: the loss, the first layers' backward pass, the optimizer's step, loading, and
    # generation by an engine that has given its memory back at all others.
    moments = (
        (early_gradients, for_backward, max(loss, layer) + gathered),
        (kept.gradients, 0.1 * for_backward, layer + gathered),
        (kept.gradients, 0.0, _step_temporary(plan, kept) + plan.buffer_bytes),
        (0.0, 0.0, _loading(plan, kept)),
        (0.0, 0.0, _generating(plan, kept, engine)),
    )
    gradients, activation, temporary = worst = max(moments, key=sum)
    temporary += plan.workspace_bytes + (0.0 if plan.engine_sleeps else engine)
    parts = _breakdown(plan, kept, gradients, activation, temporary)
    # Blocks of other batches' losses lie beside those of the worst; the optimizer's step makes use of both.
    unused = max(0.0, plan.cached_loss * loss - (sum(worst) - sum(moments[0])))
    if gpu_bytes is not None:
        unused = min(unused, max(0.0, gpu_bytes - parts.total))
    return replace(parts, framework=Bytes(int(parts.framework + unused)))


def _breakdown(
    plan: TrainingPlan, kept: States, gradients: float, activation: float, temporary: float
) -> MemoryBreakdown:
    tensors = kept.weights + kept.optimizer + gradients + activation + temporary
    return MemoryBreakdown(
        weights=Bytes(int(kept.weights)),
        gradients=Bytes(int(gradients)),
        optimizer=Bytes(int(kept.optimizer)),
        activations=Bytes(int(activation)),
        temporary=Bytes(int(temporary)),
        framework=Bytes(int(_framework(plan) + _CACHED_SHARE * tensors)),
    )


def reserved_bytes(plan: TrainingPlan, parts: MemoryBreakdown) -> Bytes:
    """What the caching allocator holds for a process of ``parts``: its tensors and blocks that lie unused."""
    return Bytes(max(int(parts.tensors), int(parts.total) - int(_framework(plan))))


def _framework(plan: TrainingPlan) -> float:
    """The driver's context, and one communicator for each kind of parallelism in use."""
    parallel = plan.parallel
    kinds = sum(
        size > 1 for size in (parallel.data, parallel.tensor, parallel.pipeline, parallel.context, parallel.expert)
    )
    return _CONTEXT_BYTES + kinds * _COMMUNICATOR_BYTES


def _engine(plan: TrainingPlan, gpu_bytes: int | None) -> float:
    """What an engine that generates in the trainer's process holds: its share of the GPU, at least its weights."""
    if not plan.engine_share:
        return 0.0
    weights = plan.model.parameters() * plan.compute.bytes_each / plan.engine_split
    return max(weights, plan.engine_share * (gpu_bytes or 0))


def _generating(plan: TrainingPlan, kept: States, engine: float) -> float:
    """What an engine adds in its turn, where it gives its memory back afterwards."""
    if not plan.engine_sleeps:
        return 0.0
    return max(0.0, engine - kept.weights - kept.optimizer) if plan.engine_alone else engine


def _step_temporary(plan: TrainingPlan, kept: States) -> float:
    """Optimizers that work on all tensors at once hold a copy of the size of a state while they do."""
    return plan.step_bytes + (kept.gradients if plan.foreach_step else 0.0)


def _loading(plan: TrainingPlan, kept: States) -> float:
    """All weights at once beside this rank's part; states that come later are not there yet."""
    if not plan.loads_whole or plan.parallel.world == 1:
        return 0.0
    whole = plan.model.parameters() * plan.weights.bytes_each
    return max(0.0, whole - kept.optimizer)


def _dequantised(plan: TrainingPlan, stage: int) -> float:
    """The widest weight in the compute precision, and as it was unpacked: one at a time; and a head that is cast."""
    if not plan.weights.quantised:
        return 0.0
    model = plan.model
    last = stage == plan.parallel.pipeline - 1
    widest = 2 * max(model.ffn, model.query_width, model.vocab if plan.quantised_head and last else 0)
    if plan.ends is not None and plan.ends is not plan.compute:
        widest = max(widest, model.vocab)
    numbers = model.hidden * widest
    if plan.trains and plan.weights in (Precision.INT4, Precision.GPTQ8):
        # Unpacked by plain operations: a product keeps its unpacked weight until the layer's backward pass is over.
        numbers = max(numbers, sum(model.layer_parameters(model.layers - 1)))
    return plan.compute.bytes_each * numbers / plan.parallel.tensor


def _serving_stage(plan: TrainingPlan, served: Serving, kept: States, gpu_bytes: int | None) -> MemoryBreakdown:
    cache = serving.cache_bytes(plan, served)
    prefill = serving.prefill_bytes(plan, served)
    unpacked = _dequantised(plan, 0)
    if served.reserve_share is None and not served.batched_tokens:
        # The prompt's pass, when the cache holds the prompt alone; or the last word's, when a layer's keys are copied
        # once more to grow.
        first = (cache * min(1.0, served.prompt_tokens / served.context_tokens), prefill + unpacked)
        last = (cache, cache / (2 * max(1, plan.model.layers)) + unpacked)
        return _breakdown(plan, kept, 0.0, *max(first, last, key=sum))
    if served.reserve_share is not None and gpu_bytes is not None:
        # The engine takes its share whatever the cache would need; the driver's part counts into it. Without room for
        # one sequence of the longest context it does not start.
        share = served.reserve_share * gpu_bytes - kept.weights - prefill - _framework(plan)
        cache = max(share, serving.cache_bytes(plan, replace(served, sequences=1)))
    return _breakdown(plan, kept, 0.0, cache, prefill + unpacked)


def _width(plan: TrainingPlan, gpu_bytes: int | None) -> float:
    """Half the interval's width on a log scale: wider for every assumption, for routing and for many ranks."""
    width = _BASE_WIDTH + _UNKNOWN_WIDTH * len(plan.unknown)
    if plan.style is Style.EAGER:
        width += _EAGER_WIDTH  # what plain modules keep depends on their version
    parallel = plan.parallel
    width += _PARALLEL_WIDTH * sum(size > 1 for size in (parallel.tensor, parallel.pipeline, parallel.context))
    if plan.model.experts is not None:
        width += _ROUTING_WIDTH
    if parallel.sharding.value == "parameters":
        width += _SHARDED_WIDTH
    if plan.serving is not None and plan.serving.reserve_share is not None and gpu_bytes is None:
        width += 2 * _UNKNOWN_WIDTH
    return min(width, _MAX_WIDTH)


def _reasons(plan: TrainingPlan, stages: tuple[MemoryBreakdown, ...]) -> tuple[Reason, ...]:
    worst = max(range(len(stages)), key=lambda stage: stages[stage].total)
    own = held(plan, worst)
    parts = stages[worst]
    numbers = {name: int(amount) for name, amount in parts.items()}
    summary = ", ".join(f"{name} {format_bytes(amount)}" for name, amount in parts.items() if amount)
    weights = weight_bytes(plan, own)
    reasons = [
        Reason(
            "FORMULA",
            f"computed from the settings, nothing ran: {summary} on stage {worst + 1} of {len(stages)}",
            numbers,
        ),
        Reason(
            "PARAMETERS",
            f"{plan.model.parameters() / 1e9:.2f} billion weights, {own.total / 1e9:.2f} on one rank as "
            f"{plan.weights.value} ({format_bytes(int(weights))} before sharding)",
            {"parameters": plan.model.parameters(), "on_rank": int(own.total)},
        ),
    ]
    if plan.model.doubt > 1:
        message = (
            f"the dimensions are not known: those of {plan.model.name[:80]!r}, or what follows from the size in the "
            f"name, were used, so memory may be off by a factor of {plan.model.doubt:g}; give the model's config.json"
        )
        reasons.append(Reason("SHAPE_FROM_NAME", message, {"factor": plan.model.doubt}))
    loss = activations.logits(plan, worst)
    if plan.trains and loss > 0.2 * parts.total:
        message = f"the loss holds {plan.logit_bytes:g} bytes for each of {plan.model.vocab:,} words per token: "
        reasons.append(Reason("LOGITS", message + format_bytes(int(loss)), {"logits": int(loss)}))
    return tuple(reasons)
