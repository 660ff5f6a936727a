"""What ``kopt train`` has to know of a predictor: where its data comes from, and how its scores are shown."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.demand import inputs
from kopt.cli.errors import usage_error
from kopt.core.settings import Settings
from kopt.models.predictors import load

if TYPE_CHECKING:
    from kopt.training.pipeline.protocols import Source


@dataclass(frozen=True)
class TrainInputs:
    """The options that name data, as they were given."""

    settings: Settings
    data: str | None
    python: str | None
    prometheus: str | None
    query: str
    label: str
    since: str
    step: str
    from_cluster: bool = False
    kubeconfig: Path | None = None

    def folder(self, predictor: str, holds: str) -> Path:
        """The data of a predictor that is trained on files alone. Wrong usage ends the process with status 2."""
        if (self.prometheus and not self.from_cluster) or not self.data:
            usage_error(f"{predictor} is trained on {holds}: give --data DIR, or --from-cluster", "--data")
        return inputs.readable(Path(self.data))


@dataclass(frozen=True)
class TrainCommand:
    """One predictor's, ``kopt.cli.training.NAME:COMMAND``."""

    source: "Callable[[TrainInputs], Source]"
    row: type[Any]
    """A dataclass of columns; its fields are fields of the recipe's summaries."""
    reads_cluster: bool = False
    """Whether ``source`` knows ``--from-cluster``."""


def command_of(predictor: str) -> TrainCommand:
    command: TrainCommand = load(f"kopt.cli.training.{predictor}:COMMAND")
    return command
