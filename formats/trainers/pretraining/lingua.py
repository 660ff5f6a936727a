"""Meta Lingua (https://github.com/facebookresearch/lingua): one YAML with dimensions, batches and FSDP2's mesh.

Defaults, dimensions and what stays gathered are those of ``apps/main/train.py``, ``apps/main/transformer.py``,
``lingua/transformer.py``, ``lingua/distributed.py``, ``lingua/data.py`` and ``lingua/stool.py``
(facebookresearch/lingua 437d680): 32-bit weights in shards, gathered in 16 bits until their backward pass.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.core.workload.training_plan import ModelShape, PlanError, Precision, Sharding, Style, TrainingPlan
from kopt.formats.trainers.fields import Fields, settings_of_arguments
from kopt.formats.trainers.names import precision
from kopt.formats.trainers.recipe import Recipe
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_COMPILED_LOSS, _PLAIN_LOSS = 10.0, 14.0
"""Bytes per logit, as for torchtitan's loss, which is built and compiled in the same way."""
_BYTES, _TIKTOKEN_RESERVED = 258, 256
"""Tokens of its tokenizer of bytes, and those that Llama 3's kind adds to what its name says."""
_THOUSANDS = re.compile(r"(?<![0-9.])(\d{1,4})k(?![a-z])", re.I)
_OTHERS = frozenset({"dimensions", "state_dim", "conv_size", "n_groups"})
"""Dimensions of Mamba, recurrent networks and AU-Net."""
_GPUS_OF_A_NODE = 8
_STOOL = "lingua.stool"
_STOOL_S_OWN = frozenset(
    re.findall(
        r"\w+",
        """config launcher script copy_code dirs_exists_ok override nodes ngpu ncpu mem anaconda constraint exclude
        time account qos partition stdout""",
    )
)
_NULL = frozenset({"null", "Null", "NULL", "~"})
"""Words of the command that OmegaConf reads as None."""
_OTHER_PROGRAM = re.compile(r"(^|[./])(eval|generate)(\.py)?$")


def lingua_plan(settings: Mapping[str, Any], *, world_size: int | None = None) -> TrainingPlan:
    """A configuration of ``apps/main``, with what the command sets by ``data.batch_size=4``.

    Raises:
        PlanError: a model of another kind, a vocabulary that nothing says, or GPUs that the mesh does not divide.
    """
    fields = Fields(_without_nulls(settings))
    _must_be_a_transformer(fields)
    model = _model(fields)
    gpus, tensor = world_size or 1, max(1, fields.whole("distributed.tp_size", default=1))
    compiled = fields.flag("distributed.compile")
    steps = max(1, fields.whole("grad_acc_steps", default=1))
    compute = precision(fields.text("distributed.model_dtype"), Precision.BF16)
    shards = _shards(fields, gpus, tensor)
    own = model.parameters() / tensor
    # Without a step's reduction FSDP2 adds each pass's gradients up where they are, whole and in 32 bits.
    buffers = 4.0 * own if steps > 1 else 0.0
    if shards == 1 and compute is not Precision.FP32:
        buffers += own * compute.bytes_each
    selective = fields.flag("distributed.selective_activation_checkpointing")
    if selective:
        fields.assume(
            "distributed.selective_activation_checkpointing",
            "selective checkpointing keeps every product; what is computed again is taken as the norms alone",
        )
    plan = Recipe(
        framework="lingua",
        model=model,
        micro_batch=fields.whole("data.batch_size", default=2),
        sequence=fields.whole("data.seq_len", default=2048),
        accumulation=steps,
        weights=Precision.FP32,
        compute=compute,
        optimizer="adamw_fused",
        gpus=gpus,
        tensor=tensor,
        sharding=Sharding.PARAMETERS,
        shards=shards,
        # Nothing but the head is thrown away after its forward pass.
        gather_numbers=float(model.parameters()),
        buffers=buffers,
        style=Style.FUSED if compiled else Style.EAGER,
        loss=_COMPILED_LOSS if compiled else _PLAIN_LOSS,
        unknown=fields.unknown,
    ).plan()
    again = frozenset({"norms"}) if selective else frozenset()
    return replace(plan, again=again, input_bytes=1.0 if fields.has("distributed.float8_recipe") else 0.0)


def _must_be_a_transformer(fields: Fields) -> None:
    if not fields.has("model", "model.dim"):
        raise PlanError("no configuration is named, which has the model's dimensions; give config=FILE.yaml")
    model = fields.part("model")
    if fields.has("model_type") or _OTHERS & {name.rpartition(".")[2] for name in (*model.names(), *fields.names())}:
        raise PlanError("Mamba, recurrent networks and AU-Net have no formulas; give a configuration of apps/main")
    if fields.whole("model.n_future_head", default=1) > 1:
        raise PlanError("several heads (model.n_future_head) have no formulas; give a configuration of apps/main")


def _model(fields: Fields) -> ModelShape:
    hidden = fields.whole("model.dim", default=512)
    head = fields.whole("model.head_dim", default=0)
    heads = fields.whole("model.n_heads", default=0) or (hidden // head if head else 0)
    if not heads:
        raise PlanError("model.n_heads is not given; it decides the memory, so give it or model.head_dim")
    inner = int(int(2 * 4 * hidden / 3) * fields.real("model.ffn_dim_multiplier", default=1.0))
    multiple = max(1, fields.whole("model.multiple_of", default=256))
    return ModelShape(
        name="lingua model",
        layers=fields.whole("model.n_layers", default=8),
        hidden=hidden,
        heads=heads,
        kv_heads=fields.whole("model.n_kv_heads", default=heads),
        head_dim=head or hidden // max(1, heads),
        ffn=multiple * -(-inner // multiple),
        vocab=_vocabulary(fields),
        tied=fields.flag("model.weight_tying"),
    )


def _vocabulary(fields: Fields) -> int:
    """As given, or the tokenizer's, whose file says its size by its name alone (``cl_toplang_128k.tiktoken``).

    Raises:
        PlanError: it says nothing.
    """
    given = fields.text("model.vocab_size", default="-1")
    if not given.startswith("-"):
        return fields.whole("model.vocab_size")
    kind, path = fields.text("data.tokenizer.name", default="bytes"), fields.text("data.tokenizer.path")
    if kind == "bytes":
        return _BYTES
    name = path.rpartition("/")[2]
    size = _THOUSANDS.search(name)
    if size is None:
        raise PlanError(
            f"the size of the tokenizer {path[:80]!r} is not known; give model.vocab_size, which is the model's too"
        )
    count = 1000 * int(size[1]) + (_TIKTOKEN_RESERVED if kind == "tiktoken" else 0)
    fields.assume("model.vocab_size", f"{count:,} tokens by the name of the tokenizer, {name[:60]}")
    return count


def _shards(fields: Fields, gpus: int, tensor: int) -> int:
    """Ranks that share one copy: all of them unless a number is given; with "no_shard" none (``parallelize_model``).

    Raises:
        PlanError: the GPUs do not divide into them, or an unknown type.
    """
    kind = fields.text("distributed.fsdp_type", default="no_shard")
    if kind not in ("full_shard", "no_shard"):
        raise PlanError(f"distributed.fsdp_type {kind[:40]!r} is neither full_shard nor no_shard; give one of them")
    shards = max(1, fields.whole("distributed.dp_shard", default=1))
    if kind == "no_shard" and shards > 1:
        raise PlanError("distributed.dp_shard must be 1 with no_shard; give fsdp_type full_shard")
    if gpus % (shards * tensor):
        raise PlanError(
            f"{gpus} GPUs do not divide into dp_shard {shards} x tp_size {tensor}; "
            f"give --world-size, a multiple of {shards * tensor}"
        )
    return shards if shards > 1 or kind == "no_shard" else gpus // tensor


def _plan(inputs: PlanInputs) -> TrainingPlan:
    program = Fields(inputs.settings).text("script") if inputs.script == _STOOL else ""
    program = program or inputs.script
    if inputs.script == _STOOL:
        _must_be_stool_s(inputs.arguments)
    if _OTHER_PROGRAM.search(program):
        raise PlanError(f"{program[:60]} does not train, and has no formulas; give apps.main.train")
    return lingua_plan(inputs.settings, world_size=inputs.world_size)


def _must_be_stool_s(arguments: Sequence[str]) -> None:
    """stool hands its file on as it is, and takes nothing for it. Raises PlanError for what it would refuse."""
    others = [name for name in settings_of_arguments(arguments) if name and name not in _STOOL_S_OWN]
    if others:
        raise PlanError(f"lingua.stool has no setting {others[0][:60]}; give it in the configuration's file")


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the command sets to null is not given, whatever the file says."""
    result = dict(settings)
    for name, value in settings.items():
        if isinstance(value, str) and value in _NULL:
            del result[name]
            result = _without(result, name.split("."))
    return result


def _without(settings: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    below = settings.get(first)
    if rest and isinstance(below, Mapping):
        return {**settings, first: _without(below, rest)}
    return {name: value for name, value in settings.items() if name != first} if not rest else dict(settings)


def _processes(inputs: PlanInputs) -> int | None:
    """stool starts a process for each GPU of its nodes; the others are started by a launcher."""
    if inputs.script != _STOOL:
        return None
    fields = Fields(inputs.settings)
    return max(1, fields.whole("nodes", default=1)) * max(1, fields.whole("ngpu", default=_GPUS_OF_A_NODE))


def _is_lingua(content: Mapping[str, Any]) -> bool:
    data = content.get("data")
    return {"distributed", "optim", "model"} <= content.keys() and isinstance(data, Mapping) and "tokenizer" in data


TRAINER = Trainer(
    "lingua",
    _plan,
    modules=("apps.main.", "apps.mtp.", "apps.mamba.", "apps.aunet.", "apps.fastRNN.", "lingua."),
    folders=("lingua",),
    config_options=("config",),
    recognises=_is_lingua,
    processes=_processes,
)
