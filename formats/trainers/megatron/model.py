"""The model that Megatron-LM's arguments describe: dimensions, experts, latent attention, hybrid patterns."""

import re

from kopt.core.workload.training_plan import Experts, LatentAttention, ModelShape, PlanError, StateSpace
from kopt.formats.trainers.fields import Fields

_GPT2_VOCABULARY, _BERT_CASED_VOCABULARY, _TIKTOKEN_VOCABULARY = 50257, 28996, 1 << 17
_MAX_LAYERS = 4096


def megatron_model(fields: Fields, tensor: int) -> ModelShape:
    """The dimensions on all ranks together; ``tensor`` ranks share the rounded vocabulary. Raises PlanError."""
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads")
    gated = fields.flag("swiglu")
    pattern = fields.text("hybrid_layer_pattern", "hybrid_override_pattern")
    blocks = _blocks(fields, pattern)
    further = fields.whole("mtp_num_layers", default=0)
    layers = len(blocks) or fields.whole("num_layers", "encoder_num_layers") + further
    if fields.has("img_h", "patch_dim") and not blocks:
        fields.assume("img_h", "the vision tower is taken to have the language model's layers, as pretrain_vlm.py has")
        layers *= 2
    if distils(fields):
        fields.assume("export_kd_teacher_load", "the teacher that is distilled from is taken to be as large")
    if fields.has("model_provider"):
        raise PlanError("the model provider adds parts that these arguments do not describe; run the script instead")
    default_ffn = 4 * hidden if not gated else (4 * hidden * 2 // 3) // 64 * 64
    ffn = fields.whole("ffn_hidden_size", default=default_ffn)
    learned = fields.text("position_embedding_type", default="learned_absolute") == "learned_absolute"
    kv_heads = fields.whole("num_query_groups", default=heads) if fields.flag("group_query_attention") else heads
    return ModelShape(
        name="Megatron model",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.whole("kv_channels", default=max(1, hidden // max(1, heads))),
        ffn=ffn,
        vocab=_vocabulary(fields, tensor),
        gated=gated,
        tied=not fields.flag("untie_embeddings_and_output_weights"),
        bias=not fields.flag("disable_bias_linear"),
        qkv_bias=fields.flag("add_qkv_bias"),
        positions=fields.whole("max_position_embeddings", default=0) if learned else 0,
        cross_layers=fields.whole("decoder_num_layers", default=0),
        experts=_experts(fields, layers, ffn),
        latent=_latent(fields),
        blocks=blocks,
        state_space=StateSpace(
            state=fields.whole("mamba_state_dim", default=128),
            head_dim=max(1, fields.whole("mamba_head_dim", default=64)),
            groups=fields.whole("mamba_num_groups", default=8),
            heads=fields.whole("mamba_num_heads", default=0),
        ),
    )


def layout_stages(layout: str) -> int:
    """Chunks that a pipeline's layout makes: ``Et*3|(tt|)*6tmL`` has eight, on all ranks together."""
    repeated: int = sum(
        part.count("|") * (min(int(times or 1), _MAX_LAYERS) - 1)
        for part, times in re.findall(r"\(([^()]*)\)\*(\d{1,4})", layout)
    )
    return 1 + layout.count("|") + repeated


def distils(fields: Fields) -> bool:
    """Whether a teacher is held beside the model that is trained."""
    return fields.has("export_kd_cfg", "export_kd_teacher_load")


def _blocks(fields: Fields, pattern: str) -> str:
    """One letter for each layer; ``|`` only parts pipeline stages, what follows ``/`` predicts further tokens."""
    blocks = re.sub(r"[|/\s]", "", pattern)[:_MAX_LAYERS]
    if other := sorted(set(blocks) - set("M*-E")):
        fields.assume("hybrid_layer_pattern", f"layers {', '.join(other)[:40]} are taken for state-space layers")
    return re.sub(r"[^M*\-E]", "M", blocks)


def _vocabulary(fields: Fields, tensor: int) -> int:
    """Rounded up, as Megatron does, so that every rank has the same part."""
    kind = fields.text("tokenizer_type")
    if fields.has("vocab_size", "padded_vocab_size"):
        vocabulary = fields.whole("padded_vocab_size", "vocab_size") + (1 if kind == "NullTokenizer" else 0)
    elif kind == "TikTokenizer":
        vocabulary = _TIKTOKEN_VOCABULARY
    elif kind.startswith("BertWordPiece"):
        vocabulary = _BERT_CASED_VOCABULARY + fields.whole("vocab_extra_ids", default=0)
    else:
        vocabulary = _GPT2_VOCABULARY
        fields.assume("vocab_size", f"the tokenizer's vocabulary is not given: {vocabulary:,} as GPT-2's")
    multiple = max(1, fields.whole("make_vocab_size_divisible_by", default=128)) * tensor
    return -(-vocabulary // multiple) * multiple


def _experts(fields: Fields, layers: int, ffn: int) -> Experts | None:
    count = fields.whole("num_experts", default=0)
    if count < 2:
        return None
    dense = re.match(r"\(?\[0\]\*(\d{1,4})\+", fields.text("moe_layer_freq"))
    return Experts(
        count=count,
        per_token=fields.whole("moe_router_topk", default=2),
        ffn=fields.whole("moe_ffn_hidden_size", default=ffn),
        shared_ffn=fields.whole("moe_shared_expert_intermediate_size", default=0),
        dense_layers=min(layers, int(dense[1])) if dense else 0,
        capacity_factor=fields.real("moe_expert_capacity_factor", default=0.0),
    )


def _latent(fields: Fields) -> LatentAttention | None:
    if not fields.flag("multi_latent_attention"):
        return None
    return LatentAttention(
        query_rank=fields.whole("q_lora_rank", default=0),
        key_value_rank=fields.whole("kv_lora_rank", default=32),
        nope=fields.whole("qk_head_dim", default=128),
        rope=fields.whole("qk_pos_emb_head_dim", default=64),
        value=fields.whole("v_head_dim", default=128),
    )
