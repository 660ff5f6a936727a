"""Generation: key-value cache, prefill, and engines that fill a share of the GPU (Kwon et al. 2023, vLLM)."""

from kopt.core.workload.training_plan import Attention, Serving, TrainingPlan


def cache_bytes(plan: TrainingPlan, serving: Serving) -> float:
    """Keys and values of all sequences at their full length, on one rank."""
    model, parallel = plan.model, plan.parallel
    split = 1 if model.latent else min(parallel.tensor, model.kv_heads)
    per_token = model.cache_width * model.layers / parallel.pipeline * serving.cache.bytes_each / split
    return per_token * serving.context_tokens * serving.sequences


def prefill_bytes(plan: TrainingPlan, serving: Serving) -> float:
    """The widest moment of a forward pass over a prompt or an engine's batch of tokens, and its logits."""
    model, tensor = plan.model, plan.parallel.tensor
    each = plan.compute.bytes_each
    at_once = serving.batched_tokens or serving.sequences * max(1, serving.prompt_tokens)
    inner = model.ffn if model.experts is None else model.experts.ffn * model.experts.per_token
    mlp = each * at_once * (2 * model.hidden + (3 if model.gated else 2) * inner / tensor)
    attention = each * at_once * (2 * model.hidden + (2 * model.query_width + model.cache_width) / tensor)
    if plan.attention is Attention.EAGER:
        attention += at_once * serving.prompt_tokens * model.heads / tensor * (each + 4)
    if serving.batched_tokens:
        # An engine scores the last token of each sequence, on all words whatever the split, once layers are done.
        return max(mlp, attention, min(at_once, serving.sequences) * model.vocab * plan.logit_bytes)
    scored = at_once if plan.logit_bytes else min(at_once, serving.sequences)
    return max(mlp, attention) + scored * model.vocab / tensor * plan.logit_bytes
