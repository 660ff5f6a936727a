"""Real trainers run as pods and are evicted by the controller: none of them in a write, whatever its way of saving."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarked import benchmark_module
from controlplane.plane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.trainers, pytest.mark.long, pytest.mark.timeout(2400)]
live = benchmark_module("live_checkpoints.run")
WAYS = ("announced", "silent", "parts", "background", "atomic", "ranks")
MOMENTS, EVICTIONS = 150, 12


def test_trainers_of_any_way_are_evicted_outside_of_writes_and_go_on(
    control_plane: ControlPlane, trainer_python: Callable[[str], str], tmp_path: Path
) -> None:
    ways = [way for way in live.WAYS if way.name in WAYS]
    results, evictions = live.prove(
        control_plane, tmp_path / "live", trainer_python("newest"), MOMENTS, EVICTIONS, ways
    )
    sys.stdout.write(live.report(results, evictions))
    assert sum(bool(eviction.way) for eviction in evictions) >= EVICTIONS // 2
    for result in results:
        name = result.way.name
        assert (result.kills.torn, result.kills.set_back) == (0, 0), f"{name}: {result.broken}"
        assert result.figures["files"].share > 0.1, f"{name} can hardly be stopped: {result.figures['files'].reasons}"
        # A line takes up to a second from its trainer to the answer.
        late = [wrong for wrong in result.figures["files"].wrong if wrong[0] > 1.0]
        assert not late, f"{name} was called safe in a write: {late}"
    assert {result.way.name: result.figures["text"].share for result in results}["silent"] == 0.0
