"""Bandwidth of collectives against measurements: unknown machines, known ones, and what other ways say.

``KOPT_DATA_DIR/topology/bandwidth_dev.csv.gz``. *Unseen*: one machine class is left out. *Known*: one (class,
collective, GPUs) is left out, never single sizes. Errors are of the bus bandwidth from 1 MiB on, of the latency up to
64 KiB; rows weigh so that every machine counts the same, and every (machine, GPUs, nodes, collective) of a machine.
Intervals are cross-conformal: a class's widths come from the scores of the others. Classes in ``KEPT`` were never
looked at while the model was made; they are answered by a fit on the others. Rows that their source calls anomalous
are told apart. ``random`` belongs to placement and is not here.

``published_collectives.csv`` holds figures that others published of machines that are in no other data here, with their
sources; the shipped model answers them. Physics of networks were chosen on those marked ``tuned`` and, in the third
round, ``outside``; those marked ``apart`` were answered at the end of every round, those marked ``kept`` of the second
and the third, those marked ``last`` of the third alone.
"""

import copy
import csv
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bandwidth_answers import Answer, error, inside, quantile, weights
from benchmarks.bandwidth_probes import tell
from benchmarks.tables import markdown
from kopt.core.hardware.bandwidth import Collective
from kopt.models.bandwidth.calibration import Calibration
from kopt.models.bandwidth.curves import Point, answer, curves, held_out, points
from kopt.models.bandwidth.intervals import Regime, Score, faster_spread, regime, widths_of
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion, spread_of
from kopt.models.bandwidth.residual import KernelSettings, Residual
from kopt.models.bandwidth.rows import MeasuredRow, read_measured
from kopt.models.registry.loading import SHIPPED
from kopt.topology.collective_cost import analytic
from kopt.topology.hardware import HardwareRow, machine_of

KEPT = frozenset({"Azure-ND_H100_v5", "GCP-A3Mega-H100", "H800-80GB-x8", "DGX-A100", "RTX4090-x8", "MI350X-8"})
_PUBLISHED = Path(__file__).with_name("published_collectives.csv")
MINIMA_OF_LINK = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Minimum bus bandwidths asked for, as shares of the links' specification."""
_PROBES = 48
"""The most that a cluster's pairs give one machine."""
_GOALS = {
    ("known", Regime.LARGE): "5 / 12 %",
    ("unseen, one node", Regime.LARGE): "12 / 25 %",
    ("unseen, several nodes", Regime.LARGE): "20 / 40 %",
}


def main(arguments: Sequence[str] = ()) -> int:
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "topology"
    path = folder / "bandwidth_dev.csv.gz"
    if not path.is_file():
        print("KOPT_DATA_DIR names no folder with topology/bandwidth_dev.csv.gz")
        return 1 if os.environ.get("KOPT_REQUIRE_DATA") else 0
    rows = read_measured(path)
    odd = [one for one in rows if "anomal" in one.query.hardware.condition]
    plain = [one for one in rows if "anomal" not in one.query.hardware.condition]
    made = [one for one in plain if one.machine_class not in KEPT]
    kept = [one for one in plain if one.machine_class in KEPT]
    machines = len({one.machine for one in made})
    print(f"{len(made)} rows of {machines} machines, {len(kept)} of classes kept apart, {len(odd)} anomalous.\n")
    found = points(made)
    unseen = _answers(found, lambda one: one.group)
    known = _answers(found, held_out)
    again = _seen_before(known)
    _tell("Unseen classes, one node", "unseen, one node", [a for a in unseen if a.point.gpus.nodes == 1], found)
    _tell(
        "Unseen classes, several nodes", "unseen, several nodes", [a for a in unseen if a.point.gpus.nodes > 1], found
    )
    _tell("Known classes (others of their questions were seen)", "known", again, found)
    predictor = BandwidthPredictor().fit(made)
    apart = points(kept)
    answers = _by_predictor(predictor, apart)
    alone, together = _by_nodes(answers)
    _tell("Classes kept apart, one node", "unseen, one node", alone, found)
    _tell("Classes kept apart, several nodes", "unseen, several nodes", together, found)
    print(_classes([*unseen, *answers]))
    tell("Probes of unseen machines", unseen)
    tell("Probes of machines kept apart", _with_deviations(found, apart, answers))
    _tell("Anomalous rows (their source suspects the transport)", "", _by_predictor(predictor, points(odd)), found)
    _published(found)
    _speed(predictor, made)
    return 0


def _published(fitted_on: Sequence[Point]) -> None:
    """The shipped model's answers to what others measured, by (tuned or apart, one or several nodes)."""
    with _PUBLISHED.open(encoding="utf-8", newline="") as file:
        splits = {row["machine_class"]: row["split"] for row in csv.DictReader(file)}
    answers = _by_predictor(load_bandwidth(SHIPPED), points(read_measured(_PUBLISHED)))
    lines = []
    for name in ("tuned", "apart", "kept", "outside", "last"):
        for several, part in enumerate(_by_nodes([a for a in answers if splits[a.point.group] == name])):
            where = "several nodes" if several else "one node"
            _tell(f"Published elsewhere ({name}), {where}", f"unseen, {where}", part, fitted_on)
            large = [a for a in part if regime(a.point.bytes) is Regime.LARGE]
            if large:
                lines += [(name, where, *row) for row in _medians_of_classes(large, fitted_on)]
    head = (
        "published elsewhere",
        "≥ 64 MiB",
        "classes",
        "",
        "median of medians",
        "p90 of medians",
        "70 % or more inside",
    )
    print(markdown(head, lines) + "\n")
    print(_classes([a for a in answers if splits[a.point.group] not in ("tuned", "outside")]))


def _medians_of_classes(answers: Sequence[Answer], fitted_on: Sequence[Point]) -> Iterator[tuple[str, ...]]:
    """Median and 90 % quantile of the classes' median errors, and how many classes' intervals hold 70 % or more."""
    for name, said in (("kopt", answers), *_baselines(answers, fitted_on)):
        parts: dict[str, list[Answer]] = defaultdict(list)
        for item in said:
            parts[item.point.group].append(item)
        errors = [float(np.median([error(item) for item in part])) for part in parts.values()]
        held = sum(float(np.mean([inside(item) for item in part])) >= 0.7 for part in parts.values())
        inside_text = str(held) if name == "kopt" else "–"
        yield str(len(parts)), name, f"{np.median(errors):.1%}", f"{np.quantile(errors, 0.9):.0%}", inside_text


def _with_deviations(fitted_on: Sequence[Point], rows: Sequence[Point], answers: Sequence[Answer]) -> list[Answer]:
    """The predictor's answers with how sure the residual was."""
    residual = Residual.fit(curves(fitted_on).curves, KernelSettings())
    told = _asked(residual, rows)
    return [replace(one, deviation=same.deviation) for one, same in zip(answers, told, strict=True)]


def _by_nodes(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    several = [one.point.gpus.nodes > 1 for one in answers]
    return (
        [one for one, many in zip(answers, several, strict=True) if not many],
        [one for one, many in zip(answers, several, strict=True) if many],
    )


def _answers(found: Sequence[Point], of: Callable[[Point], str]) -> list[Answer]:
    """Each part answered by a fit without it; widths from the scores of the other machines."""
    labelled = curves(found)
    labels = labelled.groups if of(found[0]) == found[0].group else labelled.cells
    answers = []
    for name in sorted(set(labels.tolist())):
        residual = Residual.fit(labelled.only(labels != name), KernelSettings())
        answers += list(_asked(residual, [one for one in found if of(one) == name]))
    scores = [
        Score(a.point.group, a.point.cell, (regime(a.point.bytes).value, a.near), abs(a.lacking) / a.deviation)
        for a in answers
        if not a.point.gpus.unknown
    ]
    widths = {
        group: widths_of([one for one in scores if one.machine != group]) for group in {a.point.group for a in answers}
    }
    spreads = [spread_of(a.deviation, widths[a.point.group].at(a.point.bytes, a.near), a.point.gpus) for a in answers]
    return [
        replace(a, spread=spread, faster=faster_spread(spread, a.near, a.point.gpus.domains))
        for a, spread in zip(answers, spreads, strict=True)
    ]


def _asked(residual: Residual, rows: Sequence[Point]) -> Iterator[Answer]:
    known: dict[tuple[bytes, int], tuple[float, float, float]] = {}
    for one in rows:
        key = (one.descriptor.tobytes(), one.bytes)
        if key not in known:
            known[key] = answer(residual, one.gpus, one.descriptor, one.knot, one.share)
        mean, deviation, near = known[key]
        yield Answer(one, one.value - mean, deviation, near)


def _by_predictor(predictor: BandwidthPredictor, rows: Sequence[Point]) -> list[Answer]:
    found = []
    for one in rows:
        kind = one.cell[3]
        said = predictor.estimate_set(one.gpus, kind, one.bytes)
        took_us = analytic(one.gpus, kind, one.bytes).latency_us * np.exp(one.value)
        spread, faster = np.log(said.latency_high_us / said.latency_us), np.log(said.latency_us / said.latency_low_us)
        lacking = float(np.log(took_us / said.latency_us))
        found.append(Answer(one, lacking, spread=float(spread), faster=float(faster)))
    return found


def _seen_before(answers: Sequence[Answer]) -> list[Answer]:
    """Of classes of which something is left when one (collective, GPUs) is taken out."""
    questions = defaultdict(set)
    for one in answers:
        questions[one.point.group].add(held_out(one.point))
    return [one for one in answers if len(questions[one.point.group]) > 1]


def _tell(title: str, goal: str, answers: Sequence[Answer], fitted_on: Sequence[Point]) -> None:
    if not answers:
        return
    machines = len({a.point.cell[0] for a in answers})
    print(f"{title}: {machines} machines, {len(answers)} rows\n")
    head = ("", "sizes", "median error", "p90", "goal", "inside 90 %", "meets minimum")
    found = []
    for where in (Regime.LARGE, Regime.MIDDLE, Regime.LATENCY):
        rows = [a for a in answers if regime(a.point.bytes) is where and (where is not Regime.MIDDLE or _mib(a))]
        if not rows:
            continue
        goal_text = "25 %" if where is Regime.LATENCY else _GOALS.get((goal, where), "")
        found.append(_row("kopt", where, rows, goal_text, intervals=True))
        for name, said in _baselines(rows, fitted_on):
            found.append(_row(name, where, said, "", intervals=False))
    print(markdown(head, found) + "\n", flush=True)


def _mib(answer: Answer) -> bool:
    return answer.point.bytes >= 2**20


_SIZES = {Regime.LARGE: "≥ 64 MiB", Regime.MIDDLE: "1-64 MiB", Regime.LATENCY: "≤ 64 KiB"}


def _row(name: str, where: Regime, rows: Sequence[Answer], goal: str, *, intervals: bool) -> tuple[str, ...]:
    each = weights(rows)
    errors = np.array([error(one) for one in rows])
    held = np.array([inside(one) for one in rows])
    covered = f"{float(each @ held):.0%}" if intervals else "–"
    met = "" if where is Regime.LATENCY else f"{_meets(rows, each):.1%}"
    return (
        name,
        _SIZES[where],
        f"{quantile(errors, each, 0.5):.1%}",
        f"{quantile(errors, each, 0.9):.1%}",
        goal,
        covered,
        met,
    )


def _meets(rows: Sequence[Answer], weights: NDArray[np.float64]) -> float:
    """Share of right yes-or-no answers to "at least so much bus bandwidth?", beyond 10 % of the truth."""
    right, total = 0.0, 0.0
    for one, weight in zip(rows, weights, strict=True):
        bus = _bus(one.point)
        link = one.point.gpus.ring_gbps or one.point.gpus.network_gbps
        for share in MINIMA_OF_LINK:
            if abs(share * link / bus - 1) > 0.1:
                total += weight
                right += weight * ((bus >= share * link) == (bus * np.exp(one.lacking) >= share * link))
    return right / total if total else 1.0


def _bus(point: Point) -> float:
    """Measured bus bandwidth in GB/s."""
    took_us = analytic(point.gpus, point.cell[3], point.bytes).latency_us * float(np.exp(point.value))
    return point.bytes * point.cell[3].bus_factor(point.gpus.ranks) / took_us / 1e3


def _baselines(rows: Sequence[Answer], fitted_on: Sequence[Point]) -> Iterator[tuple[str, list[Answer]]]:
    yield "specification sheet", [_against(a, _sheet_us(a.point, 1.0, 0.0)) for a in rows]
    yield "links × 0.8 + 20 µs", [_against(a, _sheet_us(a.point, 0.8, 20.0)) for a in rows]
    lines = _lines([a.point for a in rows], lambda one: (*one.cell, one.descriptor.tobytes()))
    yield (
        "α-β, in sample",
        [_against(a, lines[(*a.point.cell, a.point.descriptor.tobytes())] @ _ab(a.point)) for a in rows],
    )
    groups = {a.point.group for a in rows}
    others = {
        group: _lines(
            [p for p in fitted_on if p.group != group and regime(p.bytes) is regime(rows[0].point.bytes)], _kin
        )
        for group in groups
    }
    yield (
        "α-β of like hardware",
        [_against(a, others[a.point.group].get(_kin(a.point), np.array([20.0, 1.25])) @ _ab(a.point)) for a in rows],
    )


def _kin(point: Point) -> tuple[object, ...]:
    return (point.gpus.way, point.gpus.gpu.vendor, point.gpus.domains > 1, point.cell[3])


def _sheet_gbps(point: Point) -> float:
    """min(links, network cards) as vendors state them."""
    inside = point.gpus.gpu.link_gbps or point.gpus.gpu.pcie_gbps
    return min(inside, point.gpus.network_gbps) if point.gpus.domains > 1 else inside


def _sheet_us(point: Point, share: float, alpha_us: float) -> float:
    factor = point.cell[3].bus_factor(point.gpus.ranks)
    return alpha_us + point.bytes * factor / (_sheet_gbps(point) * share * 1e3)


def _ab(point: Point) -> NDArray[np.float64]:
    return np.array([1.0, _sheet_us(point, 1.0, 0.0)])


def _lines(
    rows: Sequence[Point], key: Callable[[Point], tuple[object, ...]]
) -> dict[tuple[object, ...], NDArray[np.float64]]:
    """α and β of least relative squares per key, both at least 0."""
    parts = defaultdict(list)
    for one in rows:
        parts[key(one)].append(one)
    found = {}
    for name, part in parts.items():
        took = np.array([analytic(p.gpus, p.cell[3], p.bytes).latency_us * np.exp(p.value) for p in part])
        design = np.array([_ab(p) for p in part]) / took[:, None]
        solved = np.linalg.lstsq(design, np.ones(len(part)), rcond=None)[0]
        for at in (0, 1):
            if solved[at] < 0:
                other = design[:, 1 - at]
                solved = np.zeros(2)
                solved[1 - at] = other.sum() / (other @ other)
        found[name] = solved
    return found


def _against(answer: Answer, said_us: float) -> Answer:
    point = answer.point
    took_us = analytic(point.gpus, point.cell[3], point.bytes).latency_us * np.exp(point.value)
    return Answer(point, float(np.log(took_us / max(said_us, 1e-3))))


def _classes(answers: Sequence[Answer]) -> str:
    """Median error per machine class from 64 MiB on, each unseen."""
    large = [a for a in answers if regime(a.point.bytes) is Regime.LARGE]
    lines = []
    for group in sorted({a.point.group for a in large}):
        mine = [a for a in large if a.point.group == group]
        each, errors = weights(mine), np.array([error(a) for a in mine])
        held = float(each @ np.array([inside(a) for a in mine]))
        kept = "kept apart" if group in KEPT else ""
        lines.append((group, kept, f"{quantile(errors, each, 0.5):.1%}", f"{held:.0%}"))
    return markdown(("class, unseen, ≥ 64 MiB", "", "median error", "inside 90 %"), lines) + "\n"


def _speed(predictor: BandwidthPredictor, rows: Sequence[MeasuredRow]) -> None:
    """One set, as a caller asks: a size that was not asked before; plain, and with a cluster's probes."""
    told = copy.copy(predictor)
    told.calibration = Calibration()
    machine = machine_of(HardwareRow("H100-SXM5-80GB", "nvidia", "NVSwitch-NV18", 2, 8, "8x NDR400 IB"))
    for n in range(_PROBES):
        size = 1 << (10 + n % 20)
        told.observe(BandwidthQuestion(machine, tuple(range(8)), Collective.ALL_REDUCE, size, 2), 100.0 + n)
    rng = np.random.default_rng(0)
    plain, calibrated = list[float](), list[float]()
    for n in rng.integers(0, len(rows), 3000):
        query = rows[n].query
        gpus, size = query.gpus(), int(rng.integers(1, 2**34))
        began = time.perf_counter()
        predictor.estimate_set(gpus, query.collective, size)
        plain.append(time.perf_counter() - began)
        question = BandwidthQuestion(machine, tuple(range(8)), query.collective, size, 2)
        began = time.perf_counter()
        told.estimate(question)
        calibrated.append(time.perf_counter() - began)
    for name, took in (("One set", plain), (f"One calibrated by {_PROBES} probes", calibrated)):
        median, tail = np.quantile(took, 0.5) * 1e3, np.quantile(took, 0.99) * 1e3
        print(f"{name}: P50 {median:.2f} ms, P99 {tail:.2f} ms (goal 1 ms).")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
