"""Dimensions of a language model that is not in the catalogue, from the number of weights that its name states.

``Qwen3.5-4B`` has about 4 billion weights, ``Foo-30B-A3B`` thirty of which three see each token. Dimensions are those
of the catalogue's nearest model, of the same family where there are such, scaled until the weights add up.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from kopt.core.workload.training_plan import Experts, ModelShape

DOUBT = 1.5
"""The factor within which nineteen of twenty jobs stay when each model is left out of the catalogue in turn: dense
models and mixtures alike. What is left is mostly the vocabulary, which no name tells."""
_TOTAL = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z0-9])")
_ACTIVE = re.compile(r"(?<![a-z0-9.])a(\d{1,3}(?:\.\d{1,3})?)([bm])(?![a-z0-9])")
_EXPERTS = re.compile(r"(?<![a-z0-9.])(\d+e|\d+x\d+(\.\d+)?[bm])(?![a-z0-9])")
_LEAST, _MOST = 5e6, 5e12
_OTHER_FAMILY = 0.7
"""What it counts, in logarithms of sizes, that a model is of another family: these differ in words and proportions."""
_NO_FAMILY = re.compile(
    "mini|tiny|small|medium|base|large|big|nano|micro|super|ultra|pro|max|lite|flash|chat|instruct|it|hf|sft|dpo|vl|code|"
    "math|open|chinese|the|new|my|own|models?|llm|lm|text|long|distill|merged|preview|beta|alpha|ai"
)
"""Words of names that say how large or how trained a model is, and not whose (``Nemotron-Mini-4B`` is no MiniCPM)."""
_SCALES = tuple(1.02**step for step in range(-60, 61))
_BLOCK = 64


def shape_by_size(key: str, catalogue: Iterable[ModelShape]) -> ModelShape | None:
    """The dimensions that a name of lower-case words joined by dashes suggests; None where it states no size."""
    total, active = _stated(_TOTAL, key), _stated(_ACTIVE, key)
    if not _LEAST <= total <= _MOST or active >= total or _EXPERTS.search(key):
        return None
    words = _words(key)
    nearest = min(
        (shape for shape in catalogue if (shape.experts is not None) == (active > 0) and not shape.blocks),
        key=lambda shape: _distance(shape, words, total, active),
        default=None,
    )
    if nearest is None:
        return None
    scaled = _scaled_experts(nearest, total, active) if active else _scaled(nearest, total)
    return replace(scaled, name=key, doubt=DOUBT)


def _stated(pattern: re.Pattern[str], key: str) -> float:
    """Weights; the largest where a name states several, 0 where it states none."""
    return max((float(number) * (1e9 if unit == "b" else 1e6) for number, unit in pattern.findall(key)), default=0.0)


def _words(key: str) -> tuple[str, ...]:
    """Any of which may be the family's: who made a copy stands in front of it (``yahma-llama-7b``)."""
    return tuple(word for word in re.findall(r"(?<![a-z0-9])[a-z]{2,}", key) if not _NO_FAMILY.fullmatch(word))


def _distance(shape: ModelShape, words: tuple[str, ...], total: float, active: float) -> float:
    distance = abs(math.log(shape.parameters() / total))
    if active:
        distance += abs(math.log(shape.active_parameters() / active))
    return distance + (0.0 if words and _is_of(shape.name.lower(), words) else _OTHER_FAMILY)


def _is_of(name: str, words: tuple[str, ...]) -> bool:
    """Two letters are a family's name where they are all of its first word: ``yi``."""
    return name.startswith(tuple(word for word in words if len(word) > 2)) or any(
        re.match(rf"{word}(?![a-z])", name) for word in words if len(word) == 2
    )


def _scaled(shape: ModelShape, total: float) -> ModelShape:
    """Layers and widths by one factor: that which brings the weights nearest to ``total``."""
    if abs(math.log(shape.parameters() / total)) < 0.06:
        return shape  # names are rounded
    return min((_by(shape, scale) for scale in _SCALES), key=lambda item: abs(item.parameters() - total))


def _by(shape: ModelShape, scale: float) -> ModelShape:
    hidden = _blocks(shape.hidden * scale)
    heads = max(shape.kv_heads, round(shape.heads * scale / shape.kv_heads) * shape.kv_heads)
    experts = shape.experts and replace(
        shape.experts, ffn=_blocks(shape.experts.ffn * scale), shared_ffn=_blocks(shape.experts.shared_ffn * scale)
    )
    return replace(
        shape,
        layers=max(1, round(shape.layers * scale)),
        hidden=hidden,
        heads=heads,
        ffn=_blocks(shape.ffn * scale),
        experts=experts,
    )


def _scaled_experts(shape: ModelShape, total: float, active: float) -> ModelShape:
    """Widths by what sees each token, then as many experts as make up the whole."""
    sized = min((_by(shape, scale) for scale in _SCALES), key=lambda item: abs(item.active_parameters() - active))
    assert sized.experts is not None
    without = _with_experts(sized, 0).parameters()
    each = (sized.parameters() - without) / sized.experts.count
    return _with_experts(sized, max(sized.experts.per_token, round((total - without) / each)))


def _with_experts(shape: ModelShape, count: int) -> ModelShape:
    experts: Experts | None = shape.experts and replace(shape.experts, count=count)
    return replace(shape, experts=experts)


def _blocks(size: float) -> int:
    return max(1, round(size / _BLOCK)) * _BLOCK if size else 0
