"""What the backward pass needs from the forward pass, per layer and in all, and what comes and goes at the peak.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", taken apart into the tensors
that its 34 · s · b · h + 5 · a · s² · b counts, so that gated and grouped models, flash attention and plain modules are
counted too.
"""

from dataclasses import dataclass

from kopt.core.workload.training_plan import Attention, ModelShape, Precision, Recompute, Sharding, Style, TrainingPlan
from kopt.models.sizing.analytic.states import held, stage_layers

_ON_THEIR_WAY = 5
"""Layers whose activations are still on the GPU while they are copied to the host, as torchtune limits them."""


@dataclass(frozen=True)
class LayerBytes:
    """What one layer keeps for the backward pass: its input, the attention matrix, and the rest."""

    entry: float
    scores: float
    rest: float

    @property
    def all(self) -> float:
        return self.entry + self.scores + self.rest


def tokens(plan: TrainingPlan) -> float:
    """Tokens of one micro-batch on one rank."""
    return plan.micro_batch * plan.sequence / plan.parallel.context


def layer_bytes(plan: TrainingPlan, layer: int) -> LayerBytes:
    """What one layer keeps on one rank."""
    model, tensor = plan.model, plan.parallel.tensor
    each, count = _stream(plan), tokens(plan)
    kind = model.blocks[layer] if model.blocks else ""
    # Without sequence parallelism every tensor-parallel rank holds all of what lies between the blocks.
    between = count * model.hidden / (tensor if plan.parallel.sequence_parallel else 1)
    # Plain modules keep a 32-bit copy and the normalised product of each norm besides its output.
    norm = each if plan.style is Style.FUSED or each == 4 else 4 + each
    drop = between if plan.dropout else 0.0
    if kind:
        parts = (_state_space(plan), 0.0) if kind == "M" else _attention(plan) if kind == "*" else (0.0, 0.0)
        inner = _feed_forward(model, plan, -1 if kind == "-" else layer) if kind in "-E" else 0.0
        return LayerBytes(each * between, parts[1], norm * between + drop + parts[0] + inner)
    attention, scores = _attention(plan)
    if plan.adapter is not None:
        # Frozen layers keep no inputs: of a norm only its 32-bit copy; what an adapter sees, and that with dropout.
        input_bytes = each + plan.adapter.targets * ((each + 1) if plan.adapter.dropout else 0)
        if plan.adapter.copy_bytes:
            input_bytes = plan.adapter.copy_bytes * plan.adapter.inputs / model.hidden - each
        if plan.weights.quantised:
            # bitsandbytes keeps the input of every layer.
            input_bytes += plan.compute.bytes_each * (1 + model.ffn / model.hidden)
        if plan.adapter.scales:
            # A trained scale keeps what its layer puts out; trained norms their normalised product.
            input_bytes += 8 + each * model.linear_outputs / model.hidden
        # A plain root-mean-square norm works on a 32-bit copy; LayerNorm's kernel keeps its input as it is.
        norms = 2 * (max(4.0, each) if model.gated else each)
        rest = (norms - each + input_bytes) * between + attention + _feed_forward(model, plan, layer)
        return LayerBytes(each * between, scores, rest)
    norms = 0.0 if "norms" in plan.again else 2 * (norm - each + _fed(plan)) * between
    rest = each * between + norms + 2 * drop + attention + _feed_forward(model, plan, layer)
    return LayerBytes(entry=each * between, scores=scores, rest=rest)


def _stream(plan: TrainingPlan) -> float:
    """Bytes of each number between layers: an embedding in 32 bits starts a stream that bitsandbytes' layers, whose
    results take the precision of what they read, keep in 32 bits."""
    cast = plan.adapter is not None and plan.weights.quantised and plan.ends is Precision.FP32
    return 4.0 if cast else plan.compute.bytes_each


def _fed(plan: TrainingPlan) -> float:
    """Bytes of each number that a linear layer keeps of its input."""
    return plan.input_bytes or plan.compute.bytes_each


def _state_space(plan: TrainingPlan) -> float:
    """A Mamba-2 mixer keeps what its projection puts out, the scan's output and that gated and normalised."""
    model = plan.model
    inner, projected = model.state_space.widths(model.hidden)
    return plan.compute.bytes_each * tokens(plan) * (projected + 2 * inner) / plan.parallel.tensor


def _attention(plan: TrainingPlan) -> tuple[float, float]:
    """Queries, keys, values and output; and the matrix of scores where it is held."""
    model, tensor = plan.model, plan.parallel.tensor
    each, count = plan.compute.bytes_each, tokens(plan)
    keys = 2 * model.kv_heads * model.head_dim
    if plan.style is Style.EAGER or model.latent:
        keys = model.query_width + model.value_width  # keys and values repeated for every head
    if model.latent:
        keys += (model.latent.key_value_rank + model.latent.query_rank) * tensor
    if plan.joint_qkv and model.kv_heads == model.heads:
        keys += 2 * model.query_width  # the values' storage holds queries and keys as they were before rotation
    width = (model.query_width + keys + model.value_width) / tensor
    if model.latent and "latent" in plan.again:
        width -= (2 * model.query_width + model.value_width) / tensor
    if plan.attention is Attention.FLASH:
        # The kernel keeps its output; a linear layer that reads it in another precision keeps it once more.
        again = plan.input_bytes * model.value_width / tensor
        return count * (each * width + again + 4 * model.heads / tensor), 0.0
    matrix = count * plan.sequence * model.heads / tensor
    upcast = plan.softmax_fp32 or (plan.style is Style.EAGER and each < 4)
    smaller = (each - _fed(plan)) * model.value_width / tensor
    per_score = each + (4 if upcast else 0) + ((1 + each) if plan.dropout else 0)
    return count * (each * width - smaller), matrix * per_score


def _feed_forward(model: ModelShape, plan: TrainingPlan, layer: int) -> float:
    each, count = _stream(plan), tokens(plan)
    copies = (3.0 if plan.style is Style.FUSED or plan.adapter else 4.0) if model.gated else 2.0
    if plan.adapter and not model.gated:
        copies = 1.0
    # Bytes for each inner number, what the last product reads included.
    inside = each * copies - (plan.compute.bytes_each - _fed(plan))
    if model.experts is None or layer < model.experts.dense_layers:
        return 0.0 if "mlp" in plan.again else inside * count * model.ffn / plan.parallel.tensor
    experts, parallel = model.experts, plan.parallel
    spread = parallel.tensor if parallel.sequence_parallel else 1
    # Every token goes to several experts: its copies in, inner values, and results before they are weighed.
    shared = 0.0 if "shared" in plan.again else inside * count * experts.shared_ffn / parallel.tensor
    if "experts" in plan.again:
        return 0.0
    if "activation" in plan.again:
        inside -= _fed(plan)
    routed = count * (experts.capacity_factor or 1.0) * experts.per_token / spread
    inner = inside * experts.ffn / max(1, parallel.expert_tensor or 1)
    gathered = parallel.expert_tensor if parallel.expert_tensor > 1 and parallel.sequence_parallel else 1
    router = 4 * 2 * count / spread * experts.count
    return routed * gathered * ((each + _fed(plan)) * model.hidden + inner) + router + shared


def in_flight(plan: TrainingPlan, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once, in the one-forward-one-backward schedule.

    With interleaving (Narayanan et al. 2021) chunks of the stage's layers are counted. Where all go forward before the
    first goes backward (GPipe: Huang et al. 2019), it is all of them.
    """
    if plan.backward_last:
        return float(plan.accumulation)
    stages, chunks = plan.parallel.pipeline, plan.parallel.virtual_stages
    if stages == 1:
        return 1.0
    if chunks == 1:
        return min(stages - stage, plan.accumulation)
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    return min(warm_up, plan.accumulation * chunks) / chunks


def kept(plan: TrainingPlan, stage: int) -> float:
    """Bytes kept for the backward pass by all layers of a stage, all micro-batches in flight."""
    if not plan.trains:
        return 0.0
    layers = [layer_bytes(plan, layer) for layer in stage_layers(plan, stage)]
    if plan.recompute is Recompute.FULL:
        each = sum(layer.entry for layer in layers) / max(1, plan.recompute_layers)
    elif plan.recompute is Recompute.PRODUCTS:
        each = sum(layer.entry for layer in layers) + len(layers) * _second_products(plan)
    elif plan.recompute is Recompute.SELECTIVE:
        each = sum(layer.entry + layer.rest for layer in layers)
    else:
        each = sum(layer.all for layer in layers)
    if plan.offload_activations and len(layers) > _ON_THEIR_WAY:
        each *= _ON_THEIR_WAY / len(layers)
    if plan.model.cross_layers and layers:
        each += layers[0].all * 1.4 * plan.model.cross_layers / plan.parallel.pipeline * _target_share(plan)
    return (each + _ends(plan, stage)) * in_flight(plan, stage) + _kept_softmax(plan, stage)


def _kept_softmax(plan: TrainingPlan, stage: int) -> float:
    """The 32-bit softmax of each micro-batch but the last, that its loss keeps until it goes backward."""
    if not plan.backward_last or not plan.logit_bytes or stage != plan.parallel.pipeline - 1:
        return 0.0
    return 4.0 * (plan.accumulation - 1) * tokens(plan) * plan.model.vocab / plan.parallel.tensor


def _second_products(plan: TrainingPlan) -> float:
    """Half of what a layer's matrix products put out, and the output of its attention."""
    model = plan.model
    inner = (
        model.ffn if model.experts is None else model.experts.ffn * model.experts.per_token + model.experts.shared_ffn
    )
    widths = model.query_width + 2 * model.kv_heads * model.head_dim + 2 * model.hidden + (1 + model.gated) * inner
    return plan.compute.bytes_each * tokens(plan) * (0.5 * widths + model.value_width) / plan.parallel.tensor


def _target_share(plan: TrainingPlan) -> float:
    return (plan.target_sequence or plan.sequence) / plan.sequence


def _ends(plan: TrainingPlan, stage: int) -> float:
    """The embedding's output with its dropout, on the first stage; the last norm's input, on the last."""
    spread = plan.parallel.tensor if plan.parallel.sequence_parallel else 1
    between = tokens(plan) * plan.model.hidden / spread
    first, last = stage == 0, stage == plan.parallel.pipeline - 1
    return between * ((1 if plan.dropout and first else 0) + (2 * plan.compute.bytes_each if last else 0))


def logits(plan: TrainingPlan, stage: int) -> float:
    """What the loss holds at its worst, on the last stage."""
    if stage != plan.parallel.pipeline - 1:
        return 0.0
    return tokens(plan) * _target_share(plan) * plan.model.vocab / plan.parallel.tensor * plan.logit_bytes


def backward_temporary(plan: TrainingPlan, stage: int) -> float:
    """What one layer's backward pass needs at once: the recomputed layer and gradients of its widest parts."""
    layers = stage_layers(plan, stage)
    if not layers or not plan.trains:
        return 0.0
    widest = max((layer_bytes(plan, layer) for layer in layers), key=lambda item: item.all)
    again = widest.scores if plan.recompute is Recompute.SELECTIVE else 0.0
    if plan.recompute in (Recompute.FULL, Recompute.PRODUCTS):
        again = widest.all * max(1, plan.recompute_layers)
    # Gradients of the widest product and of the residual stream exist beside what is kept.
    return again + 0.5 * (widest.rest + widest.scores)


def gathered(plan: TrainingPlan, stage: int) -> float:
    """Whole layers that parameter sharding brings together: the one at work and the next; and a trained embedding."""
    if plan.parallel.sharding is not Sharding.PARAMETERS or plan.parallel.shard_ranks == 1:
        return 0.0
    layers = stage_layers(plan, stage)
    own = held(plan, stage)
    layer = (own.dense + own.experts) / max(1, len(layers))
    largest = max(2 * layer, own.ends / (1 if plan.model.tied else 2) + layer, min(plan.gather_numbers, own.total))
    if plan.loads_whole and plan.adapter is not None:
        largest = own.total  # a frozen layer has no gradient whose arrival would free what was gathered
    width = plan.weights.bytes_each if plan.weights.quantised else plan.compute.bytes_each
    if plan.adapter is not None or not plan.trains:
        return largest * width
    # The gradient of a gathered layer exists whole, and once more as reduced, before it is scattered.
    return largest * width + layer * (plan.compute.bytes_each + plan.gradient_bytes)
