"""How much a few probes of a machine that the model has never seen help its other answers.

A machine here is one of an unseen class with one software profile and one kind of card. Its probes are sizes of one
question, as a pairwise benchmark gives them: two nodes (the whole node where there is only one), all-reduce where it
was measured, the most GPUs; of several measurements of a size the median. k of eight sizes are given, spread by their
logarithms; the errors are those of all other rows, the same for every k.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.bandwidth_answers import Answer, error, inside, quantile, weights
from benchmarks.tables import markdown
from kopt.core.hardware.bandwidth import Collective
from kopt.models.bandwidth.calibration import Calibration, Probe
from kopt.models.bandwidth.intervals import Regime, regime
from kopt.models.bandwidth.predictor import doubt_of

SIZES = {0: (), 1: (28,), 3: (16, 22, 28), 8: (10, 13, 16, 19, 22, 25, 28, 31)}
"""log2 of the bytes that are probed, by how many."""
_FIRST = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.SENDRECV)
_WHICH = ("the question that was probed, other sizes", "other collectives or GPUs", "other numbers of nodes")
_WORDS = {Regime.LARGE: "≥ 64 MiB", Regime.MIDDLE: "1-64 MiB", Regime.LATENCY: "≤ 64 KiB"}

Cell = tuple[int, int, Collective]
"""GPUs per node, nodes, collective."""


@dataclass(frozen=True)
class _Told:
    """An answer after the probes. ``which`` is a place in ``_WHICH``."""

    answer: Answer
    which: int
    several: bool


def tell(title: str, answers: Sequence[Answer]) -> None:
    """Prints the table."""
    told = {k: list(_probed(answers, k)) for k in SIZES}
    machines = {one.answer.point.cell[0] for one in told[0]}
    print(f"{title}: {len(machines)} machines, median / p90 error and share inside the 90 % interval\n")
    rows = []
    for several in (False, True):
        for which, words in enumerate(_WHICH):
            for where in _WORDS:
                here = [[one.answer for one in told[k] if (one.several, one.which) == (several, which)] for k in SIZES]
                found = [_figures(part, where) for part in here]
                if all(found):
                    rows.append(("several nodes" if several else "one node", words, _WORDS[where], *found))
    print(markdown(("", "rows", "sizes", *(f"{k} probes" if k != 1 else "1 probe" for k in SIZES)), rows) + "\n")


def _figures(answers: Sequence[Answer], where: Regime) -> str:
    rows = [one for one in answers if regime(one.point.bytes) is where and (where is not Regime.MIDDLE or _mib(one))]
    if not rows:
        return ""
    each, errors = weights(rows), np.array([error(one) for one in rows])
    held = float(each @ np.array([inside(one) for one in rows]))
    return f"{quantile(errors, each, 0.5):.1%} / {quantile(errors, each, 0.9):.0%}, {held:.0%}"


def _mib(answer: Answer) -> bool:
    return answer.point.bytes >= 2**20


def _probed(answers: Sequence[Answer], k: int) -> Iterator[_Told]:
    machines = defaultdict(list)
    for one in answers:
        machines[_machine(one)].append(one)
    for rows in machines.values():
        cell = _pair(rows)
        mine = [one for one in rows if _cell(one) == cell]
        calibration = Calibration(tuple(_probe(mine, size) for size in _nearest(mine, k)))
        left_out = set(_nearest(mine, 8))
        for one in rows:
            if _cell(one) != cell or one.point.bytes not in left_out:
                which = 0 if _cell(one) == cell else 1 if one.point.cell[2] == cell[1] else 2
                yield _Told(_after(one, calibration), which, cell[1] > 1)


def _machine(one: Answer) -> tuple[object, ...]:
    gpus = one.point.gpus
    card = gpus.network.card_gbps if gpus.network is not None and gpus.nodes > 1 else 0.0
    return one.point.cell[0], gpus.software if gpus.nodes > 1 else None, card


def _cell(one: Answer) -> Cell:
    return one.point.cell[1:]


def _pair(rows: Sequence[Answer]) -> Cell:
    def order(cell: Cell) -> tuple[int, ...]:
        gpus, nodes, kind = cell
        return (nodes == 1, max(nodes, 2), _FIRST.index(kind) if kind in _FIRST else len(_FIRST), -gpus)

    return min({_cell(one) for one in rows}, key=order)


def _nearest(rows: Sequence[Answer], k: int) -> list[int]:
    there = sorted({one.point.bytes for one in rows})
    return sorted({min(there, key=lambda size: abs(math.log2(size) - at)) for at in SIZES[k]})


def _probe(rows: Sequence[Answer], size: int) -> Probe:
    same = [one for one in rows if one.point.bytes == size]
    gpus, nodes, kind = _cell(same[0])
    lacking, deviation = (float(np.median([getattr(one, name) for one in same])) for name in ("lacking", "deviation"))
    return Probe("", "", kind.value, gpus, nodes, math.log2(size), lacking, deviation)


def _after(one: Answer, calibration: Calibration) -> Answer:
    gpus, nodes, kind = _cell(one)
    added, left = calibration.correction("", "", kind, gpus, nodes, one.point.bytes, one.deviation)
    # What is unknown of the hardware is not made known by a probe.
    unknown = doubt_of(one.point.gpus)
    width = math.sqrt(max(0.0, one.spread**2 - unknown**2)) / one.deviation
    spread = math.hypot(width * left, unknown)
    faster = min(spread, one.faster + max(0.0, added))
    return replace(one, lacking=one.lacking - added, deviation=left, spread=spread, faster=faster)
