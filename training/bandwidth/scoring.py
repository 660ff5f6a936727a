"""Scores of bandwidth predictions: errors by regime of sizes, machine by machine, and how often intervals held."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kopt.core.hardware.bandwidth import BandwidthEstimate
from kopt.core.reason import Reason
from kopt.models.bandwidth.intervals import Regime, regime
from kopt.models.bandwidth.rows import MeasuredRow
from kopt.training.pipeline.comparisons import PairedErrors, with_comparisons
from kopt.training.pipeline.gains import decide_by_gains
from kopt.training.pipeline.plot_page import new_figure, write_plot_page
from kopt.training.pipeline.protocols import Backtest, Champion, GateDecision, GateRules, Part, refuse
from kopt.training.pipeline.slices import RunScore, RunScoring

_FIRST_LIMIT = 0.5
"""Median error from 64 MiB on that is accepted of a first model."""


@dataclass(frozen=True)
class MachineRun:
    """One machine: per question and regime the error's median, the rows and how many lay inside."""

    series: str
    machine_class: str
    nodes: int
    cells: tuple[tuple[str, float, float, int, int], ...]
    """(regime, median error, 90 % quantile, rows, inside)."""

    def __len__(self) -> int:
        return sum(rows for _, _, _, rows, _ in self.cells)


def machine_run(name: str, rows: Sequence[MeasuredRow], estimates: Sequence[BandwidthEstimate]) -> MachineRun:
    """Compares estimates with measurements: the latency up to 64 KiB, the bus bandwidth above."""
    parts: dict[tuple[str, object], list[tuple[float, bool]]] = defaultdict(list)
    for row, answer in zip(rows, estimates, strict=True):
        where = regime(row.query.bytes)
        ratio = answer.latency_us / row.latency_us
        error = abs((ratio if where is Regime.LATENCY else 1 / ratio) - 1)
        inside = answer.latency_low_us <= row.latency_us <= answer.latency_high_us
        hardware = row.query.hardware
        cell = (hardware.gpus_per_node, hardware.n_nodes, row.query.collective)
        parts[where.value, cell].append((error, inside))
    cells = tuple(
        (
            where,
            float(np.median([e for e, _ in part])),
            float(np.quantile([e for e, _ in part], 0.9)),
            len(part),
            sum(i for _, i in part),
        )
        for (where, _), part in parts.items()
    )
    return MachineRun(
        name, rows[0].machine_class, max(measured_row.query.hardware.n_nodes for measured_row in rows), cells
    )


@dataclass(frozen=True)
class BandwidthSummary:
    """Figures of a slice from 64 MiB on, and of latencies: means over machines of medians over their questions."""

    slice: str
    services: int
    median_error: float
    p90_error: float
    coverage: float
    latency_error: float

    def metrics(self) -> dict[str, float]:
        """Figures by name."""
        return {key: float(value) for key, value in asdict(self).items() if key not in ("slice", "services")}


def summary(label: str, runs: Sequence[MachineRun]) -> BandwidthSummary:
    """All machines have the same weight; a figure that no machine has is 0. Raises ValueError without any."""
    if not runs:
        raise ValueError(f"no machine in {label!r}")
    large = [[cell for cell in run.cells if cell[0] == Regime.LARGE.value] for run in runs]
    small = [[cell for cell in run.cells if cell[0] == Regime.LATENCY.value] for run in runs]
    every = [run.cells for run in runs if run.cells]

    def of(parts: Sequence[Sequence[Any]], at: int) -> float:
        result = [float(np.median([item[at] for item in part])) for part in parts if part]
        return float(np.median(result)) if result else 0.0

    inside = [float(np.mean([item[4] / item[3] for item in part])) for part in every]
    return BandwidthSummary(label, len(runs), of(large, 1), of(large, 2), float(np.mean(inside)), of(small, 1))


class BandwidthScoring(RunScoring[MachineRun, BandwidthSummary]):
    """See ``Scoring``."""

    def summary(self, label: str, runs: Sequence[MachineRun]) -> BandwidthSummary:
        return summary(label, runs)

    def slices_of(self, run: MachineRun) -> tuple[str, ...]:
        return ("one node" if run.nodes == 1 else "several nodes",)

    def read_run(self, document: Mapping[str, Any]) -> MachineRun:
        return MachineRun(**{**document, "cells": tuple(map(tuple, document["cells"]))})

    def decide(
        self,
        dataset: Any,
        parts: Sequence[Part],
        challenger: Sequence[RunScore[MachineRun]],
        backtests: Mapping[str, Backtest],
        champion: Champion | None,
        rules: GateRules,
    ) -> GateDecision:
        """Not worse than the champion beyond noise, on machines that neither has seen."""
        if not challenger:
            return refuse("TOO_LITTLE_DATA", "There is no unseen machine to test the model on.")
        mine = summary("all", [score.run for score in challenger])
        if champion is None:
            if mine.median_error > _FIRST_LIMIT:
                text = (
                    f"Its median error on unseen machines is {mine.median_error:.0%}; {_FIRST_LIMIT:.0%} is the most."
                )
                return refuse("INACCURATE", text, median_error=mine.median_error)
            text = f"First model; median error {mine.median_error:.0%} on unseen machines."
            return GateDecision(True, (Reason("BETTER", text, mine.metrics()),))
        theirs = self.unseen_by(champion)
        shared = [score for score in challenger if score.run.series in theirs]
        decision = _compared([(each.run, theirs[each.run.series]) for each in shared], rules)
        rows = [
            PairedErrors(each.slices, each.run.series, {"error": (_whole(theirs[each.run.series]), _whole(each.run))})
            for each in shared
        ]
        return with_comparisons(decision, rows, rules)

    def draw(
        self,
        folder: Path,
        dataset: Any,
        parts: Sequence[Part],
        scores: Sequence[RunScore[MachineRun]],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:
        """Median errors of machines."""
        runs = sorted((score.run for score in scores), key=lambda run: run.series)
        figure = new_figure("Median error on unseen machines", "machine", "relative error", height_px=560)
        for where in (Regime.LARGE.value, Regime.LATENCY.value):
            figure.add_bar(name=where, x=[run.series for run in runs], y=[_error_of(run, where) for run in runs])
        figure.update_yaxes(tickformat=".0%")
        return (write_plot_page(folder, {"bandwidth": figure}),)


def _error_of(run: MachineRun, where: str) -> float:
    result = [cell[1] for cell in run.cells if cell[0] == where]
    return float(np.median(result)) if result else 0.0


def _compared(paired: Sequence[tuple[MachineRun, MachineRun]], rules: GateRules) -> GateDecision:
    if len(paired) < 2:
        text = "The champion was trained on every machine there is here. Train again when others were measured."
        return refuse("TOO_LITTLE_DATA", text, machines=len(paired))
    gains = [float(np.log((_whole(other) + 0.01) / (_whole(machine_run) + 0.01))) for machine_run, other in paired]
    return decide_by_gains(gains, rules, "error", f"on {len(paired)} machines")


def _whole(run: MachineRun) -> float:
    return float(np.mean([cell[1] for cell in run.cells])) if run.cells else 0.0
