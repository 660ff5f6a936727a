"""Trainers and servers that are known by their command: which one it is and where its configuration lies."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from kopt.formats.entrypoint.found import Entrypoint, Kind

_COMMANDS = {
    "vllm": "vllm", "sglang": "sglang", "text-generation-launcher": "tgi", "text-generation-server": "tgi",
    "litgpt": "litgpt", "axolotl": "axolotl", "llamafactory-cli": "llamafactory", "lmf": "llamafactory",
    "swift": "ms-swift", "megatron": "ms-swift", "trl": "hf", "tune": "torchtune", "autotrain": "hf",
}  # fmt: skip
_MODULES = (
    ("vllm.", "vllm"), ("sglang.", "sglang"), ("text_generation_server", "tgi"), ("litgpt", "litgpt"),
    ("axolotl.", "axolotl"), ("llamafactory", "llamafactory"), ("swift.", "ms-swift"), ("torchtitan", "torchtitan"),
    ("torchtune", "torchtune"), ("megatron.", "megatron"),
)  # fmt: skip
_MEGATRON_SCRIPT = re.compile(
    r"(pretrain|train)_(gpt|bert|t5|llama|mamba|vlm|ict|vision\w*|retro|hybrid|mixtral|qwen)\w*\.py"
)
_FSDP_QLORA_ONLY = {"--train_type", "--context_length", "--sharding_strategy", "--use_cpu_offload"}
_HF_ONLY = {"--model_name_or_path", "--per_device_train_batch_size", "--output_dir"}
_CONFIG_OPTIONS = {
    "torchtune": ("--config",), "litgpt": ("--config",), "deepspeed": ("--deepspeed_config",),
    "torchtitan": ("--job.config_file", "--job.config-file", "--config_file", "--config"),
    "vllm": ("--config",), "sglang": ("--config",), "megatron": ("--yaml-cfg", "--config"), "ms-swift": ("--config",),
    "hf": ("--config",),
}  # fmt: skip
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


def read_tool(name: str, words: Sequence[str]) -> Entrypoint | None:
    """The entrypoint of a tool's own command, None where the name is not known."""
    trainer = _COMMANDS.get(name)
    return None if trainer is None else with_trainer(Entrypoint(Kind.TOOL, name, tuple(words), trainer=trainer))


def with_trainer(found: Entrypoint) -> Entrypoint:
    """Adds which trainer's arguments these are and where its configuration file is, as far as the words tell."""
    trainer = found.trainer or _by_name(found) or _by_arguments(found.arguments)
    config = (
        _config(trainer, found.arguments)
        if trainer
        else _option(found.arguments, ("--deepspeed_config", "--deepspeed"))
    )
    if trainer is None and config is not None:
        trainer = "deepspeed"
    return replace(found, trainer=trainer, config=config)


def _by_name(found: Entrypoint) -> str | None:
    if found.kind is Kind.MODULE:
        return next((trainer for prefix, trainer in _MODULES if found.script.startswith(prefix)), None)
    path = PurePosixPath(found.script)
    if _MEGATRON_SCRIPT.fullmatch(path.name):
        return "megatron"
    parts = set(path.parts)
    for folder, trainer in (
        ("torchtitan", "torchtitan"),
        ("litgpt", "litgpt"),
        ("axolotl", "axolotl"),
        ("swift", "ms-swift"),
        ("fsdp_qlora", "fsdp-qlora"),
    ):
        if folder in parts:
            return trainer
    return None


def _by_arguments(arguments: Sequence[str]) -> str | None:
    names = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    if len(names & {"--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size"}) >= 3:
        return "megatron"
    if "--job.config_file" in names:
        return "torchtitan"
    if "--train_type" in names and len(names & _FSDP_QLORA_ONLY) >= 2:
        return "fsdp-qlora"
    return "hf" if len(names & _HF_ONLY) >= 2 else None


def _option(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names:
            given = value if equals else arguments[at + 1] if at + 1 < len(arguments) else None
            if given and given.endswith(_CONFIG_SUFFIXES):
                return given
            if given and not given.startswith("-") and name in ("--config", "--config_file", "--job.config_file"):
                return given
    return None


def _config(trainer: str, arguments: Sequence[str]) -> str | None:
    named = _option(arguments, _CONFIG_OPTIONS.get(trainer, ()))
    if named is not None or trainer not in ("axolotl", "llamafactory", "hf", "ms-swift"):
        return named
    # These take the file as a word of its own: ``axolotl train config.yaml``.
    return next((word for word in arguments if word.endswith(_CONFIG_SUFFIXES) and not word.startswith("-")), None)
