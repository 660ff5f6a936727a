"""Against measurements: a class of machines is left out, and its large messages are predicted."""

import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kopt.models.bandwidth.curves import Point, answer, curves, points
from kopt.models.bandwidth.residual import KernelSettings, Residual
from kopt.models.bandwidth.rows import read_measured

_LARGE = 64 * 2**20


@pytest.fixture(scope="module")
def table() -> Path:
    """The measurements; absent, the test is skipped, or fails where KOPT_REQUIRE_DATA=1."""
    path = Path(os.environ.get("KOPT_DATA_DIR", "/nowhere")) / "topology" / "bandwidth_dev.csv.gz"
    if not path.is_file():
        message = f"no {path}; set KOPT_DATA_DIR to the folder with topology/ in it"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="module")
def measured(table: Path) -> list[Point]:
    """The measurements of hardware in order."""
    return points([row for row in read_measured(table) if "anomal" not in row.query.hardware.condition])


@pytest.fixture(scope="module")
def without(measured: list[Point]) -> dict[str, Residual]:
    """For each class of machines what is learned from all others."""
    labelled = curves(measured)
    return {
        group: Residual.fit(labelled.only(labelled.groups != group), KernelSettings())
        for group in sorted({point.group for point in measured})
    }


@pytest.mark.parametrize(("several", "goal"), [(False, 0.12), (True, 0.20)])
def test_unseen_classes_are_within_their_goals_from_64_mib_on(
    measured: list[Point], without: dict[str, Residual], several: bool, goal: float
) -> None:
    medians: dict[str, list[float]] = {}
    for group, residual in without.items():
        errors = defaultdict(list)
        for point in measured:
            if point.group == group and point.bytes >= _LARGE and (point.gpus.nodes > 1) is several:
                mean, _, _ = answer(residual, point.gpus, point.descriptor, point.knot, point.share)
                errors[point.cell].append(abs(np.expm1(point.value - mean)))
        if errors:
            medians[group] = [float(np.median(part)) for part in errors.values()]
    assert len(medians) > 5
    assert np.median([np.median(part) for part in medians.values()]) <= goal
