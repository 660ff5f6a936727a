"""Against measurements: a class of machines is left out, and its large messages are predicted."""

import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kopt.models.bandwidth.curves import answer, curves, points
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


@pytest.mark.parametrize(("several", "goal"), [(False, 0.12), (True, 0.20)])
def test_unseen_classes_are_within_their_goals_from_64_mib_on(table: Path, several: bool, goal: float) -> None:
    rows = read_measured(table)
    found = points([one for one in rows if "anomal" not in one.asked.hardware.condition])
    labelled = curves(found)
    medians: dict[str, list[float]] = {}
    for group in sorted({one.group for one in found}):
        residual = Residual.fit(labelled.only(labelled.groups != group), KernelSettings())
        errors = defaultdict(list)
        for one in found:
            if one.group == group and one.bytes >= _LARGE and (one.gpus.nodes > 1) is several:
                mean, _, _ = answer(residual, one.gpus, one.descriptor, one.knot, one.share)
                errors[one.cell].append(abs(np.expm1(one.value - mean)))
        if errors:
            medians[group] = [float(np.median(part)) for part in errors.values()]
    assert len(medians) > 5
    assert np.median([np.median(part) for part in medians.values()]) <= goal
