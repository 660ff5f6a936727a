"""Scores of sizes: errors of the centre, misses of the interval, and what the upper end wastes."""

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
from kopt.training.gate import GateRules, Verdict, refuse
from kopt.training.judging import Champion
from kopt.training.recipe import KNOWN, Part
from kopt.training.work import Backtest

Array = NDArray[np.float64]

_UNDER_LIMIT = 0.03
"""Runs above the upper end that are accepted of a challenger whatever the champion does."""


@dataclass(frozen=True)
class SizedRun:
    """One run with what was said of it, in bytes. ``series`` is its source and family, ``kind`` method and metric."""

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
class SizeScore:
    """A run's scores under the labels they count for."""

    run: SizedRun
    slices: tuple[str, ...]


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


class SizingScoring:
    """See ``Scoring``."""

    def key(self, forecast: SizedRun) -> str:
        return _key(forecast)

    def scores(self, dataset: Any, parts: Sequence[Part], backtests: Mapping[str, Backtest]) -> tuple[SizeScore, ...]:
        """Of unseen families only: a known run's own measurement says nothing about the next."""
        told = [part for part in parts if part.regime != KNOWN] or list(parts)
        return tuple(
            SizeScore(one, (part.regime, f"kind {one.kind}", f"source {one.series.rpartition('/')[0]}"))
            for part in told for one in backtests[part.name].forecasts
        )  # fmt: skip

    def summarise(self, scores: Sequence[SizeScore]) -> tuple[SizeSummary, ...]:
        groups: dict[str, list[SizedRun]] = {}
        for one in scores:
            for label in ("all", *one.slices):
                groups.setdefault(label, []).append(one.run)
        return tuple(summary(label, runs) for label, runs in sorted(groups.items()))

    def metrics(self, summaries: Sequence[SizeSummary]) -> Mapping[str, float]:
        plain = {one.slice: "".join(c if c.isalnum() or c in "_-. " else "-" for c in one.slice) for one in summaries}
        return {f"{plain[one.slice]}/{key}": value for one in summaries for key, value in one.metrics().items()}

    def verdict(
        self, dataset: Any, parts: Sequence[Part], challenger: Sequence[SizeScore],
        backtests: Mapping[str, Backtest], champion: Champion | None, rules: GateRules,
    ) -> Verdict:  # fmt: skip
        """Better beyond noise in the error of the centre or the cost of the upper end, and worse in neither."""
        if not challenger:
            return refuse("TOO_LITTLE_DATA", "There is no run of an unseen family to test the model on.")
        mine = summary("all", [one.run for one in challenger])
        if champion is None:
            if mine.p_under <= _UNDER_LIMIT or len(challenger) < 1 / _UNDER_LIMIT:
                text = f"First model; median error {mine.median_error:.1%}, {mine.p_under:.1%} above the upper end."
                return Verdict(True, (Reason("BETTER", text, mine.metrics()),))
            text = f"{mine.p_under:.1%} of unseen runs lie above the upper end; {_UNDER_LIMIT:.0%} are accepted."
            return refuse("UNSAFE", text, p_under=mine.p_under)
        return _compared(challenger, _shared(dataset, champion), rules)

    def draw(
        self, folder: Path, dataset: Any, parts: Sequence[Part], scores: Sequence[SizeScore],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:  # fmt: skip
        """Predicted against measured, with intervals, as a plotly page beside its script."""
        import plotly.graph_objects as go
        from plotly.offline import get_plotlyjs

        script = folder / "plotly.min.js"
        script.write_text(get_plotlyjs(), encoding="utf-8")
        figure = go.Figure()
        for kind in sorted({one.run.kind for one in scores}):
            runs = [one.run for one in scores if one.run.kind == kind]
            bars = {"type": "data", "symmetric": False, "array": [(one.high - one.centre) / 2**30 for one in runs],
                    "arrayminus": [(one.centre - one.low) / 2**30 for one in runs], "thickness": 0.6}  # fmt: skip
            figure.add_scatter(
                x=[one.measured / 2**30 for one in runs], y=[one.centre / 2**30 for one in runs], error_y=bars,
                mode="markers", name=kind, text=[one.run for one in runs],
            )  # fmt: skip
        figure.update_layout(title="Sizes of unseen families", template="plotly_white", height=560)
        figure.update_xaxes(title="measured, GiB", type="log")
        figure.update_yaxes(title="predicted, GiB", type="log")
        page = folder / "sizes.html"
        figure.write_html(page, include_plotlyjs="directory", full_html=True, div_id="sizes")
        return (script, page)

    def write(self, forecasts: Sequence[SizedRun], path: Path) -> None:
        pq.write_table(pa.Table.from_pylist([asdict(one) for one in forecasts], schema=_SCHEMA), path)

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
    errors = np.array([one.error for one in runs])
    inside = np.mean([one.low <= one.measured <= one.high for one in runs])
    return SizeSummary(
        label, len(runs), float(np.median(errors)), float(np.quantile(errors, 0.9)),
        float(np.mean([one.under for one in runs])), float(np.mean([one.slack for one in runs])), float(inside),
    )  # fmt: skip


def _key(run: SizedRun) -> str:
    return f"{run.series} {run.run}"


def _shared(dataset: Any, champion: Champion) -> Mapping[str, SizedRun]:
    """The champion's forecasts of families that it was not trained on."""
    from kopt.training.sizing import SizingDataset

    assert isinstance(dataset, SizingDataset)
    seen = {one.name for one in champion.card.training_data}
    return {key: one for key, one in champion.forecasts.items() if one.series not in seen}


def _compared(challenger: Sequence[SizeScore], theirs: Mapping[str, SizedRun], rules: GateRules) -> Verdict:
    pairs = [(one.run, theirs[_key(one.run)]) for one in challenger if _key(one.run) in theirs]
    if len(pairs) < 2:
        text = (
            "The champion was trained on every family there is here, so no run is left to compare them on fairly. "
            "Train again when there are runs of new families."
        )
        return refuse("TOO_LITTLE_DATA", text, runs=len(pairs))
    found = {
        "error": _change([(mine.error, other.error, mine.series) for mine, other in pairs], rules),
        "cost": _change([(mine.pinball, other.pinball, mine.series) for mine, other in pairs], rules),
    }
    worse = [name for name, (_, low, high) in found.items() if high < 0 and low < -rules.accuracy_tolerance]
    better = [name for name, (_, low, _) in found.items() if low > 0]
    said = ", ".join(
        f"{name} {mid:+.1%} (between {low:+.1%} and {high:+.1%})" for name, (mid, low, high) in found.items()
    )
    numbers = {name: mid for name, (mid, _, _) in found.items()}
    if worse:
        return refuse("WORSE", f"Worse than the champion in {' and '.join(worse)}: {said}.", **numbers)
    if not better:
        return refuse("NO_BETTER", f"Not better than the champion beyond noise: {said}.", **numbers)
    return Verdict(True, (Reason("BETTER", f"Better in {' and '.join(better)}, worse nowhere: {said}.", numbers),))


def _change(rows: Sequence[tuple[float, float, str]], rules: GateRules) -> tuple[float, float, float]:
    """Relative gain over the champion and its bounds, by resampling families (positive is better)."""
    mine, other = np.array([one[0] for one in rows]), np.array([one[1] for one in rows])
    families, place = np.unique([one[2] for one in rows], return_inverse=True)
    sums = np.array([[mine[place == n].sum(), other[place == n].sum()] for n in range(len(families))])
    rng = np.random.default_rng([rules.seed, zlib.crc32("".join(families).encode())])
    drawn = rng.multinomial(len(families), np.full(len(families), 1 / len(families)), size=rules.resamples)
    totals: Array = drawn @ sums
    gains = 1 - totals[:, 0] / np.maximum(totals[:, 1], 1e-12)
    whole = 1 - sums[:, 0].sum() / max(float(sums[:, 1].sum()), 1e-12)
    return float(whole), float(np.quantile(gains, rules.level / 2)), float(np.quantile(gains, 1 - rules.level / 2))
