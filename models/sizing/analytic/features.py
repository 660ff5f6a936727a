"""What a residual model may learn from: the formula's parts and what kind of job it is, on scales that travel."""

import math
from collections.abc import Mapping

from kopt.core.workload.sizing import MemoryBreakdown
from kopt.core.workload.training_plan import Attention, Recompute, Sharding, Style, TrainingPlan


def features_of(plan: TrainingPlan, breakdown: MemoryBreakdown) -> Mapping[str, float]:
    """Numbers for one rank; shares of the total rather than bytes, so that small and large jobs look alike."""
    total = max(1, breakdown.tensors)
    parallel, model = plan.parallel, plan.model
    shares = {f"{name}_share": amount / total for name, amount in breakdown.items()}
    return {
        **shares,
        "log_total": math.log(total),
        "log_parameters": math.log(max(1, model.parameters())),
        "log_tokens": math.log(plan.micro_batch * plan.sequence),
        "log_vocabulary_to_hidden": math.log(model.vocab / model.hidden),
        "layers": float(model.layers),
        "weight_bytes": plan.weights.bytes_each,
        "compute_bytes": plan.compute.bytes_each,
        "trained_share": plan.trained_share,
        "tensor": float(parallel.tensor),
        "pipeline": float(parallel.pipeline),
        "virtual_stages": float(parallel.virtual_stages),
        "context": float(parallel.context),
        "data": float(parallel.data),
        "expert": float(parallel.expert),
        "experts": float(model.experts.count if model.experts else 0),
        "experts_per_token": float(model.experts.per_token if model.experts else 0),
        "latent": float(model.latent is not None),
        "sequence_parallel": float(parallel.sequence_parallel),
        "sharding": float(list(Sharding).index(parallel.sharding)),
        "offloads": float(parallel.offload_optimizer) + float(parallel.offload_parameters),
        "recompute": float(list(Recompute).index(plan.recompute)),
        "eager_attention": float(plan.attention is Attention.EAGER),
        "eager_style": float(plan.style is Style.EAGER),
        "dropout": float(plan.dropout),
        "accumulates": float(plan.accumulation > 1),
        "serves": float(not plan.trains),
        "assumptions": float(len(plan.unknown)),
        "varying_lengths": float(plan.cached_loss > 0),
        "offloads_activations": float(plan.offload_activations),
        "state_space_share": model.blocks.count("M") / model.layers if model.blocks else 0.0,
        "workspace_share": plan.workspace_bytes / total,
    }
