"""NeMo 2's recipes: ``nemo llm pretrain --factory llama3_8b(num_nodes=2) trainer.devices=8 data.micro_batch_size=2``.

What each recipe sets was read from NVIDIA-NeMo/NeMo 8cfedd7 (Apache-2.0; ``scripts/nemo_recipes.py``).
"""

import ast
import difflib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.training_plan import ModelShape, PlanError, TrainingPlan
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.nemo.common import nemo_plan, with_adapter
from kopt.formats.trainers.trainer import PlanInputs

_NEMOTRON = {"vocab_size": 256000, "position_embedding_type": "rope", "disable_bias_linear": True}
_NEMOTRON |= {"untie_embeddings_and_output_weights": True}
_CLASSES: dict[str, str | dict[str, Any]] = {
    "Llama3Config8B": "llama-3-8b",
    "Llama3Config70B": "llama-3-70b",
    "MixtralConfig8x7B": "mixtral-8x7b",
    "MixtralConfig8x22B": "mixtral-8x22b",
    "GPTConfig175B": {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "ffn_hidden_size": 49152}
    | {"max_position_embeddings": 2048},
    "nvidia/Minitron-4B-Base": {"num_layers": 32, "hidden_size": 3072, "ffn_hidden_size": 9216}
    | {"num_attention_heads": 24, "num_query_groups": 8, "kv_channels": 128}
    | _NEMOTRON,
    "thhaus/nemotron3-8b": {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 16384}
    | {"num_attention_heads": 32}
    | _NEMOTRON,
    "Nemotron3Config22B": {"num_layers": 40, "hidden_size": 6144, "ffn_hidden_size": 24576}
    | {"num_attention_heads": 48}
    | _NEMOTRON,
    "Nemotron4Config15B": {"num_layers": 32, "hidden_size": 6144, "ffn_hidden_size": 24576}
    | {"num_attention_heads": 48, "num_query_groups": 8}
    | _NEMOTRON,
    "mgoin/Nemotron-4-340B-Base-hf": {"num_layers": 96, "hidden_size": 18432, "ffn_hidden_size": 73728}
    | {"num_attention_heads": 96, "num_query_groups": 8, "kv_channels": 192}
    | _NEMOTRON,
}
"""Models that the catalogue knows by another name, or with the dimensions of ``nemo/collections/llm/gpt/model``."""
_CLASSES["thhaus/nemotron3-22b-hf"] = _CLASSES["Nemotron3Config22B"]
_CLASSES["thhaus/nemotron4-15b-base-hf"] = _CLASSES["Nemotron4Config15B"]
_NO_FORMULAS = re.compile(r"(?i)mamba|hyena|nemotron_?h|nemotron_?nano_(9|12)|t5|bert|e5_|embedding|reranker|hf_auto")
_STRATEGY = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "expert_tensor_parallel_size": "expert_tensor_parallel_size",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
"""Megatron-LM's names of what MegatronStrategy calls otherwise."""
_ARGUMENTS = {
    "num_nodes": "num_nodes",
    "num_gpus_per_node": "devices",
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "virtual_pipeline_parallelism": "virtual_pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "sequence_parallelism": "sequence_parallel",
    "precision": "precision",
    "seq_length": "seq_length",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
}
"""What functions under ``nemo/collections/llm/recipes`` take (``nemotron3_8b.py`` nearly all of it)."""
_READ_ARGUMENTS = {"performance_mode", "packed_sequence", "peft_scheme"}
_OTHER_ARGUMENTS = {"name", "dir", "resume_path", "fn", "pipeline_parallelism_type"}
_SECTIONS = ("trainer.strategy.", "model.config.", "optim.config.", "data.", "trainer.plugins.", "trainer.")
_KNOWN = frozenset(
    [
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "sequence_parallel",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "fsdp",
        "devices",
        "num_nodes",
        "micro_batch_size",
        "global_batch_size",
        "seq_length",
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "recompute_modules",
        "cross_entropy_loss_fusion",
        "optimizer",
        "use_distributed_optimizer",
        "precision",
        "grad_reduce_in_fp32",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "mtp_num_layers",
        "fp8",
    ]
) | set(_STRATEGY)
_ELSEWHERE = re.compile(
    r"lr|(max|min|warmup|constant)_\w+|weight_decay|adam_\w+|clip_grad|val_check_interval|limit_\w+|log\w*|ckpt_\w+|"
    r"save_\w+|paths|split|seed|num_workers|tokenizer\w*|callbacks|enable_checkpointing|dataset_\w+|index_\w+|profiler|"
    r"accelerator|use_distributed_sampler|path|delete_raw|pad_\w+|hidden_dropout|attention_dropout|"
    r"accumulate_grad_batches"
)
"""Settings that leave memory as it is."""


def recipe_plan(inputs: PlanInputs) -> TrainingPlan:
    """The plan of ``nemo llm pretrain`` or ``nemo llm finetune``.

    Raises:
        PlanError: no recipe is named, it is not known, or it has no formulas.
    """
    fields = Fields(inputs.settings)
    verb = _verb(fields)
    name, arguments = _factory(fields)
    recipe = recipes().get(name)
    if _NO_FORMULAS.search(name):
        raise PlanError(
            f"the recipe {name[:60]} is none of a decoder of attention alone, and has no formulas; run it instead"
        )
    if recipe is None:
        near = difflib.get_close_matches(name, recipes(), 3)
        raise PlanError(f"{name[:60]!r} is no recipe of NeMo that is known here{_nearest(near)}; give one by --factory")
    low_rank, kind = _tuning(fields, verb, arguments)
    own = recipe.get(kind) or recipe.get("full") or recipe.get("lora")
    if own is None:
        raise PlanError(f"the recipe {name[:60]} has no settings for {verb}; give another one")
    settings = {**own, **_of_arguments(arguments, verb), **_overrides(fields)}
    words = Fields(settings)
    model, dimensions = _model(str(recipe["model"]))
    world = inputs.world_size or words.whole("devices", default=8) * max(1, words.whole("num_nodes", default=1))
    _not_understood(fields, words)
    _arguments_left_out(arguments, words)
    plan = nemo_plan({**_megatron(words), **dimensions}, model, world, words.unknown)
    if not low_rank:
        return plan
    peft = {**(own.get("peft") or {}), **_section(fields, "peft.")}
    tuned = Fields(peft)
    return with_adapter(plan, tuned.whole("dim", default=32), tuned.name_list("target_modules"), dropout=False)


def processes(inputs: PlanInputs) -> int | None:
    """Of a recipe, its nodes times its devices. Raises PlanError for values that cannot be."""
    fields = Fields(inputs.settings)
    name, arguments = _factory(fields)
    verb = _verb(fields)
    recipe = recipes().get(name) or {}
    own = recipe.get(_tuning(fields, verb, arguments)[1]) or {}
    words = Fields({**own, **_of_arguments(arguments, verb), **_overrides(fields)})
    return words.whole("devices", default=8) * max(1, words.whole("num_nodes", default=1)) if own else None


def _verb(fields: Fields) -> str:
    words = [word for word in fields.positional() if word != "llm"]
    verb = words[0] if words else ""
    if verb not in ("pretrain", "finetune", "train"):
        raise PlanError(f"nemo {verb[:40] or 'alone'} does not train; give nemo llm pretrain or nemo llm finetune")
    return verb


def _factory(fields: Fields) -> tuple[str, dict[str, Any]]:
    """The recipe's name and what it is called with: ``llama3_8b(num_nodes=2)``, read as Python, never run."""
    text = fields.text("factory", "f", "recipe", "model")
    if not text:
        raise PlanError("no recipe is named; give --factory, such as --factory llama3_8b")
    try:
        tree = ast.parse(text[:2000], mode="eval").body if len(text) <= 2000 else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if isinstance(tree, ast.Name):
        return tree.id, {}
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        given = {str(word.arg or "**"): word.value for word in tree.keywords}
        given |= {f"argument {number}": value for number, value in enumerate(tree.args, 1)}
        # What is no literal is kept as what it is not.
        return tree.func.id, {
            name: value.value if isinstance(value, ast.Constant) else ... for name, value in given.items()
        }
    raise PlanError(f"the recipe {text[:60]!r} is no name with arguments; give --factory NAME(num_nodes=2)")


def _tuning(fields: Fields, verb: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether adapters are trained, and whose settings count."""
    if verb == "pretrain":
        return False, "pretrain"
    scheme = str(fields.text("peft", default=str(arguments.get("peft_scheme", "lora")))).lower()
    low_rank = scheme not in ("none", "null", "false", "")
    return low_rank, "lora" if low_rank else "full"


def _of_arguments(arguments: Mapping[str, Any], verb: str) -> dict[str, Any]:
    result = {
        _ARGUMENTS[name]: value
        for name, value in arguments.items()
        if name in _ARGUMENTS and value is not None and value is not ...
    }
    if arguments.get("performance_mode") is True and verb == "pretrain":
        result["grad_reduce_in_fp32"] = False
    if arguments.get("packed_sequence") and "seq_length" not in result:
        result["seq_length"] = 4096
    return result


def _overrides(fields: Fields) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for prefix in reversed(_SECTIONS):
        result |= {name: value for name, value in _section(fields, prefix).items() if "." not in name}
    return result


def _section(fields: Fields, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): fields.raw(name) for name in fields.names() if name.startswith(prefix)}


def _not_understood(fields: Fields, words: Fields) -> None:
    """Settings under what decides memory, that nothing here reads: said, with the nearest that is read."""
    for prefix in ("trainer.strategy.", "model.config.", "optim.config.", "data.", "peft."):
        for name in _section(fields, prefix):
            leaf = name.rpartition(".")[2]
            known = leaf in _KNOWN or leaf in ("dim", "target_modules", "alpha", "dropout")
            if known or _ELSEWHERE.fullmatch(leaf):
                continue
            near = _nearest(difflib.get_close_matches(leaf, sorted(_KNOWN), 2, 0.5))
            words.assume(f"{prefix}{name}", f"{prefix}{name[:60]} is not understood and left out{near}")


def _arguments_left_out(arguments: Mapping[str, Any], words: Fields) -> None:
    """The recipe's arguments that nothing here reads, and those that are no literals."""
    for name, value in arguments.items():
        known = name in _ARGUMENTS or name in _READ_ARGUMENTS
        if known and value is ...:
            words.assume(name, f"{name[:60]} of the recipe is no number or word and left out")
        elif not known and name not in _OTHER_ARGUMENTS and not _ELSEWHERE.fullmatch(name):
            near = _nearest(difflib.get_close_matches(name, sorted(_ARGUMENTS), 2, 0.5))
            words.assume(name, f"{name[:60]} of the recipe is not understood and left out{near}")


def _nearest(names: list[str]) -> str:
    return f" (nearest: {', '.join(names)})" if names else ""


def _model(name: str) -> tuple[ModelShape | None, dict[str, Any]]:
    known = _CLASSES.get(name, name)
    if isinstance(known, dict):
        return None, {"group_query_attention": "num_query_groups" in known, **known}
    return find_language_model(known), {}


def _megatron(words: Fields) -> dict[str, Any]:
    """A recipe's settings in Megatron-LM's names."""
    precision = words.text("precision", default="bf16-mixed")
    shards = words.text("fsdp").lower()
    result: dict[str, Any] = {
        name: words.raw(name) for name in words.names() if name not in ("peft", "precision", "fsdp")
    }
    result |= {ours: words.raw(theirs) for theirs, ours in _STRATEGY.items() if words.raw(theirs) not in (None, "None")}
    half = "bf16" if "bf16" in precision else "fp16" if "16" in precision else "fp32"
    return result | {
        half: True,
        "hidden_dropout": 0,
        "attention_dropout": 0,
        "group_query_attention": words.has("num_query_groups"),
        "grad_reduce_in_bf16": half == "bf16" and not words.flag("grad_reduce_in_fp32", default=True),
        "cross_entropy_loss_fusion": words.flag("cross_entropy_loss_fusion", default=True),
        "use_megatron_fsdp": shards not in ("", "none", "null"),
        "moe_grouped_gemm": True,
    }


@cache
def recipes() -> dict[str, dict[str, Any]]:
    # As torchtune's: no installed package can be imported where strangers' sources are read.
    import orjson

    result: dict[str, dict[str, Any]] = orjson.loads(files(__package__).joinpath("recipes.json").read_bytes())
    return result
