"""Weights, gradients and optimizer states of a rank (ZeRO: Rajbhandari et al. 2020; Megatron: Shoeybi et al. 2019)."""

from dataclasses import dataclass

from kopt.core.workload.training_plan import ModelShape, Precision, Sharding, TrainingPlan


@dataclass(frozen=True)
class Held:
    """Numbers that one rank computes with: in layers (dense, experts') and at the ends (embedding, head)."""

    dense: float
    experts: float
    embedding: float
    head: float

    @property
    def ends(self) -> float:
        return self.embedding + self.head

    @property
    def total(self) -> float:
        return self.dense + self.experts + self.ends


@dataclass(frozen=True)
class States:
    """Bytes one rank keeps from step to step."""

    weights: float
    gradients: float
    optimizer: float


def stage_layers(plan: TrainingPlan, stage: int) -> range:
    """The layers of one pipeline stage, in the order of the model; the first stages take what does not divide."""
    total, stages = plan.model.layers, plan.parallel.pipeline
    if stages == 1:
        return range(total)
    outer, last = plan.parallel.first_stage_layers, plan.parallel.last_stage_layers
    each, more = divmod(max(0, total - outer - last), max(1, stages - bool(outer) - bool(last)))
    before = stage - bool(outer)  # stages without a number of their own in front of this one
    if stage == 0 and outer:
        return range(outer)
    first = outer + each * before + min(more, before)
    own = last if last and stage == stages - 1 else each + (before < more)
    return range(first, first + own)


def held(plan: TrainingPlan, stage: int) -> Held:
    """Numbers on one rank of ``stage``. Norms, a thousandth of the weights, are divided like the rest."""
    model, parallel = plan.model, plan.parallel
    dense = experts = 0
    for layer in stage_layers(plan, stage):
        own, spread = model.layer_parameters(layer)
        dense, experts = dense + own, experts + spread
    if model.cross_layers:
        own, spread = model.layer_parameters(0)
        dense += (own + model.attention_parameters()) * model.cross_layers // parallel.pipeline
    dense += model.towers if stage == 0 else 0
    expert_ranks = max(1, parallel.expert * (parallel.expert_tensor or parallel.tensor))
    embedding, head = _ends(model, plan, stage)
    return Held(dense / parallel.tensor, experts / expert_ranks, embedding / parallel.tensor, head / parallel.tensor)


def _ends(model: ModelShape, plan: TrainingPlan, stage: int) -> tuple[int, int]:
    """Embedding on the first stage, head on the last; a tied head is the same tensor only where one stage has both."""
    first, last = stage == 0, stage == plan.parallel.pipeline - 1
    positions = model.positions * model.hidden * plan.parallel.tensor
    embedding = model.embedding + positions if first else 0
    return embedding, 0 if not last or (model.tied and first) else model.embedding


def states(plan: TrainingPlan, stage: int) -> States:
    """What one rank of ``stage`` keeps."""
    parallel = plan.parallel
    own = held(plan, stage)
    shards = parallel.shard_ranks
    # Experts are spread over ranks already: fewer hold the same one and can share its states.
    expert_shards = max(1, shards * parallel.tensor // (parallel.expert * (parallel.expert_tensor or parallel.tensor)))

    def spread(numbers_bytes: float, least: Sharding) -> float:
        order = list(Sharding)
        if order.index(parallel.sharding) < order.index(least):
            return numbers_bytes * own.total
        return numbers_bytes * ((own.dense + own.ends) / shards + own.experts / expert_shards)

    weights = spread(1.0, Sharding.PARAMETERS) / max(1.0, own.total) * weight_bytes(plan, own)
    if parallel.offload_parameters:
        weights = 0.0
    weights += plan.beside_bytes
    share = plan.trained_share
    adapter = own.total * share * plan.adapter.held_bytes if plan.adapter else 0.0
    gradients = share * spread(plan.gradient_bytes, Sharding.GRADIENTS) if plan.trains else 0.0
    saved = plan.adapter.saved / parallel.tensor * min(4.0, plan.compute.bytes_each) if plan.adapter else 0.0
    per_number = plan.optimizer.state_bytes(plan.state_bytes_each) + plan.master_bytes
    optimizer = share * spread(per_number, Sharding.OPTIMIZER) if plan.trains else 0.0
    if parallel.offload_optimizer:
        optimizer = 0.0
    # Copies of whole modules: themselves, their gradients, and states as precise as they are.
    return States(weights + adapter + saved, gradients + saved, optimizer + plan.optimizer.state_bytes(1.0) * saved)


def weight_bytes(plan: TrainingPlan, own: Held) -> float:
    """Quantised models keep embedding and head in the compute precision, or as the plan says."""
    ends = plan.ends or (plan.compute if plan.weights.quantised else plan.weights)
    if plan.weights is Precision.FP8 and plan.trains:
        ends = Precision.BF16
    head = plan.weights if plan.quantised_head else ends
    layers = (own.dense + own.experts) * plan.weights.bytes_each
    return layers + own.embedding * ends.bytes_each + own.head * head.bytes_each
