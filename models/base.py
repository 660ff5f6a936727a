"""The one base class of predictors.

A predictor's constructor only stores parameters; ``fit`` learns, ``predict`` answers, ``explain`` says why,
``save`` and ``load`` use formats that cannot run code. ``tests/models/test_conformance.py`` discovers every
subclass and holds it to the same checks.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason


class Predictor(ABC):
    """Base of every predictor. ``name`` is its name in the registry and on the command line."""

    name: ClassVar[str]
    version: ModelVersion
    """Set by the code that loads the model; ``("<name>", "unregistered")`` until then."""

    @abstractmethod
    def fit(self, table: Any) -> Self:
        """Learn from a training table; returns self. Raises ValueError on a table nothing can be learned from."""

    @abstractmethod
    def predict(self, request: Any) -> tuple[Prediction, ...]:
        """Predictions for one request; out-of-domain input gives refusals, not exceptions."""

    @abstractmethod
    def explain(self, request: Any) -> tuple[Reason, ...]:
        """Reasons with the numbers behind a prediction for the same request."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the fitted model as files of safe formats (JSON, LightGBM text, safetensors)."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote. Raises ValueError with the file's name when something is missing or torn."""
