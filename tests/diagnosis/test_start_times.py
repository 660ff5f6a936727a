"""When a workload starts, from the run times of what is before it."""

import importlib
import itertools

import numpy as np
import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.workload.run_time import RunTimeQuantiles
from kopt.policies.diagnosis import NodeRoom, QueuedGpus, QueueModel, RunningGpus, RunTimeColumns, start_times
from kopt.policies.diagnosis.futures import SHARED, ManyFutures

LEVELS = (0.1, 0.5, 0.9)


def exactly(seconds: float) -> RunTimeQuantiles:
    return RunTimeQuantiles((0.5,), (seconds,))


def started(model: QueueModel, name: str, run_times: dict[str, RunTimeQuantiles]) -> tuple[float | None, float | None]:
    estimate = start_times(model, name, run_times, np.random.default_rng(1), draws=50)
    return estimate.p50_s, estimate.p90_s


def test_it_starts_when_enough_has_ended() -> None:
    running = tuple(RunningGpus(f"r{number}", by_limit={"q": 4000}) for number in range(3))
    model = QueueModel(running, (QueuedGpus("job", 1, 8000, {"q": 8000}),), free_by_limit={"q": 0})
    run_times = {"r0": exactly(100), "r1": exactly(300), "r2": exactly(200)}
    assert started(model, "job", run_times) == (200, 200)


def test_strict_order_waits_for_what_is_ahead_and_the_other_does_not() -> None:
    running = (RunningGpus("r", by_limit={"q": 6000}),)
    queue = (QueuedGpus("large", 1, 8000, {"q": 8000}), QueuedGpus("small", 1, 2000, {"q": 2000}))
    run_times = {"r": exactly(100), "large": exactly(1000)}
    strict = QueueModel(running, queue, free_by_limit={"q": 2000}, strict=True)
    passing = QueueModel(running, queue, free_by_limit={"q": 2000})
    assert started(strict, "small", run_times) == (1100, 1100)
    assert started(passing, "small", run_times) == (0, 0)
    # The large one, on the other hand, waits for the small one that was let past.
    assert started(passing, "large", {"r": exactly(100), "small": exactly(500)}) == (500, 500)


def test_a_gang_needs_its_gpus_on_nodes() -> None:
    """Four GPUs free on each of two nodes are no room for a pod of eight."""
    nodes = (NodeRoom("a", 4000), NodeRoom("b", 4000), NodeRoom("c", 0))
    running = (RunningGpus("r", {"a": 4000}), RunningGpus("s", {"b": 4000}), RunningGpus("t", {"c": 8000}))
    model = QueueModel(running, (QueuedGpus("job", 2, 8000),), nodes)
    run_times = {"r": exactly(10), "s": exactly(500), "t": exactly(30)}
    assert started(model, "job", run_times) == (30, 30)


@pytest.mark.parametrize("order", list(itertools.permutations((100.0, 200.0, 300.0))))
def test_the_order_of_ends_decides(order: tuple[float, ...]) -> None:
    running = tuple(RunningGpus(f"r{number}", by_limit={"q": 1000}) for number in range(3))
    model = QueueModel(running, (QueuedGpus("job", 2, 1000, {"q": 2000}),), free_by_limit={"q": 0})
    run_times = {f"r{number}": exactly(seconds) for number, seconds in enumerate(order)}
    assert started(model, "job", run_times) == (200, 200)


def test_quantiles_of_one_workload_are_those_of_the_start() -> None:
    model = QueueModel(
        (RunningGpus("r", by_limit={"q": 1000}),), (QueuedGpus("job", 1, 1000, {"q": 1000}),), free_by_limit={"q": 0}
    )
    quantiles = RunTimeQuantiles(LEVELS, (60, 600, 6000))
    estimate = start_times(model, "job", {"r": quantiles}, np.random.default_rng(0), draws=1000)
    assert estimate.p50_s == pytest.approx(600, rel=0.05)
    assert estimate.p90_s == pytest.approx(6000, rel=0.05)
    assert estimate.reason is None


def test_no_number_is_made_up_where_a_run_time_is_unknown() -> None:
    running = (RunningGpus("known", by_limit={"q": 1000}), RunningGpus("unknown", by_limit={"q": 1000}))
    one_gpu = QueueModel(running, (QueuedGpus("job", 1, 1000, {"q": 1000}),), free_by_limit={"q": 0})
    estimate = start_times(one_gpu, "job", {"known": exactly(50)}, np.random.default_rng(0))
    assert (estimate.p50_s, estimate.p90_s) == (50, 50)
    assert estimate.reason is not None
    assert "may start sooner" in estimate.reason.message
    two_gpus = QueueModel(running, (QueuedGpus("job", 2, 1000, {"q": 2000}),), free_by_limit={"q": 0})
    estimate = start_times(two_gpus, "job", {"known": exactly(50)}, np.random.default_rng(0))
    assert (estimate.p50_s, estimate.p90_s) == (None, None)
    assert estimate.reason is not None
    assert estimate.reason.code == "RUN_TIME_UNKNOWN"
    too_large = QueueModel((), (QueuedGpus("job", 9, 1000, {"q": 9000}),), free_by_limit={"q": 8000})
    estimate = start_times(too_large, "job", {}, np.random.default_rng(0))
    assert estimate.reason is not None
    assert estimate.reason.code == "START_NEVER"
    assert start_times(too_large, "other", {}, np.random.default_rng(0)).reason is not None


@pytest.mark.parametrize(
    ("levels", "seconds"),
    [((), ()), ((0.5,), (1.0, 2.0)), ((0.9, 0.1), (1, 2)), ((0.0,), (1,)), ((0.1, 0.9), (5, 2)), ((0.5,), (-1,))],
)
def test_quantiles_that_are_none_are_refused(levels: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        RunTimeQuantiles(levels, seconds)
    assert RunTimeQuantiles((0.1, 0.9), (10, 50)).at(0.5) == 30
    assert RunTimeQuantiles((0.1, 0.9), (10, 50)).at(0.99) == 50


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_times_of_what_ends_too_late_are_not_needed(data: st.DataObject) -> None:
    """With as few times as possible the start is the same as with all of them."""
    count = data.draw(st.integers(1, 40))
    seconds = data.draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    running = tuple(RunningGpus(f"r-{n}", by_limit={"gpus": size}) for n, size in enumerate(sizes))
    queue = tuple(
        QueuedGpus(f"q-{n}", 1, 1000, {"gpus": size})
        for n, size in enumerate(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    )
    model = QueueModel(running, queue, free_by_limit={"gpus": 0}, strict=data.draw(st.booleans()))
    times = {f"r-{n}": RunTimeQuantiles((0.5,), (float(value),)) for n, value in enumerate(seconds)}
    times |= {queued.name: RunTimeQuantiles((0.5,), (50.0,)) for queued in queue}
    estimates = []
    for first in (1, 1000):
        with pytest.MonkeyPatch.context() as patch:
            # The package has a function of the same name.
            patch.setattr(importlib.import_module("kopt.policies.diagnosis.start_times"), "MOST_STRATIFIED", first)
            estimates.append(start_times(model, queue[-1].name, times, np.random.default_rng(0)))
    assert estimates[0] == estimates[1]


@pytest.mark.parametrize("strict", [True, False])
def test_a_start_is_that_of_all_times_at_once(strict: bool) -> None:
    """Of 300 that run, with quantiles at two sets of levels: what ends before a start is the same whether all futures
    are computed or those before it, and whether the run times were prepared or not."""
    rng = np.random.default_rng(7)
    shares = LEVELS, (0.05, 0.5, 0.95)
    times = {
        f"r{number:03}": RunTimeQuantiles(
            shares[number % 2], tuple(np.sort(rng.lognormal(8, 2, 3)).tolist()), number % 5 if number % 7 else None
        )
        for number in range(600)
    }
    running = tuple(RunningGpus(name, {str(number % 40): 1000}) for number, name in enumerate(times))
    times |= {f"q{number}": RunTimeQuantiles(LEVELS, (100, 3000, 90000)) for number in range(6)}
    queue = tuple(QueuedGpus(f"q{number}", 1 + number % 2, 1000 * (4 + number)) for number in range(6))
    model = QueueModel(running, queue, tuple(NodeRoom(str(row), row % 2 * 1000) for row in range(40)), strict=strict)
    starts_module = importlib.import_module("kopt.policies.diagnosis.start_times")
    result: list[np.ndarray] = []
    before, drawn = ManyFutures.before, starts_module._starts

    def everything(futures: ManyFutures, first: int, horizons_s: np.ndarray) -> object:
        return before(futures, len(running) - 16, np.where(horizons_s < 0, horizons_s, np.inf))

    for prepared, of_all in ((times, before), (RunTimeColumns(times), before), (times, everything)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ManyFutures, "before", of_all)
            patch.setattr(starts_module, "MOST_STRATIFIED", 16)
            patch.setattr(starts_module, "_MORE", 2)
            patch.setattr(starts_module, "_starts", lambda *of: result.append(drawn(*of)) or result[-1])
            assert start_times(model, "q5", prepared, np.random.default_rng(3), draws=40).p90_s
    assert (result[0] == result[1]).all()
    assert (result[0] == result[2]).all()


def test_workloads_tend_to_be_long_together() -> None:
    """Sixteen one after the other: were they independent, their sum would be known far better than each."""
    model = QueueModel(
        (RunningGpus("r", by_limit={"q": 1}),),
        tuple(QueuedGpus(f"w{number:02}", 1, 1, {"q": 1}) for number in range(16)),
        free_by_limit={"q": 0},
        strict=True,
    )
    # Known far out, so that no tail is added.
    spread = RunTimeQuantiles((0.0005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.9995), (1, 10, 50, 100, 150, 190, 199.9))
    times = dict.fromkeys(["r", *(queued.name for queued in model.queue)], spread)
    widths = {}
    for shared, like in ((0.0, None), (SHARED, None), (SHARED, "{name}"), (SHARED, "queue")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importlib.import_module("kopt.policies.diagnosis.futures"), "SHARED", shared)
            alike = {
                name: RunTimeQuantiles(each.levels, each.seconds, like and like.format(name=name))
                for name, each in times.items()
            }
            p50_s, p90_s = started(model, "w15", alike)
        assert p50_s == pytest.approx(1600, rel=0.1)
        widths[shared, like] = (p90_s or 0) - (p50_s or 0)
    # Of 16 standard deviations 4 where they are independent, 11.7 where half of the variance is shared by all, and
    # 14.4 where those that are alike share .3 besides.
    assert widths[SHARED, None] > 2 * widths[0.0, None]
    assert widths[SHARED, "queue"] > 1.1 * widths[SHARED, None]
    assert widths[SHARED, "queue"] > 1.1 * widths[SHARED, "{name}"]
