"""What one rank computes and moves in a training step of a transformer, before any efficiency.

FLOPs as Narayanan et al. 2021 count them (two per weight and token forward, twice that backward); bytes of matrix
products are those of their three operands once. All numbers are of the pipeline stage that computes most.
"""

from dataclasses import dataclass

from kopt.core.workload.training_plan import Attention, Recompute, Sharding, TrainingPlan
from kopt.models.sizing.analytic.states import Held, held, stage_layers

_SCORE_TRANSFERS = 5.0
"""Times that the matrix of scores is read or written where it is held: product, scale and mask, softmax, dropout."""
_CAUSAL = 0.5
"""Of the scores, those that a fused kernel computes."""
_FLASH_BACKWARD = 2.5
"""FLOPs of the fused kernel's backward pass by those of its forward pass (Dao et al. 2022)."""
_GRADIENT_ACCUMULATION_BYTES = 8.0
"""A gradient is read and written in 32 bits for every micro-batch."""
_UPDATE_BYTES = 30.0
"""Of Adam for each number: gradient, two states and a master copy read, three written, a 16-bit weight written."""


@dataclass(frozen=True)
class MicroBatchWork:
    """Of one micro-batch, forward and backward pass together, on one rank of the slowest stage.

    ``linear_flops`` are those of layers' matrix products, ``expert_flops`` those of experts' among them,
    ``head_flops`` those that stay in half precision when layers are computed in eight bits, ``attention_flops`` those
    of the attention; ``score_bytes`` is what an unfused one moves. ``tail_depth`` is the sum over products of their
    inner dimension: a product's last wave of tiles takes as long as a full one. ``pass_multiple`` is 3 (forward and
    twice backward), or 4 with everything computed again.
    """

    linear_flops: float
    expert_flops: float
    head_flops: float
    attention_flops: float
    score_bytes: float
    operand_bytes: float
    activation_bytes: float
    tail_depth: float
    layers: float
    expert_layers: float
    pass_multiple: float

    @property
    def flops(self) -> float:
        return self.linear_flops + self.expert_flops + self.head_flops + self.attention_flops


@dataclass(frozen=True)
class StepWork:
    """A whole step. ``bubbles`` counts micro-batches' times that a stage waits for others."""

    micro_batch: MicroBatchWork
    micro_batches: int
    bubbles: float
    update_bytes: float
    model_flops: float
    """Of all ranks, nothing computed again and every score counted, as published model FLOP rates count them."""


def step_work(plan: TrainingPlan) -> StepWork:
    """The work of a plan's step; ``plan.accumulation`` is the number of micro-batches of a data-parallel rank."""
    parallel = plan.parallel
    stages = [_stage(plan, stage) for stage in _outer_stages(parallel.pipeline)]
    slowest = max(stages, key=lambda work: work.flops)
    bubbles = (parallel.pipeline - 1) / max(1, parallel.virtual_stages)
    return StepWork(slowest, plan.accumulation, bubbles, _update_bytes(plan), _model_flops(plan))


def _outer_stages(pipeline: int) -> tuple[int, ...]:
    """The first has an embedding, the last the head; all between are like the second."""
    return tuple(sorted({0, min(1, pipeline - 1), pipeline - 1}))


def _stage(plan: TrainingPlan, stage: int) -> MicroBatchWork:
    model, parallel = plan.model, plan.parallel
    layers = stage_layers(plan, stage)
    tokens = plan.micro_batch * plan.sequence / parallel.context
    pass_multiple = 4.0 if plan.recompute is Recompute.FULL else 3.5 if plan.recompute is Recompute.PRODUCTS else 3.0
    dense, routed = (sum(each) for each in zip(*map(model.layer_parameters, layers), strict=True))
    experts = model.experts
    active = routed * experts.per_token / experts.count if experts else 0.0
    own = held(plan, stage)
    with_experts = sum(model.layer_parameters(layer)[1] > 0 for layer in layers)
    linear, routed_flops = (2 * tokens * numbers / parallel.tensor * pass_multiple for numbers in (dense, active))
    fused, scores = _attention(plan, len(layers), tokens)
    return MicroBatchWork(
        linear,
        routed_flops,
        _head_flops(plan, stage, tokens),
        fused,
        scores,
        _operand_bytes(plan, own, pass_multiple),
        _activation_bytes(plan, len(layers), with_experts, tokens) * pass_multiple,
        _tail_depth(plan, len(layers), tokens),
        float(len(layers)),
        float(with_experts),
        pass_multiple,
    )


def _head_flops(plan: TrainingPlan, stage: int, tokens: float) -> float:
    if stage < plan.parallel.pipeline - 1:
        return 0.0
    return 3 * 2 * tokens * plan.model.embedding / plan.parallel.tensor


def _attention(plan: TrainingPlan, layers: int, tokens: float) -> tuple[float, float]:
    """FLOPs of scores and of their product with values, and the bytes of a matrix of scores that is held."""
    model, tensor = plan.model, plan.parallel.tensor
    forward = 2 * tokens * plan.sequence * (model.query_width + model.value_width) / tensor * layers
    if plan.attention is Attention.FLASH:
        again = plan.recompute in (Recompute.FULL, Recompute.SELECTIVE)
        return forward * _CAUSAL * (1 + _FLASH_BACKWARD + again), 0.0
    again = plan.recompute in (Recompute.FULL, Recompute.SELECTIVE)
    scores = tokens * plan.sequence * model.heads / tensor * layers
    return forward * (3 + again), scores * 2 * _SCORE_TRANSFERS * (3 + again)


def _operand_bytes(plan: TrainingPlan, own: Held, pass_multiple: float) -> float:
    """Weights are read in every pass, and their gradients accumulated; ``own`` are the numbers of this rank."""
    each = plan.compute.bytes_each
    return own.total * (each * (pass_multiple - 1) + _GRADIENT_ACCUMULATION_BYTES)


def _activation_bytes(plan: TrainingPlan, layers: int, with_experts: int, tokens: float) -> float:
    """What matrix products and the operations between them read and write in one pass."""
    model, parallel = plan.model, plan.parallel
    experts = model.experts
    each = plan.compute.bytes_each
    shared = model.hidden / (parallel.tensor if parallel.sequence_parallel else 1)
    attention = (model.query_width + 2 * model.kv_heads * model.head_dim + model.value_width) / parallel.tensor
    inner = (1 + model.gated) * 2
    dense_layers = layers - with_experts
    total = layers * (10 * shared + 2 * attention + 2 * model.hidden)
    total += dense_layers * inner * model.ffn / parallel.tensor
    if experts is not None:
        width = experts.per_token * experts.ffn + experts.shared_ffn
        # Tokens are copied for each of their experts, on the way there and back.
        total += with_experts * (inner * width / parallel.tensor + 4 * experts.per_token * model.hidden)
    return total * tokens * each


def _tail_depth(plan: TrainingPlan, layers: int, tokens: float) -> float:
    """Inner dimensions of a layer's four products: forward, for the gradients of inputs, and of weights."""
    model, tensor = plan.model, plan.parallel.tensor
    heads = (model.query_width + 2 * model.kv_heads * model.head_dim) / tensor
    ffn = model.ffn if model.experts is None else model.experts.ffn + model.experts.shared_ffn
    forward = 2 * model.hidden + (model.value_width + ffn) / tensor
    backward = heads + 2 * model.hidden + (1 + model.gated) * ffn / tensor
    again = 2 if plan.recompute is Recompute.FULL else 1
    return layers * (again * forward + backward + 4 * tokens)


def _update_bytes(plan: TrainingPlan) -> float:
    own = max((held(plan, stage) for stage in _outer_stages(plan.parallel.pipeline)), key=lambda part: part.total)
    if plan.parallel.sharding is Sharding.NONE:
        return own.total * _UPDATE_BYTES
    parallel = plan.parallel
    expert_ranks = max(1, parallel.expert * (parallel.expert_tensor or parallel.tensor))
    expert_shards = max(1, parallel.shard_ranks * parallel.tensor // expert_ranks)
    return ((own.dense + own.ends) / parallel.shard_ranks + own.experts / expert_shards) * _UPDATE_BYTES


def _model_flops(plan: TrainingPlan) -> float:
    model = plan.model
    tokens = plan.micro_batch * plan.accumulation * plan.parallel.data * plan.sequence
    scores = 2 * plan.sequence * (model.query_width + model.value_width) * model.layers
    weights = model.active_parameters() - (0 if model.tied else model.embedding)
    return 3.0 * tokens * (2 * weights + scores)
