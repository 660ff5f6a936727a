"""The page of sizes: what job types ask for, what they need, why, and the patch that says so."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.core.units import format_bytes
from kopt.core.workload.gpu_count import CountPoint, GpuCountAdvice
from kopt.dashboard.pages.sizes.data import Sizes
from kopt.dashboard.rendering import pretty
from kopt.serving.contract.size_advice import SizeAdvice, saved_together

MOST_CARDS = 48
BAR_WIDTH = 300.0
CHART_HEIGHT = 60.0
TOP_EFFICIENCY = 1.25
"""Marginal efficiency at the top of the chart; a bar of more ends there."""


@dataclass(frozen=True)
class Part:
    """One role's memory: its place and width in the bar, in its pixels."""

    name: str
    size_text: str
    x: float
    width: float


@dataclass(frozen=True)
class CountBar:
    """What each further GPU up to ``gpus`` brings: a bar of the chart, in its pixels."""

    gpus: int
    x: float
    y: float
    width: float
    height: float
    useful: bool
    brings: str
    tooltip: str


@dataclass(frozen=True)
class CountChart:
    """How many of a training's GPUs are useful; ``threshold_y`` is the line below which a GPU is not."""

    count: GpuCountAdvice
    bars: tuple[CountBar, ...]
    threshold_y: float
    in_words: str
    patch: str


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
    scaling: CountChart | None = None


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
        None if size_advice.gpu_count is None else _count_chart(size_advice.gpu_count),
    )


def _count_chart(count: GpuCountAdvice) -> CountChart | None:
    if not count.points:
        return None
    step = BAR_WIDTH / len(count.points)
    bars = tuple(_count_bar(point, at * step, step, count) for at, point in enumerate(count.points))
    line = CHART_HEIGHT * (1 - count.threshold / TOP_EFFICIENCY)
    patch = json.dumps([dict(operation) for operation in count.patch], indent=2) if count.patch else ""
    return CountChart(count, bars, round(line, 2), count.in_words, patch)


def _count_bar(point: CountPoint, x: float, step: float, count: GpuCountAdvice) -> CountBar:
    share = min(TOP_EFFICIENCY, max(0.0, point.marginal_efficiency))
    height = CHART_HEIGHT * share / TOP_EFFICIENCY
    brings = f"{point.marginal_efficiency:.0%}"
    tooltip = (
        f"{point.gpus} GPUs: each further one brings {brings}\n{point.split}\n"
        f"a step takes {point.step_seconds:.3g} s ({point.step_low_seconds:.3g} to {point.step_high_seconds:.3g})"
    )
    useful = point.gpus <= (count.useful_gpus or 0)
    left, top = round(x + 0.15 * step, 2), round(CHART_HEIGHT - height, 2)
    return CountBar(
        point.gpus,
        left,
        top,
        round(0.7 * step, 2),
        round(height, 2),
        useful,
        f"{point.marginal_efficiency:.0%}",
        tooltip,
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
