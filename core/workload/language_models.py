"""Dimensions of well-known language models by name, as data with sources (language_models.toml).

Reading a resource of this package is its only I/O: the file is part of the code, the same on every machine.
"""

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from types import MappingProxyType
from typing import Any

from kopt.core.workload.size_in_name import shape_by_size
from kopt.core.workload.training_plan import Experts, LatentAttention, ModelShape, PlanError

# What fine-tuned and requantised copies add to a base model's name; their dimensions are the same.
_VARIANT = re.compile(
    r"-(hf|base|chat|instruct|it|pt|sft|dpo|bf16|fp16|fp8|awq|gptq|int4|int8|bnb|4bit|8bit|nf4|unsloth|gguf|deduped|"
    r"thinking|coder|math|quantized(\.w\d+a\d+)?|w4a16|w8a8|dynamic|preview|v\d+(\.\d+)?|2407|2507|\d+k)(?=-|$)"
)
_COPY = re.compile(r"^.+-(?=(llama-[23]|qwen[23]|mistral-|gemma-|phi-))")
"""What a fine-tuned copy has in front of its base model's whole name: ``hermes-3-llama-3.1-8b``."""

_SIZE = re.compile(r"(?i)\d{1,4}(\.\d{1,3})?[bm]")
_LONGEST_NAME = 1000
_SHORTEST_RELATIVE, _RELATIVE_DOUBT = 8, 1.3
"""Characters of a name that is no other word's beginning, and the factor by which a later release may differ."""


class UnknownModelError(PlanError):
    """No model of this name; the message gives the nearest names and what to give instead."""


def find_language_model(name: str) -> ModelShape:
    """The dimensions of a model named as on its page (``meta-llama/Llama-3.1-8B-Instruct``) or for short.

    Those of a model that is not in the catalogue are derived from the size that its name states, or are those of the
    release before it (``DeepSeek-V3.1``), and have a doubt.

    Raises:
        UnknownModelError: no such model, no size in the name, and no relative.
    """
    if len(name) > _LONGEST_NAME:
        raise UnknownModelError(f"{name[:40]!r}… of {len(name):,} characters is no model's name; give its config.json")
    shapes = (listed_language_model(part) or _derived(_key(part)) or _relative(_key(part)) for part in _names_in(name))
    model_shape = next((shape for shape in shapes if shape is not None), None)
    if model_shape is None:
        names = _names()
        near = ", ".join(
            dict.fromkeys(
                names[close_match].name for close_match in difflib.get_close_matches(_key(name)[:80], names, 4, 0.5)
            )
        )
        raise UnknownModelError(
            f"the dimensions of {name[:80]!r} are not known{f' (nearest: {near})' if near else ''}; "
            "give its config.json, or layers, hidden size, heads, feed-forward size and vocabulary"
        )
    return model_shape


@functools.lru_cache(maxsize=1024)
def _derived(key: str) -> ModelShape | None:
    """Kept, as the search takes milliseconds and an endpoint is asked about the same models again."""
    return shape_by_size(key, language_models().values())


def _relative(key: str) -> ModelShape | None:
    """The longest name in the catalogue that ``key`` adds a version or a word to: later releases keep dimensions."""
    names = _names()
    near = [name for name in names if len(name) >= _SHORTEST_RELATIVE and key.startswith((f"{name}-", f"{name}."))]
    return replace(names[max(near, key=len)], doubt=_RELATIVE_DOUBT) if near else None


def listed_language_model(name: str) -> ModelShape | None:
    """The dimensions in the catalogue, None where a model is not in it."""
    names = _names()
    key = _key(name)
    model_shape = names.get(key)
    while model_shape is None and (added := list(_VARIANT.finditer(key))):
        key = key[: added[-1].start()] + key[added[-1].end() :]
        model_shape = names.get(key)
    return names.get(_COPY.sub("", key)) if model_shape is None else model_shape


def _names_in(name: str) -> list[str]:
    """What may name the model in a path, the last first: ``output/Qwen3-8B/checkpoint-500``. An owner names none.

    A folder that is called by a size alone is one of those above: ``llama_hf/7B``.
    """
    parts = [part for part in name.strip().split("/") if part]
    above = ["", *parts]
    parts = [f"{above[at]}-{part}".lstrip("-") if _SIZE.fullmatch(part) else part for at, part in enumerate(parts)]
    return parts[:0:-1] + parts[:1] if len(parts) != 2 or name.startswith(("/", ".")) else parts[1:]


@functools.cache
def language_models() -> Mapping[str, ModelShape]:
    """Every model by its name."""
    return MappingProxyType({row["name"]: _shape(row) for row in _rows()})


@functools.cache
def published_parameters() -> Mapping[str, int]:
    """The number of weights that each model's page states."""
    return MappingProxyType({row["name"]: row["parameters"] for row in _rows()})


@functools.cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    text = resources.files("kopt.core.workload").joinpath("language_models.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["model"])


@functools.cache
def _names() -> Mapping[str, ModelShape]:
    shapes = language_models()
    names = {}
    for row in _rows():
        for item in (row["name"], row["hub"], *row.get("aliases", ())):
            names[_key(item)] = shapes[row["name"]]
    return names


def _key(name: str) -> str:
    """Owner, case and separators do not matter; ``Llama 2 7 B`` is ``llama-2-7b``."""
    last = name.strip().rstrip("/").rpartition("/")[2].lower()
    key = re.sub(r"[\s_]+", "-", last.removeprefix("meta-"))
    key = re.sub(r"(\d)-([bm])(?=-|$)", r"\1\2", key)
    return re.sub(r"^(code)?llama-?(\d)(?=[-.])", r"\1llama-\2", key).replace("qwen-1-8b", "qwen-1.8b")


def _shape(row: Mapping[str, Any]) -> ModelShape:
    dimensions = {
        name: value for name, value in row.items() if name not in ("hub", "aliases", "parameters", "experts", "latent")
    }
    experts = Experts(*row["experts"]) if "experts" in row else None
    latent = LatentAttention(*row["latent"]) if "latent" in row else None
    return ModelShape(**dimensions, experts=experts, latent=latent)


def shape_of_config(config: Mapping[str, Any], name: str = "") -> ModelShape:
    """The dimensions in a decoded ``config.json`` of transformers (Llama-like and GPT-2-like keys).

    Raises:
        PlanError: a dimension is missing or is no number; the message names it.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and inner and "hidden_size" not in config:
        return shape_of_config(inner, name)  # models of several kinds of input keep the language model's apart
    hidden = _size(config, "hidden_size", "n_embd", "d_model", "dim")
    layers = _size(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    heads = _size(config, "num_attention_heads", "n_head", "num_heads", "n_heads")
    legacy = "n_embd" in config or "n_head" in config
    experts = config.get("num_local_experts") or config.get("n_routed_experts") or config.get("num_experts")
    ffn = _size(config, "intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", "ffn_dim", default=4 * hidden)
    return ModelShape(
        name=name or _name_in(config),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", "multi_query_group_num", "n_kv_heads", default=heads),
        head_dim=_size(config, "head_dim", default=max(1, hidden // max(1, heads))),
        ffn=ffn,
        vocab=_size(config, "vocab_size", "padded_vocab_size"),
        gated=not legacy
        and config.get("model_type") not in ("gpt_neox", "opt", "bloom", "falcon", "phi", "bert", "gptj"),
        tied=bool(config.get("tie_word_embeddings", legacy)),
        bias=legacy or config.get("model_type") in ("gpt_neox", "opt", "bloom", "phi", "bert"),
        positions=_size(config, "n_positions", default=0) if legacy else 0,
        experts=_experts_of_config(config, experts, ffn) if isinstance(experts, int) and experts > 1 else None,
        latent=_latent_of_config(config),
    )


def _name_in(config: Mapping[str, Any]) -> str:
    named = (config.get("_name_or_path"), config.get("model_type"))
    return next((name[:_LONGEST_NAME] for name in named if isinstance(name, str) and name), "the model")


def _latent_of_config(config: Mapping[str, Any]) -> LatentAttention | None:
    """DeepSeek's compressed keys and values."""
    if not _size(config, "kv_lora_rank", default=0):
        return None
    return LatentAttention(
        query_rank=_size(config, "q_lora_rank", default=0),
        key_value_rank=_size(config, "kv_lora_rank"),
        nope=_size(config, "qk_nope_head_dim", default=128),
        rope=_size(config, "qk_rope_head_dim", default=64),
        value=_size(config, "v_head_dim", default=128),
    )


def _experts_of_config(config: Mapping[str, Any], count: int, ffn: int) -> Experts:
    inner = _size(config, "moe_intermediate_size", default=ffn)
    shared = _size(config, "n_shared_experts", default=0) * inner
    return Experts(
        count=count,
        per_token=_size(config, "num_experts_per_tok", default=2),
        ffn=inner,
        shared_ffn=_size(config, "shared_expert_intermediate_size", default=shared),
        dense_layers=_size(config, "first_k_dense_replace", default=0),
    )


def _size(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 30:
            received = f"{value!r:.40}" if isinstance(value, str | float | bool) else f"a {type(value).__name__}"
            raise PlanError(f"{name} must be a whole number below 2^30, not {received}")
        return value
    if default is None:
        raise PlanError(f"the model's configuration has no {names[0]}; give it")
    return default
