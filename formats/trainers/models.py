"""The model of a trainer's settings: by name, by its configuration, or by dimensions given one by one."""

import re
from collections.abc import Mapping
from typing import Any

from kopt.core.workload.language_models import UnknownModelError, find_language_model, shape_of_config
from kopt.core.workload.training_plan import ModelShape, PlanError
from kopt.formats.trainers.fields import Fields

NAMES = (
    "model_name_or_path",
    "model_id",
    "model",
    "base_model",
    "model_path",
    "checkpoint_dir",
    "pretrained_model_name_or_path",
)


def model_of(fields: Fields, *names: str, config: Mapping[str, Any] | None = None) -> ModelShape:
    """The dimensions of the model that ``names`` (default: the usual ones) name.

    ``config`` is the model's own decoded config.json where the caller has it.

    Raises:
        PlanError: none is named, or its dimensions are not known; the message says what to give.
    """
    name = fields.text(*(names or NAMES))
    if config is not None:
        return shape_of_config(config, name)
    if name in ("", "True"):
        if fields.has("hidden_size", "n_embd", "dim"):
            dimensions = {key: fields.raw(key) for key in _DIMENSIONS if fields.has(key)}
            return shape_of_config({key: _number(value) for key, value in dimensions.items()}, "the model")
        raise PlanError(
            f"no model is named; give {names[0] if names else 'model_name_or_path'} or the model's config.json"
        )
    try:
        return find_language_model(name)
    except UnknownModelError:
        if (gap := _GAP.search(name)) is None:
            raise
        problem = f"the model is {name[:80]!r}, and the command does not say what {gap[0]} is; give its value"
        raise PlanError(problem) from None


def beside(fields: Fields, role: str, name: str, like: ModelShape) -> ModelShape:
    """The model of another role in the same training; where nothing is known of it, as large as ``like``."""
    try:
        return find_language_model(name) if name else like
    except UnknownModelError:
        fields.assume(
            role, f"the dimensions of {name[:80]!r} ({role}) are not known: taken as those of {like.name[:80]!r}"
        )
        return like


_GAP = re.compile(r"\$\w+|<[^>]*>")
"""A variable that is not set, or a document's placeholder."""
_DIMENSIONS = (
    "hidden_size",
    "n_embd",
    "dim",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "n_kv_heads",
    "intermediate_size",
    "ffn_dim",
    "vocab_size",
    "padded_vocab_size",
    "head_dim",
    "tie_word_embeddings",
)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12 else value
