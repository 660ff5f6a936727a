"""Dynamic resource allocation as the product relies on it, on the real kube-scheduler: all situations at once."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from controlplane.plane import ControlPlane

from .bench import Bench, Situation
from .situations import SITUATIONS

_AT_ONCE = 16


@pytest.fixture(scope="module")
def outcomes(control_plane: ControlPlane) -> Iterator[dict[str, "Future[None]"]]:
    """Each situation runs in a thread; its test shows how it ended."""
    space = control_plane.api.space("devices")
    benches = [Bench(control_plane, space, number, item) for number, item in enumerate(SITUATIONS)]
    with ThreadPoolExecutor(_AT_ONCE) as several:
        first = [bench for bench in benches if not bench.situation.is_disruptive]
        results = {bench.situation.name: several.submit(bench.run) for bench in first}
        others = list(results.values())
        for bench in benches:
            if bench.situation.is_disruptive:
                results[bench.situation.name] = several.submit(_run_after, others, bench)
        yield results
        for bench in benches:
            several.submit(bench.close)


def _run_after(others: list["Future[None]"], bench: Bench) -> None:
    wait(others)
    bench.run()


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name.replace(" ", "-"))
def test_the_scheduler_allocates_as_expected(situation: Situation, outcomes: dict[str, "Future[None]"]) -> None:
    outcomes[situation.name].result()


def test_names_differ() -> None:
    assert len({situation.name for situation in SITUATIONS}) == len(SITUATIONS) >= 40
