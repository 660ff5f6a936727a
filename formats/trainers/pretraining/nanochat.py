"""nanochat (https://github.com/karpathy/nanochat): every size follows from one depth.

Defaults, dimensions and what the optimizer holds are those of ``scripts/base_train.py``, ``scripts/chat_sft.py``,
``nanochat/gpt.py`` and ``nanochat/optim.py`` (karpathy/nanochat 92d63d4): matrices and head in 32 bits with Muon and
Adam, embeddings in the precision of activations, states spread over the ranks and gradients not.
"""

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from kopt.core.workload.training_plan import (
    ModelShape,
    OptimizerKind,
    Parallelism,
    PlanError,
    Precision,
    Sharding,
    Style,
    TrainingPlan,
)
from kopt.formats.trainers.fields import Fields, key
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_PRETRAINS, _TUNES = "base_train", "chat_sft"
_WORD = re.compile(r"\w+")
_SHARED = """run device_type max_seq_len num_iterations device_batch_size total_batch_size embedding_lr unembedding_lr
    matrix_lr warmdown_ratio final_lr_frac eval_every eval_tokens model_tag"""
_OPTIONS: Mapping[str, frozenset[str]] = {
    script: frozenset(_WORD.findall(f"{own} {_SHARED}"))
    for script, own in (
        (
            _PRETRAINS,
            """fp8 fp8_recipe depth aspect_ratio head_dim window_pattern target_flops target_param_data_ratio
            weight_decay scalar_lr warmup_steps resume_from_step core_metric_every core_metric_max_per_task
            sample_every save_every""",
        ),
        (
            _TUNES,
            """model_step load_optimizer init_lr_frac warmup_ratio chatcore_every chatcore_max_cat chatcore_max_sample
            mmlu_epochs gsm8k_epochs""",
        ),
    )
}
_VOCABULARY, _OLDER_VOCABULARY = 32768, 65536
"""What ``scripts/tok_train.py`` trains by default, and until 7 January 2026 (ccf4b7f)."""
_OLDER_OPTION = re.compile(r"--[a-z]+_\w+(=.*)?", re.S)
"""Until 13 January 2026 (7312ec9) options had underscores; argparse refuses these today."""
_OLDER_TUNING_BATCH = 4
_PRECISIONS = {"bfloat16": Precision.BF16, "float16": Precision.FP16, "float32": Precision.FP32}
_TAG = re.compile(r"d(\d{1,3})")
_LOSS = 4.0
"""Bytes per logit of the compiled loss: logits and their gradient, in 16 bits."""
_TOKENS_OF_DEPTH_12, _GROWTH = 2**19, 0.383
"""The automatic batch: tokens of a step at depth 12, and the power of the training's length by which it grows."""


def nanochat_plan(
    settings: Mapping[str, Any],
    *,
    script: str = _PRETRAINS,
    world_size: int | None = None,
    env: Mapping[str, str] | None = None,
    older: bool = False,
) -> TrainingPlan:
    """A command of nanochat's: ``torchrun -m scripts.base_train -- --depth=24 --device-batch-size=16 --fp8``.

    ``older``: of a version before the dashes in options, whose vocabulary may be twice as large.

    Raises:
        PlanError: a script that does not train, a depth that the command does not say, or sizes that do not divide.
    """
    if script not in _OPTIONS:
        raise PlanError(
            f"{script[:60]} has no formulas; give scripts.{_PRETRAINS} or scripts.{_TUNES}, or run the script"
        )
    fields = _known(settings, script)
    if fields.text("device_type") not in ("", "cuda"):
        raise PlanError(f"--device-type {fields.text('device_type')[:20]} uses no GPU of a cluster; give cuda")
    compute = _compute(fields, env or {})
    model = _model(fields, script, _OLDER_VOCABULARY if older else _VOCABULARY)
    since = ", as options with underscores are of a version that may have made as many" if older else ""
    fields.assume("vocab_size", f"the tokenizer is not at hand: {model.vocab:,} tokens by default{since}")
    gpus = world_size or 1
    batch, length = _batch(fields, script, older=older)
    ends = Precision.FP32 if compute is Precision.FP16 else compute  # a GradScaler cannot unscale 16-bit gradients
    matrices = sum(sum(model.layer_parameters(layer)) for layer in range(model.layers))
    looked_up, numbers = model.embedding + model.positions * model.hidden, model.parameters()
    trained_bytes = (4 * (matrices + model.embedding) + ends.bytes_each * looked_up) / numbers
    eight_bits = fields.flag("fp8")
    return TrainingPlan(
        framework="nanochat",
        model=model,
        micro_batch=batch,
        sequence=length,
        accumulation=_accumulation(fields, model, batch * length * gpus),
        parallel=Parallelism(data=gpus, sharding=Sharding.OPTIMIZER if gpus > 1 else Sharding.NONE),
        weights=Precision.FP32,
        compute=compute,
        ends=ends,
        quantised_head=True,  # the head is held as the matrices are
        gradient_bytes=trained_bytes,
        # Muon keeps one number for each of a matrix, Adam two for each of the others.
        optimizer=OptimizerKind.MUON,
        state_bytes_each=(4 * matrices + 8 * model.embedding + 2 * ends.bytes_each * looked_up) / numbers,
        style=Style.FUSED,
        joint_qkv=True,  # queries and keys are kept as they were before rotation and norm, too
        input_bytes=1.0 if eight_bits else 0.0,
        logit_bytes=_LOSS if compute is not Precision.FP32 else 2 * _LOSS,
        # Each matrix is cast in the forward pass, and its cast kept for the backward pass.
        buffer_bytes=_cast_bytes(compute, eight_bits=eight_bits) * (matrices + model.embedding),
        step_bytes=_step_numbers(matrices, gpus) * 4.0,
        unknown=tuple(fields.unknown),
    )


def _known(settings: Mapping[str, Any], script: str) -> Fields:
    """The script's own options, also by a beginning that no other shares, as argparse takes them; others are noted."""
    known = _OPTIONS[script]
    own: dict[str, Any] = {}
    others: dict[str, str] = {}
    for name, value in settings.items():
        name = key(str(name))
        meant = [name] if name in known else [option for option in known if name and option.startswith(name)]
        if len(meant) == 1:
            own[meant[0]] = value
        elif name:
            near = difflib.get_close_matches(name, known, 1)
            others[name] = f"scripts.{script} has no option --{name[:60]}" + (
                f": is --{near[0]} meant?" if near else ""
            )
    fields = Fields(own)
    for name, message in others.items():
        fields.assume(name[:60], f"{message}; it is not counted")
    return fields


def _compute(fields: Fields, env: Mapping[str, str]) -> Precision:
    """Raises PlanError for a word that the script does not know."""
    named = env.get("NANOCHAT_DTYPE")
    if named is None:
        fields.assume(
            "NANOCHAT_DTYPE", "NANOCHAT_DTYPE is not set: bfloat16, as is found from A100 on; older GPUs take float32"
        )
        return Precision.BF16
    if named not in _PRECISIONS:
        raise PlanError(f"NANOCHAT_DTYPE {named[:40]!r} is none of {', '.join(_PRECISIONS)}; give one of them")
    return _PRECISIONS[named]


def _batch(fields: Fields, script: str, *, older: bool) -> tuple[int, int]:
    """Sequences and their length; fine-tuning has those of its checkpoint, which the command does not say."""
    batch = _OLDER_TUNING_BATCH if older and script == _TUNES else 32
    if script == _TUNES:
        for name, default in (("device_batch_size", batch), ("max_seq_len", 2048)):
            if not fields.has(name):
                fields.assume(name, f"{name} is that of the checkpoint: taken as the default, {default:,}")
    return fields.whole("device_batch_size", default=batch), fields.whole("max_seq_len", default=2048)


def _model(fields: Fields, script: str, vocabulary: int) -> ModelShape:
    """As wide as its depth says, with a further table of embeddings in every second layer, the last among them.

    Raises:
        PlanError: fine-tuning, whose checkpoint has another name than by its depth.
    """
    if script == _TUNES:
        named = _TAG.fullmatch(fields.text("model_tag"))
        if named is None:
            raise PlanError("the depth is that of a checkpoint; give its default name (--model-tag d24), which says it")
        depth, head, wide = int(named[1]), 128, 64
        fields.assume(
            "model_tag", f"depth {depth} by the checkpoint's name, width {wide} a layer and heads of {head} by default"
        )
    else:
        depth, head = fields.whole("depth", default=20), fields.whole("head_dim", default=128)
        wide = fields.whole("aspect_ratio", default=64)
    return _of_depth(depth, wide, head, vocabulary)


def _of_depth(depth: int, wide: int, head: int, vocabulary: int = _VOCABULARY) -> ModelShape:
    heads = -(-depth * wide // max(1, head))
    return ModelShape(
        name=f"nanochat d{depth}",
        layers=depth,
        hidden=heads * head,
        heads=heads,
        kv_heads=heads,
        head_dim=head,
        ffn=4 * heads * head,
        vocab=vocabulary,
        gated=False,
        positions=-(-depth // 2) * vocabulary,  # looked up beside the embedding and held as it is
    )


def _accumulation(fields: Fields, model: ModelShape, at_once: int) -> int:
    """Passes of one step. Raises PlanError where the step's tokens do not divide into them, as the script does."""
    given = fields.text("total_batch_size", default="-1")
    if given != "-1":
        total = fields.whole("total_batch_size")
        if at_once and total % at_once:
            raise PlanError(
                f"total_batch_size {total:,} is no multiple of the {at_once:,} tokens of one pass over all GPUs; "
                f"give a multiple of these"
            )
        return max(1, total // max(1, at_once))
    grown = (_scaling(model) / _scaling(_of_depth(12, 64, 128))) ** _GROWTH
    return max(1, (1 << max(0, round(math.log2(_TOKENS_OF_DEPTH_12 * grown)))) // max(1, at_once))


def _scaling(model: ModelShape) -> float:
    """Weights by whose number the length of the training goes: matrices and head."""
    return model.parameters() - model.embedding - model.positions * model.hidden


def _cast_bytes(compute: Precision, *, eight_bits: bool) -> float:
    if compute is Precision.FP32:
        return 0.0
    return 1.0 if eight_bits else compute.bytes_each


def _step_numbers(matrices: float, gpus: int) -> float:
    """What Muon stacks for its step: all gradients of matrices of one shape, then all these matrices themselves.

    Stacks of all shapes stay until the last is done. Over several ranks they are scattered and gathered in place,
    beside a copy of the largest shape's (a third) and each rank's parts.
    """
    return 2.0 * matrices + matrices / 3 if gpus == 1 else matrices * (1 + 1 / 3 + 2 / gpus)


def _plan(inputs: PlanInputs) -> TrainingPlan:
    script = re.split(r"[./]", inputs.script.removesuffix(".py"))[-1]
    older = any(_OLDER_OPTION.fullmatch(word) for word in inputs.arguments)
    return nanochat_plan(inputs.settings, script=script, world_size=inputs.world_size, env=inputs.env, older=older)


TRAINER = Trainer(
    "nanochat",
    _plan,
    modules=(f"scripts.{_PRETRAINS}", f"scripts.{_TUNES}", "scripts.chat_rl", "nanochat."),
    folders=("nanochat",),
)
