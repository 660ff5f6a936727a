"""Jobs divided into replicas and replayed: who starts when, on what, and how much longer it runs."""

import pytest

from kopt.core.scheduling.replicas import Shape
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.simulator.replicas import placed, replay


def job(name: str, gpus: int, at_s: float, seconds: float) -> JobRun:
    return JobRun(name, JobKind("q", gpus), at_s, at_s + seconds)


def test_a_shape_waits_for_its_nodes_and_runs_longer_by_its_slowdown() -> None:
    jobs = [job("a", 2, 0.0, 100.0), job("b", 8, 1.0, 50.0), job("c", 4, 2.0, 10.0)]
    shapes = {"a": Shape(1, 2), "b": Shape(2, 4), "c": Shape(1, 4)}
    done = replay(jobs, [4, 4], lambda run, cluster, now_s: shapes[run.job], lambda run, shape: float(shape.replicas))
    by_name = {item.job.job: item for item in done}
    # b waits for both nodes; c, behind it, fits meanwhile.
    assert (by_name["c"].start_s, by_name["b"].start_s) == (2.0, 100.0)
    assert by_name["b"].total_s == 99.0 + 2 * 50.0
    assert by_name["b"].wait_s == 99.0


def test_replicas_go_to_the_fullest_nodes_with_room() -> None:
    assert placed([8, 3, 4], Shape(2, 2)) == {1: 2, 2: 2}
    assert placed([8, 3, 4], Shape(7, 2)) == {1: 2, 2: 4, 0: 8}
    assert placed([8, 3, 4], Shape(8, 2)) is None


def test_a_shape_that_can_never_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="can never fit"):
        replay([job("a", 8, 0.0, 1.0)], [4, 4], lambda *_: Shape(1, 8), lambda *_: 1.0)
