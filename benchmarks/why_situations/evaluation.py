"""How many causes are right, and how many changes hold when they are made."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.why_situations import gangs, kueue, nodes
from benchmarks.why_situations.objects import Constructed
from benchmarks.why_situations.reading import diagnosis_of
from benchmarks.why_situations.redo import fits, redone
from kopt.core.scheduling.diagnosis import Change, ChangeKind, Diagnosis

MAKERS: tuple[Callable[[random.Random], Constructed], ...] = (*nodes.KUBE, *kueue.MAKERS, *gangs.MAKERS)
_COUNTED = {ChangeKind.FEWER_GPUS: 1, ChangeKind.FEWER_PODS: 1}


@dataclass
class Score:
    """Of one engine. ``smallest``: of the changes that count something, those after which one more does not fit."""

    situations: int = 0
    right: int = 0
    right_by_messages: int = 0
    changes: int = 0
    hold: int = 0
    counted: int = 0
    smallest: int = 0
    silent: int = 0
    """Situations that already fit by the plain check, though they are constructed not to."""
    wrong: Counter[str] = field(default_factory=Counter)


def situations(each: int, makers: Iterable[Callable[[random.Random], Constructed]] = MAKERS) -> list[Constructed]:
    """``each`` of every kind, the same ones every time."""
    return [make(random.Random(f"{make.__name__} {number}")) for make in makers for number in range(each)]


def scores(constructed: Sequence[Constructed]) -> dict[str, Score]:
    result: dict[str, Score] = {}
    for situation in constructed:
        score = result.setdefault(situation.engine, Score())
        _add(score, situation, asyncio.run(diagnosis_of(situation)))
        if first_code(asyncio.run(diagnosis_of(situation, nodes=False))) in situation.right:
            score.right_by_messages += 1
    return result


def first_code(diagnosis: Diagnosis | None) -> str:
    return str(diagnosis.causes[0].code) if diagnosis is not None and diagnosis.causes else "nothing"


def _add(score: Score, situation: Constructed, diagnosis: Diagnosis | None) -> None:
    score.situations += 1
    if first_code(diagnosis) in situation.right:
        score.right += 1
    else:
        score.wrong[f"{situation.label} as {first_code(diagnosis)}"] += 1
    for change in diagnosis.changes if diagnosis is not None else ():
        score.changes += 1
        holds = fits(redone(situation, change))
        score.hold += holds
        if not holds:
            score.wrong[f"{situation.label}: {change.kind} does not hold"] += 1
        if change.kind in _COUNTED:
            score.counted += 1
            score.smallest += not _fits_with_more(situation, change)
    if diagnosis is not None and diagnosis.changes:
        score.silent += fits(situation)


def _fits_with_more(situation: Constructed, change: Change) -> bool:
    """Whether one GPU, or one pod, more than the change leaves would fit, too."""
    more = int(change.after) + 1
    if more == int(change.before):
        return fits(situation)
    patch = tuple({**operation, "value": type(operation["value"])(more)} for operation in change.patch)
    return fits(redone(situation, replace(change, patch=patch)))
