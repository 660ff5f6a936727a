"""The page of sizes: what job types ask for, what they need, why, and the patch that says so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.units import format_bytes
from kopt.dashboard.pages.sizes.data import Sizes
from kopt.dashboard.rendering import pretty
from kopt.serving.contract.size_advice import SizeAdvice, saved_together

MOST_CARDS = 48
BAR_WIDTH = 300.0


@dataclass(frozen=True)
class Part:
    """One role's memory: its place and width in the bar, in its pixels."""

    name: str
    size_text: str
    x: float
    width: float


@dataclass(frozen=True)
class Card:
    """One job type in words. ``parts`` fill the bar up to the expected peak; ``low`` and ``high`` are its whiskers."""

    advice: SizeAdvice
    requested: str
    needed: str
    peak: str
    interval: str
    saved: str
    parts: tuple[Part, ...]
    low: float
    high: float
    patch: str
    patched_parts: str
    """Into what the patch is merged."""


@dataclass(frozen=True)
class Recommendations:
    """``cards`` are the newest of ``matching``; ``saved`` the GPUs that all of them together would give back."""

    cards: tuple[Card, ...]
    matching: int
    total: int
    saved: str
    problem: str = ""


def recommendations(sizes: Sizes, text: str = "") -> Recommendations:
    """What the page shows of the job types whose name or command holds ``text``."""
    wanted = text.casefold()
    size_advices = [
        size_advice
        for size_advice in sizes.sizes
        if wanted in size_advice.name.casefold() or wanted in size_advice.script.casefold()
    ]
    saved = saved_together(size_advice.saved_milli_gpu for size_advice in size_advices)
    cards = tuple(_card(size_advice) for size_advice in size_advices[:MOST_CARDS])
    return Recommendations(cards, len(size_advices), len(sizes.sizes), _gpus(saved), sizes.problem)


def _card(size_advice: SizeAdvice) -> Card:
    requested, saved, patch = size_advice.requested_milli_gpu, size_advice.saved_milli_gpu, size_advice.patch()
    scale = BAR_WIDTH / max(1, size_advice.high_bytes or 1)
    return Card(
        size_advice,
        "nothing said" if requested is None else _gpus(requested),
        size_advice.advised,
        "" if size_advice.peak_bytes is None else format_bytes(size_advice.peak_bytes),
        f"{format_bytes(size_advice.low_bytes)} to {format_bytes(size_advice.high_bytes)}"
        if size_advice.low_bytes is not None and size_advice.high_bytes is not None
        else "not known",
        "" if saved is None else _saving(saved),
        _parts(size_advice, scale),
        (size_advice.low_bytes or 0) * scale,
        (size_advice.high_bytes or 0) * scale,
        "" if patch is None else pretty(patch),
        _places(patch or {}),
    )


def _parts(size_advice: SizeAdvice, scale: float) -> tuple[Part, ...]:
    """Roles at the peak, largest roles as they are listed; the code's parts may pass the corrected peak slightly."""
    if size_advice.peak_bytes is None:
        return ()
    parts, x = [], 0.0
    shrink = min(1.0, size_advice.peak_bytes / max(1, sum(size_advice.breakdown.values())))
    for name, amount in size_advice.breakdown.items():
        width = amount * shrink * scale
        if amount > 0:
            parts.append(Part(name, format_bytes(amount), round(x, 2), round(width, 2)))
        x += width
    return tuple(parts)


def _places(patch: Mapping[str, Any]) -> str:
    parts = {"metadata": "the pod template", "resources": "the container with the GPU"}
    return " and ".join(name for part, name in parts.items() if part in patch)


def _saving(milli: int) -> str:
    if milli == 0:
        return "as asked"
    return f"{_gpus(milli)} given back" if milli > 0 else f"{_gpus(-milli)} more than asked"


def _gpus(milli: int) -> str:
    return f"{round(milli / 1000, 2):g} GPU{'' if milli == 1000 else 's'}"
