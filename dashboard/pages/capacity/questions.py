"""Questions that readers ask of the page of capacity: replayed one after the other, behind it, and kept for a while.

Each login has one question at a time, and few wait: a replay takes seconds to minutes of one process, which the
advised purchases use as well. Readers of one right see the same pools, so an answer is anybody's who asks the same.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from urllib.parse import parse_qs

from kopt.core.units import counted
from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.purchase import LONGEST_DAYS, PurchaseQuestion

MOST_QUEUED, MOST_KEPT, KEEP_S = 8, 64, 6 * 3600.0
MOST_GPUS = 100_000
_DAY_S = 86_400.0
Answered = tuple[WhatIf | None, str]
"""An answer, or the sentence why there is none."""


class QuestionError(ValueError):
    """It cannot be asked; the message is a sentence."""


class Progress(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


@dataclass
class Asked:
    """``at_s``: when it was answered."""

    question: PurchaseQuestion
    progress: Progress = Progress.QUEUED
    answer: WhatIf | None = None
    problem: str = ""
    at_s: float = 0.0


class Questions:
    """``replay`` answers one; it is called for one at a time."""

    def __init__(self, replay: Callable[[PurchaseQuestion], Awaitable[Answered]], clock: Callable[[], float]) -> None:
        self._replay, self._clock = replay, clock
        self._of: OrderedDict[str, Asked] = OrderedDict()
        self._kept: OrderedDict[PurchaseQuestion, Asked] = OrderedDict()
        self._queue: list[Asked] = []
        self._task: asyncio.Task[None] | None = None

    def ask(self, login: str, question: PurchaseQuestion) -> None:
        """Raises QuestionError where this login's last question is not answered yet, or too many wait."""
        before = self._of.get(login)
        if before is not None and before.progress is not Progress.DONE:
            raise QuestionError("Your last question is still being replayed: ask the next one when it is answered.")
        asked = self._known(question)
        if asked is None:
            if len(self._queue) >= MOST_QUEUED:
                raise QuestionError(f"{counted(MOST_QUEUED, 'question')} of others come first; ask again in a minute.")
            asked = self._kept[question] = Asked(question)
            self._queue.append(asked)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._of[login] = asked
        self._of.move_to_end(login)
        while len(self._of) > MOST_KEPT:
            self._of.popitem(last=False)
        if self._queue and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run())

    def of(self, login: str) -> Asked | None:
        """This login's last one, while it is kept."""
        asked = self._of.get(login)
        return None if asked is None or self._is_old(asked) else asked

    def ahead_of(self, asked: Asked) -> int:
        """How many are replayed before it."""
        return self._queue.index(asked) if asked in self._queue else 0

    def _known(self, question: PurchaseQuestion) -> Asked | None:
        asked = self._kept.get(question)
        # What could not be answered is tried again.
        return None if asked is None or self._is_old(asked) or asked.problem else asked

    def _is_old(self, asked: Asked) -> bool:
        return asked.progress is Progress.DONE and self._clock() >= asked.at_s + KEEP_S

    async def _run(self) -> None:
        while self._queue:
            asked = self._queue[0]
            asked.progress = Progress.RUNNING
            try:
                asked.answer, asked.problem = await self._replay(asked.question)
            finally:
                # Also where the replay has a bug: whoever asked may ask again, and others come next.
                asked.problem = asked.problem or ("" if asked.answer else "The replay failed; its log says why.")
                asked.progress, asked.at_s = Progress.DONE, self._clock()
                self._queue.pop(0)


@dataclass(frozen=True)
class PoolOffer:
    """A pool that may be asked about."""

    name: str
    gpus: int
    model: str = ""
    price: float | None = None
    is_only: bool = False


def read_question(form: str, offers: Sequence[PoolOffer], now_s: float) -> PurchaseQuestion:
    """What a form asks, which may say anything. Raises QuestionError."""
    try:
        fields = parse_qs(form, errors="replace", max_num_fields=8)
    except ValueError:
        raise QuestionError("This form has more fields than the page gave it.") from None
    offer = next((each for each in offers if each.name == _last(fields, "pool")), None)
    if offer is None:
        raise QuestionError("There is no such pool, or nobody knows its size.")
    gpus = _last(fields, "gpus").strip()
    if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 7 and 0 < int(gpus) <= MOST_GPUS):
        raise QuestionError(f"GPUs are a whole number from 1 to {MOST_GPUS:,}.")
    from_s = _day_s(_last(fields, "from").strip(), now_s)
    return PurchaseQuestion(offer.name, offer.gpus, int(gpus), offer.price, offer.is_only, from_s)


def _last(fields: Mapping[str, Sequence[str]], name: str) -> str:
    return fields.get(name, [""])[-1]


def _day_s(text: str, now_s: float) -> float | None:
    """The begin of a day (UTC). Raises QuestionError."""
    if not text:
        return None
    try:
        day_s = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise QuestionError("A day is written like 2026-01-31.") from None
    if not now_s - LONGEST_DAYS * _DAY_S <= day_s <= now_s - _DAY_S:
        raise QuestionError(
            f"The jobs that ran are replayed: the day is one of the last {LONGEST_DAYS}, and a day ago at the latest. "
            "What comes is in the charts above."
        )
    return day_s
