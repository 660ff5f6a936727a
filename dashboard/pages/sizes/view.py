"""The page of sizes: what job types ask for, what they need, why, and the patch that says so."""

from dataclasses import dataclass

from kopt.core.units import format_bytes
from kopt.dashboard.rendering import pretty
from kopt.dashboard.sources import Sizes
from kopt.serving.size_advice import SizeAdvice

SHOWN = 48
BAR_WIDTH = 300.0


@dataclass(frozen=True)
class Part:
    """One role's memory: its place and width in the bar, in its pixels."""

    name: str
    words: str
    x: float
    width: float


@dataclass(frozen=True)
class Card:
    """One job type in words. ``parts`` fill the bar up to the expected peak; ``low`` and ``high`` are its whiskers."""

    advice: SizeAdvice
    asked: str
    needed: str
    peak: str
    interval: str
    saved: str
    parts: tuple[Part, ...]
    low: float
    high: float
    patch: str
    place: str
    """Into what the patch is merged."""


@dataclass(frozen=True)
class Recommendations:
    """``cards`` are the newest of ``found``; ``saved`` the GPUs that all of them together would give back."""

    cards: tuple[Card, ...]
    found: int
    known: int
    saved: str
    problem: str = ""


def recommendations(sizes: Sizes, text: str = "") -> Recommendations:
    """What the page shows of the job types whose name or command holds ``text``."""
    wanted = text.casefold()
    found = [one for one in sizes.found if wanted in one.name.casefold() or wanted in one.script.casefold()]
    saved = sum(max(0, one.saved_milli_gpu or 0) for one in found)
    cards = tuple(_card(one) for one in found[:SHOWN])
    return Recommendations(cards, len(found), len(sizes.found), _gpus(saved), sizes.problem)


def _card(one: SizeAdvice) -> Card:
    asked, saved, patch = one.asked_milli_gpu, one.saved_milli_gpu, one.patch()
    scale = BAR_WIDTH / max(1, one.high_bytes or 1)
    return Card(
        one,
        "nothing said" if asked is None else _gpus(asked),
        one.advised, "" if one.peak_bytes is None else format_bytes(one.peak_bytes),
        f"{format_bytes(one.low_bytes)} to {format_bytes(one.high_bytes)}"
        if one.low_bytes is not None and one.high_bytes is not None else "not known",
        "" if saved is None else _saving(saved),
        _parts(one, scale), (one.low_bytes or 0) * scale, (one.high_bytes or 0) * scale,
        "" if patch is None else pretty(patch),
        "the container with the GPU" if patch is not None and "resources" in patch else "the pod template",
    )  # fmt: skip


def _parts(one: SizeAdvice, scale: float) -> tuple[Part, ...]:
    """Roles at the peak, largest roles as they are listed; the code's parts may pass the corrected peak slightly."""
    if one.peak_bytes is None:
        return ()
    found, x = [], 0.0
    shrink = min(1.0, one.peak_bytes / max(1, sum(one.breakdown.values())))
    for name, amount in one.breakdown.items():
        width = amount * shrink * scale
        if amount > 0:
            found.append(Part(name, format_bytes(amount), round(x, 2), round(width, 2)))
        x += width
    return tuple(found)


def _saving(milli: int) -> str:
    if milli == 0:
        return "as asked"
    return f"{_gpus(milli)} given back" if milli > 0 else f"{_gpus(-milli)} more than asked"


def _gpus(milli: int) -> str:
    return f"{round(milli / 1000, 2):g} GPU{'' if milli == 1000 else 's'}"
