"""What a predictor's recipe adds so that its forecasts can be stored, scored, judged and drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kopt.training.gate import GateRules, Verdict

if TYPE_CHECKING:
    from kopt.training.judging import Champion
    from kopt.training.recipe import Dataset, Part
    from kopt.training.work import Backtest


class Scoring(Protocol):
    """Forecasts, scores and summaries are the recipe's own types; the pipeline only hands them on.

    A summary has ``slice`` and ``services``, a count.
    """

    def key(self, forecast: Any) -> str:
        """The name by which two models' forecasts of the same thing are found."""
        ...

    def scores(self, dataset: Any, parts: Sequence["Part"], backtests: Mapping[str, "Backtest"]) -> Sequence[Any]:
        """The challenger's scores, part by part."""
        ...

    def summarise(self, scores: Sequence[Any]) -> tuple[Any, ...]:
        """Means by slice, for people."""
        ...

    def metrics(self, summaries: Sequence[Any]) -> Mapping[str, float]:
        """The same by name, for MLflow."""
        ...

    def verdict(
        self, dataset: Any, parts: Sequence["Part"], challenger: Sequence[Any], backtests: Mapping[str, "Backtest"],
        champion: "Champion | None", rules: GateRules,
    ) -> Verdict:  # fmt: skip
        """Whether the challenger is better beyond noise and worse nowhere."""
        ...

    def draw(
        self, folder: Path, dataset: "Dataset", parts: Sequence["Part"], scores: Sequence[Any],
        backtests: Mapping[str, "Backtest"],
    ) -> Sequence[Path]:  # fmt: skip
        """Pictures, written into ``folder``."""
        ...

    def write(self, forecasts: Sequence[Any], path: Path) -> None:
        """Forecasts as one file."""
        ...

    def read(self, path: Path) -> tuple[Any, ...]:
        """What ``write`` wrote. Raises ValueError for a file that is not whole."""
        ...
