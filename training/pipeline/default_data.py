"""What a predictor's default model may be fitted on: public data whose licence allows it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.core.settings import Settings
from kopt.models.predictors import load_part
from kopt.training.pipeline.protocols import Dataset

LICENCES = ("Apache-2.0", "MIT", "CC-BY-4.0", "CC-BY-3.0", "CC0-1.0", "BSD-3-Clause", "BSD")


@dataclass(frozen=True)
class DefaultData:
    """One predictor's, ``kopt.training.NAME.default_data:DEFAULT_DATA``."""

    folder: str
    """Of ``KOPT_DATA_DIR``."""
    read: Callable[[Path, Settings], Dataset]
    """The data set of that folder; what has no licence for a default model is left out."""
    sources: Callable[[Any], list[dict[str, str | None]]]
    """Where everything in a data set came from and under which licence, for SOURCES.json."""


def default_data_of(predictor: str) -> DefaultData:
    """Raises ModuleNotFoundError for a predictor that has none."""
    result: DefaultData = load_part("training", predictor, "default_data:DEFAULT_DATA")
    return result


def licence_of(stated: str) -> str | None:
    """The licence that a statement names beyond doubt, else None.

    ``Apache-2.0 (repo)`` counts; ``none stated``, ``MIT? see LICENSE.txt`` and ``see LICENSE.txt`` do not.
    """
    word = stated.strip().split(" ")[0] if stated.strip() else ""
    return word if word in LICENCES else None
