"""The page of capacity in words: what to buy of each pool, by when, and what it would have changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kopt.core.reason import Reason
from kopt.core.reason_codes.catalogue import reason_codes
from kopt.core.units import counted
from kopt.dashboard.formatting import NONE
from kopt.dashboard.pages.capacity.data import REPLAY_EVERY_S, SINCE_S, Capacity, PoolNeed, Replayed
from kopt.dashboard.pages.capacity.figure import capacity_figure
from kopt.dashboard.pages.capacity.questions import Asked, Progress
from kopt.policies.capacity.advice import CapacitySettings, PoolAdvice, advise, begin_s, month_cost
from kopt.policies.capacity.purchase import RISK
from kopt.simulator.what_if.answer import HEADINGS, Figure, WhatIf

MOST_POOLS = 20
DELIVERIES: Sequence[int] = (0, 4, 8, 12, 26)
"""Weeks from an order to GPUs that can be used, which the reader may choose from."""
DELIVERY = CapacitySettings().delivery_weeks
DISTRUSTED = (
    "WHAT_IF_WAITS_UNKNOWN",
    "WHAT_IF_POOL_TOO_SMALL",
    "WHAT_IF_TOO_FEW_WAITS",
    "WHAT_IF_WAITS_NOT_FOR_GPUS",
    "WHAT_IF_REPLAY_OFF",
)
"""Why changes of waits are not to be trusted, in the order in which it is looked for."""
REPLAYED = f"Replayed in the background, anew every {REPLAY_EVERY_S / 3600:.0f} hours and when the advice changes."
_WAITS = frozenset({"median wait", "mean wait", "95 % wait up to"})


def advised_for(code: str) -> str:
    """What to do, by the catalogue of codes, whose commands stand between backquotes."""
    return " ".join(meaning.do for meaning in reason_codes().get(code, ())).replace("`", "")


@dataclass(frozen=True)
class FigureRow:
    """``cells`` as ``HEADINGS`` has them; ``is_doubtful`` where the replay does not hold."""

    cells: tuple[str, ...]
    is_doubtful: bool


@dataclass(frozen=True)
class WhatIfSection:
    """What a purchase of ``gpus`` would have changed. ``state`` is ``trusted``, ``doubtful``, ``failed`` or
    ``replaying``; ``is_old`` where another purchase is advised by now."""

    gpus: int
    state: str
    reason: Reason | None = None
    text: str = ""
    do: str = ""
    basis: str = ""
    rows: tuple[FigureRow, ...] = ()
    assumptions: tuple[str, ...] = ()
    at_s: float | None = None
    is_old: bool = False
    holds_use: bool = True
    """Whether utilisation and costs can be trusted, which a pool of another size makes wrong as well."""


@dataclass(frozen=True)
class PoolCard:
    """A pool in words. ``buy`` is empty where nothing is advised, ``needed`` where nothing is forecast; ``is_due``: to
    order now; ``chart_text`` is the picture in words."""

    name: str
    model: str
    gpus: str
    last_week: str
    needed: str
    interval: str
    buy: str
    buy_interval: str
    short_s: float | None
    order_s: float | None
    is_due: bool
    month: str
    reason: Reason
    figure: go.Figure
    chart_text: str
    what_if: WhatIfSection | None


@dataclass(frozen=True)
class CapacityPage:
    capacity: Capacity
    cards: tuple[PoolCard, ...]
    omitted: int
    buy: str
    month: str
    order_s: float | None
    is_due: bool
    assumptions: tuple[str, ...]
    headings: tuple[str, ...] = HEADINGS
    replayed: str = REPLAYED
    distrusted: tuple[tuple[str, str], ...] = tuple((code, advised_for(code)) for code in DISTRUSTED)
    """Codes, and what to do about each."""


def capacity_page(capacity: Capacity, delivery_weeks: int = DELIVERY) -> CapacityPage:
    """Pools for which most money is advised to be spent come first."""
    settings = CapacitySettings(delivery_weeks=delivery_weeks)
    advised = [(need, advise(need.needs, need.size, settings)) for need in capacity.pools]
    advised.sort(key=lambda each: (-(_month(*each) or 0.0), -each[1].buy_gpus, each[0].pool))
    cards = tuple(_card(need, advice, capacity) for need, advice in advised[:MOST_POOLS])
    months = [cost for each in advised if (cost := _month(*each)) is not None]
    orders = [card.order_s for card in cards if card.order_s is not None]
    return CapacityPage(
        capacity,
        cards,
        len(advised) - len(cards),
        f"{sum(each[1].buy_gpus for each in advised):,}",
        f"{sum(months):,.0f}" if months else NONE,
        min(orders, default=None),
        any(card.is_due for card in cards),
        _assumptions(settings),
    )


def _assumptions(settings: CapacitySettings) -> tuple[str, ...]:
    return (
        f"By {SINCE_S / 604_800:.0f} weeks of demand at most, used and waited for (Kueue); "
        f"{counted(settings.weeks, 'week')} ahead.",
        f"A week needs what is enough in {settings.served:.0%} of its hours. A pool is short in the first week that "
        f"needs more than it has with a probability above {RISK:.0%}; whole nodes are bought.",
        "Demand goes on as it changed so far: no project that begins or ends is known, and no season.",
        "What waits counts for as long as it waits, so a pool that is short for long shows more than it would need if "
        "it were not: buy in steps, and look again.",
    )


def _month(need: PoolNeed, advice: PoolAdvice) -> float | None:
    return month_cost(need.price, advice.buy_gpus)


def _card(need: PoolNeed, advice: PoolAdvice, capacity: Capacity) -> PoolCard:
    end_s, last = capacity.end_s, advice.ahead[-1] if advice.ahead else None
    buy_gpus, bought = advice.buy_gpus, advice.purchase
    month = _month(need, advice)
    order_weeks = bought.order_in_weeks if bought is not None and buy_gpus else None
    short_weeks = bought.short_in_weeks if bought is not None and buy_gpus else None
    return PoolCard(
        need.pool,
        need.size.model,
        f"{need.size.gpus:,}" if need.size.gpus else NONE,
        _gpus(advice.last_week),
        "" if last is None else _gpus(last.quantile(0.5)),
        "" if last is None else f"{last.gpus[0]:,.0f} – {last.gpus[-1]:,.0f}",
        f"{buy_gpus:,}" if buy_gpus else "",
        f"{bought.buy_low:,} – {bought.buy_high:,}" if bought is not None and bought.buy_high else "",
        None if short_weeks is None else begin_s(end_s, short_weeks),
        None if order_weeks is None else begin_s(end_s, order_weeks),
        order_weeks == 0,
        "" if month is None else f"{month:,.0f}",
        advice.reason,
        capacity_figure(need.pool, need.needs, end_s, advice),
        _chart_text(need, advice),
        _what_if(need, buy_gpus, capacity) if buy_gpus else None,
    )


def _gpus(number: float | None) -> str:
    return NONE if number is None else f"{number:,.0f}"


def _chart_text(need: PoolNeed, advice: PoolAdvice) -> str:
    measured = [each for each in need.needs if each is not None]
    past = f"{counted(len(measured), 'week')} needed up to {_gpus(max(measured, default=None))} GPUs"
    if not advice.ahead:
        return past
    last = advice.ahead[-1]
    ahead = f"{_gpus(last.quantile(0.5))} ({last.gpus[0]:,.0f} to {last.gpus[-1]:,.0f})"
    return f"{past}; in {counted(last.weeks, 'week')} {ahead} are needed, of {advice.gpus:,}"


def _what_if(need: PoolNeed, buy_gpus: int, capacity: Capacity) -> WhatIfSection:
    replayed = capacity.replayed.get(need.pool)
    if replayed is None:
        return WhatIfSection(buy_gpus, "replaying")
    bought = replayed.question.buy_gpus
    is_old = (replayed.question.gpus, bought) != (need.size.gpus, buy_gpus)
    if replayed.answer is None:
        at_s = replayed.at_s or None
        return WhatIfSection(bought, "failed", text=replayed.problem, at_s=at_s, is_old=is_old)
    return _section(replayed, replayed.answer, is_old=is_old)


def _section(replayed: Replayed, answer: WhatIf, *, is_old: bool) -> WhatIfSection:
    check = answer.check
    trusted = check.is_trusted
    basis = f"{counted(check.jobs, 'job')} of {counted(check.days, 'day')}, started in the order {check.order}"
    rows = tuple(_row(figure, trusted=trusted) for figure in answer.figures if _is_shown(figure))
    return WhatIfSection(
        replayed.question.buy_gpus,
        "trusted" if trusted else "doubtful",
        check.reason,
        check.reason.message,
        "" if trusted else advised_for(check.reason.code),
        basis,
        rows,
        answer.assumptions,
        replayed.at_s,
        is_old,
        check.reason.code != "WHAT_IF_POOL_TOO_SMALL",
    )


def _is_shown(figure: Figure) -> bool:
    """What never fits is the same with more GPUs, or less: it is shown where there is any."""
    return not figure.what.endswith("never fit") or bool(figure.as_is or figure.what_if)


@dataclass(frozen=True)
class AskedSection:
    """A reader's own question. ``text`` says how far it is; ``what_if`` is there once it is answered."""

    pool: str
    gpus: int
    from_s: float | None
    progress: str
    text: str
    what_if: WhatIfSection | None


def asked_section(asked: Asked, ahead: int) -> AskedSection:
    question = asked.question
    what_if, text = None, ""
    if asked.progress is not Progress.DONE:
        text = "The jobs that ran are being replayed: it takes seconds, sometimes minutes."
        if ahead:
            text = f"{counted(ahead, 'question')} of others come first."
    elif asked.answer is None:
        text = f"No answer: {asked.problem}"
    else:
        replayed = Replayed(question, asked.at_s, asked.answer)
        what_if = _section(replayed, asked.answer, is_old=False)
    return AskedSection(question.pool, question.buy_gpus, question.from_s, asked.progress.value, text, what_if)


def _row(figure: Figure, *, trusted: bool) -> FigureRow:
    return FigureRow(figure.cells(), not trusted and figure.what in _WAITS)
