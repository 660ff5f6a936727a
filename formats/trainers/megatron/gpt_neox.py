"""GPT-NeoX (https://github.com/EleutherAI/gpt-neox): ``deepy.py train.py CONFIG.yml …``, Megatron on DeepSpeed.

Settings are named as in its ``megatron/neox_arguments``, with dashes or underscores. Those of all files count together;
what DeepSpeed itself reads stands among them.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, PlanError, Precision, Style, TrainingPlan
from kopt.formats.trainers.deepspeed import apply_deepspeed
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_GPT2_VOCABULARY, _BYTES_VOCABULARY = 50257, 512
_NEOX_VOCABULARY = 50277
"""Of 20B_tokenizer.json, which its documented configurations use."""
_GATED = frozenset({"swiglu", "geglu", "reglu", "bilinear"})
_PRECISIONS = {"fp16": Precision.FP16, "bfloat16": Precision.BF16, "fp32": Precision.FP32}
_DEFAULT_OPTIMIZER = {"type": "adam"}
_OTHER_LAYERS = ("mamba", "rwkv", "gmlp", "amlp")
"""Kinds of layers in ``attention_config`` that are no attention."""


def gpt_neox_plan(settings: Mapping[str, Any], *, world_size: int | None = None) -> TrainingPlan:
    """The plan of one job of GPT-NeoX.

    Raises:
        PlanError: a dimension is missing, or sizes do not divide each other.
    """
    fields = Fields({"optimizer": _DEFAULT_OPTIMIZER}, settings)
    tensor = max(1, fields.whole("model_parallel_size", default=1))
    # 0 is one stage without the engine of pipelines.
    pipeline = max(1, fields.whole("pipe_parallel_size", default=0))
    # DeepSpeed's launcher counts them on each node.
    gpus = world_size or fields.whole("num_gpus", default=0) * max(1, fields.whole("num_nodes", default=1))
    if not gpus:
        gpus = tensor * pipeline
        fields.assume("world_size", f"the number of GPUs is not given: {gpus}, the fewest these sizes need")
    precision = _PRECISIONS.get(fields.text("precision", default="fp32"))
    if precision is None:
        raise PlanError(f"precision {fields.text('precision')[:40]!r} is none of {', '.join(_PRECISIONS)}")
    attention = str(fields.raw("attention_config"))
    if other := [kind for kind in _OTHER_LAYERS if kind in attention]:
        raise PlanError(f"layers of kind {', '.join(other)} of GPT-NeoX have no formulas; run the script instead")
    recipe = Recipe(
        framework="gpt-neox",
        model=_model(fields, tensor),
        micro_batch=_micro_batch(fields, gpus // (tensor * pipeline)),
        sequence=fields.whole("seq_length"),
        accumulation=fields.whole("gradient_accumulation_steps", "gas", default=1),
        weights=precision,
        compute=precision,
        gpus=gpus,
        tensor=tensor,
        pipeline=pipeline,
        checkpointing=fields.flag("checkpoint_activations"),
        flash="flash" in attention,
        style=Style.FUSED,
        unknown=fields.unknown,
    )
    recipe = apply_deepspeed(recipe, settings)
    if fields.flag("use_bnb_optimizer"):
        recipe = replace(recipe, optimizer="adamw_8bit")
    return recipe.plan()


def _micro_batch(fields: Fields, data: int) -> int:
    """Given, or what the whole batch leaves for each rank, as DeepSpeed works it out."""
    if fields.has("train_micro_batch_size_per_gpu") or not fields.has("train_batch_size"):
        return fields.whole("train_micro_batch_size_per_gpu")
    steps = fields.whole("gradient_accumulation_steps", "gas", default=1)
    return max(1, fields.whole("train_batch_size") // max(1, data * steps))


def _model(fields: Fields, tensor: int) -> ModelShape:
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    llama = fields.text("mlp_type") == "llama"
    gated = llama or fields.text("activation") in _GATED
    # megatron/model/transformer.py: 2/3 of four times the width, rounded up to 256, where it has three matrices.
    ffn = fields.whole("intermediate_size", default=-(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden)
    if fields.whole("moe_num_experts", default=1) > 1:
        raise PlanError("mixtures of experts of GPT-NeoX have no formulas; run the script instead")
    learned = fields.text("pos_emb", default="learned") == "learned"
    return ModelShape(
        name="GPT-NeoX model",
        layers=fields.whole("num_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("num_kv_heads", default=heads),
        head_dim=max(1, hidden // max(1, heads)),
        ffn=ffn,
        vocab=_vocabulary(fields, tensor),
        gated=gated,
        tied=not fields.flag("no_weight_tying"),
        bias=not llama,
        positions=fields.whole("max_position_embeddings", default=0) if learned else 0,
    )


def _vocabulary(fields: Fields, tensor: int) -> int:
    """Rounded up so that every rank has the same part."""
    tokenizer = fields.text("tokenizer_type", default="GPT2BPETokenizer")
    if fields.has("padded_vocab_size"):
        vocabulary = fields.whole("padded_vocab_size")
    elif "GPT2" in tokenizer:
        vocabulary = _GPT2_VOCABULARY
    elif tokenizer == "CharLevelTokenizer":
        vocabulary = _BYTES_VOCABULARY
    else:
        vocabulary = _NEOX_VOCABULARY
        message = f"the tokenizer's vocabulary is not given: {vocabulary:,}, as 20B_tokenizer.json has"
        fields.assume("padded_vocab_size", message)
    multiple = max(1, fields.whole("make_vocab_size_divisible_by", default=128)) * tensor
    return -(-vocabulary // multiple) * multiple


def _plan(inputs: PlanInputs) -> TrainingPlan:
    fields = Fields(inputs.settings)
    # The words behind -d are its folder and what follows it: `deepy.py train.py -d configs 125M.yml local.yml`.
    behind = fields.name_list("d", "conf_dir")
    folder, words = (behind[0] if behind else ""), [*behind[1:], *fields.positional()]
    programs = [word for word in words if word.endswith(".py")]
    if programs and not programs[0].endswith("train.py"):
        raise PlanError(f"{programs[0][:80]} trains nothing; its memory is not worked out from GPT-NeoX' settings")
    settings = dict(inputs.settings)
    for word in words:
        if not word.endswith(".py"):
            # As deepy.py completes it.
            path = word if word.endswith((".yml", ".yaml", ".json")) else f"{word}.yml"
            content = inputs.load(f"{folder.rstrip('/')}/{path}" if folder else path)
            if content is None:
                raise PlanError(f"the configuration {path[:200]} cannot be read; give it beside the command")
            settings |= content
    return gpt_neox_plan(settings, world_size=inputs.world_size)


TRAINER = Trainer("gpt-neox", _plan, script=re.compile(r"(^|/)deepy\.py$"))
