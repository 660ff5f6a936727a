"""A small checkpoint predictor and what to ask it."""

from typing import Any

from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import LogTable
from kopt.models.checkpoint.predictor import CheckpointPredictor, LogQuestion

PREDICTOR = CheckpointPredictor
_TIMED = tuple(f"2024-05-01 10:00:{second:02d} step {second} loss 0.5" for second in range(10))
_SAVED = (*_TIMED, "2024-05-01 10:00:10 Saving checkpoint to out/checkpoint-9", "2024-05-01 10:00:14 Saved checkpoint")


def make() -> CheckpointPredictor:
    return CheckpointPredictor(FitSettings(epochs=1))


def table() -> Any:
    """Made-up jobs alone."""
    return LogTable((), made=60)


def requests() -> list[LogQuestion]:
    """A log without a save, one in a write, one after it, one with arrivals, and garbage with a time."""
    return [
        LogQuestion(_TIMED),
        LogQuestion(_SAVED[:-1]),
        LogQuestion(_SAVED, gpus=8),
        LogQuestion(
            tuple(f"step {n}/100 loss 0.1" for n in range(50)), tuple(1e9 + n for n in range(50)), now_s=1e9 + 60
        ),
        LogQuestion(("\x00\xff" * 1000, "2024-05-01 10:00:00 x", "[" * 5000)),
    ]


def refused() -> list[LogQuestion]:
    """Logs that no time can be told of."""
    return [LogQuestion(()), LogQuestion(("step 1 loss 2.0", "saved checkpoint")), LogQuestion(("",))]
