"""Scores of sizes: errors of the centre, misses of the interval, and memory wasted by the upper end."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kopt.core.reason import Reason
from kopt.training.pipeline.comparisons import PairedErrors, with_comparisons
from kopt.training.pipeline.plot_page import new_figure, write_plot_page
from kopt.training.pipeline.protocols import Backtest, Champion, GateDecision, GateRules, Part, refuse
from kopt.training.pipeline.slices import RunScore, RunScoring

Array = NDArray[np.float64]

_UNDER_LIMIT = 0.03
"""Runs above the upper end that are accepted of a challenger whatever the champion does."""


@dataclass(frozen=True)
class SizedRun:
    """One run with its prediction, in bytes. ``series`` is its source and family, ``kind`` method and metric."""

    series: str
    run: str
    kind: str
    measured: float
    centre: float
    low: float
    high: float

    def __len__(self) -> int:
        return 1

    @property
    def error(self) -> float:
        return abs(self.centre / self.measured - 1)

    @property
    def under(self) -> bool:
        """Would it fail with the upper end as its limit?"""
        return self.measured > self.high

    @property
    def slack(self) -> float:
        return max(0.0, self.high / self.measured - 1)

    @property
    def pinball(self) -> float:
        """Cost of the upper end in logarithms, a miss fifty times as dear as waste: proper for the .98 quantile."""
        missed = float(np.log(self.measured / self.high))
        return max(0.98 * missed, -0.02 * missed)


@dataclass(frozen=True)
class SizeSummary:
    """Means of a slice; ``services`` counts its runs."""

    slice: str
    services: int
    median_error: float
    p90_error: float
    p_under: float
    mean_slack: float
    coverage: float

    def metrics(self) -> dict[str, float]:
        """Figures by name."""
        return {key: float(value) for key, value in asdict(self).items() if key not in ("slice", "services")}


class SizingScoring(RunScoring[SizedRun, SizeSummary]):
    """See ``Scoring``."""

    def summary(self, label: str, runs: Sequence[SizedRun]) -> SizeSummary:
        return summary(label, runs)

    def key(self, forecast: SizedRun) -> str:
        return f"{forecast.series} {forecast.run}"

    def slices_of(self, run: SizedRun) -> tuple[str, ...]:
        return (f"kind {run.kind}", f"source {run.series.rpartition('/')[0]}")

    def read_run(self, document: Mapping[str, Any]) -> SizedRun:
        return SizedRun(**document)

    def decide(
        self,
        dataset: Any,
        parts: Sequence[Part],
        challenger: Sequence[RunScore[SizedRun]],
        backtests: Mapping[str, Backtest],
        champion: Champion | None,
        rules: GateRules,
    ) -> GateDecision:
        """Better beyond noise in the error of the centre or the cost of the upper end, and worse in neither."""
        if not challenger:
            return refuse("TOO_LITTLE_DATA", "There is no run of an unseen family to test the model on.")
        mine = summary("all", [score.run for score in challenger])
        if champion is None:
            if mine.p_under <= _UNDER_LIMIT or len(challenger) < 1 / _UNDER_LIMIT:
                text = f"First model; median error {mine.median_error:.1%}, {mine.p_under:.1%} above the upper end."
                return GateDecision(True, (Reason("BETTER", text, mine.metrics()),))
            text = f"{mine.p_under:.1%} of unseen runs lie above the upper end; {_UNDER_LIMIT:.0%} are accepted."
            return refuse("UNSAFE", text, p_under=mine.p_under)
        theirs = self.unseen_by(champion)
        shared = [(score, theirs[key]) for score in challenger if (key := self.key(score.run)) in theirs]
        rows = [
            PairedErrors(
                score.slices,
                score.run.series,
                {"error": (other.error, score.run.error), "cost": (other.pinball, score.run.pinball)},
            )
            for score, other in shared
        ]
        return with_comparisons(_compared([(score.run, other) for score, other in shared], rules), rows, rules)

    def draw(
        self,
        folder: Path,
        dataset: Any,
        parts: Sequence[Part],
        scores: Sequence[RunScore[SizedRun]],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:
        """Predicted against measured, with intervals."""
        figure = new_figure("Sizes of unseen families", "measured, GiB", "predicted, GiB", height_px=560)
        ends = [value / 2**30 for run in (score.run for score in scores) for value in (run.measured, run.centre)]
        both = [min(ends, default=1.0), max(ends, default=1.0)]
        figure.add_scatter(x=both, y=both, mode="lines", name="equal", line={"dash": "dot", "color": "gray"})
        for kind in sorted({score.run.kind for score in scores}):
            runs = [score.run for score in scores if score.run.kind == kind]
            bars = {
                "type": "data",
                "symmetric": False,
                "array": [(run.high - run.centre) / 2**30 for run in runs],
                "arrayminus": [(run.centre - run.low) / 2**30 for run in runs],
                "thickness": 0.6,
            }
            figure.add_scatter(
                x=[run.measured / 2**30 for run in runs],
                y=[run.centre / 2**30 for run in runs],
                error_y=bars,
                mode="markers",
                name=kind,
                text=[run.run for run in runs],
            )
        figure.update_xaxes(type="log")
        figure.update_yaxes(type="log")
        return (write_plot_page(folder, {"sizes": figure}),)

    def write(self, forecasts: Sequence[SizedRun], path: Path) -> None:
        pq.write_table(pa.Table.from_pylist([asdict(sized_run) for sized_run in forecasts], schema=_SCHEMA), path)

    def read(self, path: Path) -> tuple[SizedRun, ...]:
        try:
            return tuple(SizedRun(**row) for row in pq.read_table(path).to_pylist())
        except (pa.ArrowInvalid, OSError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("series", "run", "kind")]
    + [(name, pa.float64()) for name in ("measured", "centre", "low", "high")]
)


def summary(label: str, runs: Sequence[SizedRun]) -> SizeSummary:
    """Figures of some runs. Raises ValueError without any."""
    if not runs:
        raise ValueError(f"no run in {label!r}")
    errors = np.array([run.error for run in runs])
    inside = np.mean([run.low <= run.measured <= run.high for run in runs])
    return SizeSummary(
        label,
        len(runs),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        float(np.mean([run.under for run in runs])),
        float(np.mean([run.slack for run in runs])),
        float(inside),
    )


def _compared(paired: Sequence[tuple[SizedRun, SizedRun]], rules: GateRules) -> GateDecision:
    if len(paired) < 2:
        text = (
            "The champion was trained on every family there is here, so no run is left to compare them on fairly. "
            "Train again when there are runs of new families."
        )
        return refuse("TOO_LITTLE_DATA", text, runs=len(paired))
    result = {
        "error": _change([(mine.error, other.error, mine.series) for mine, other in paired], rules),
        "cost": _change([(mine.pinball, other.pinball, mine.series) for mine, other in paired], rules),
    }
    worse = [name for name, (_, low, high) in result.items() if high < 0 and low < -rules.accuracy_tolerance]
    better = [name for name, (_, low, _) in result.items() if low > 0]
    comparison = ", ".join(
        f"{name} {mid:+.1%} (between {low:+.1%} and {high:+.1%})" for name, (mid, low, high) in result.items()
    )
    numbers = {name: mid for name, (mid, _, _) in result.items()}
    if worse:
        return refuse("WORSE", f"Worse than the champion in {' and '.join(worse)}: {comparison}.", **numbers)
    if not better:
        return refuse("NO_BETTER", f"Not better than the champion beyond noise: {comparison}.", **numbers)
    return GateDecision(
        True, (Reason("BETTER", f"Better in {' and '.join(better)}, worse nowhere: {comparison}.", numbers),)
    )


def _change(rows: Sequence[tuple[float, float, str]], rules: GateRules) -> tuple[float, float, float]:
    """Relative gain over the champion and its bounds, by resampling families (positive is better)."""
    mine, other = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    families, family_index = np.unique([row[2] for row in rows], return_inverse=True)
    sums = np.array([[mine[family_index == n].sum(), other[family_index == n].sum()] for n in range(len(families))])
    rng = np.random.default_rng([rules.seed, zlib.crc32("".join(families).encode())])
    drawn = rng.multinomial(len(families), np.full(len(families), 1 / len(families)), size=rules.resamples)
    totals: Array = drawn @ sums
    gains = 1 - totals[:, 0] / np.maximum(totals[:, 1], 1e-12)
    whole = 1 - sums[:, 0].sum() / max(float(sums[:, 1].sum()), 1e-12)
    return float(whole), float(np.quantile(gains, rules.level / 2)), float(np.quantile(gains, 1 - rules.level / 2))
