"""Several queues borrow of one pool; and what is new in a queue does not pass who has waited too long."""

from collections.abc import Callable, Iterator

import pytest
from controlplane.kueue import Kueue
from controlplane.processes import wait_for

from .conftest import GPU, Controller, Scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def others(scene: Scene, kueue: Kueue) -> Iterator[str]:
    """A second ClusterQueue, which the scene's LocalQueue "others" is for."""
    with kueue.queue(scene.space, {GPU: 0, "cpu": 100}, "others") as queue:
        yield queue


@pytest.mark.long
def test_those_give_back_who_lose_least_whatever_their_queue(
    scene: Scene, others: str, controller: Callable[..., Controller]
) -> None:
    controller()
    scene.serve("chat-0")
    scene.expect(1, 1.2, 1.5, 1.9)
    scene.pool(borrowers=[{"system": "Kueue", "queue": name} for name in (scene.queue, others)])
    wait_for(lambda: scene.lent(6), what="six GPUs are lent")
    for name in ("dear", "dearer"):
        scene.run(name, 2)
        scene.note(name, lost=50_000)
    scene.run("cheap", 2, queue="others")
    scene.note("cheap", lost=10)
    wait_for(lambda: scene.status()["borrowedGpus"] == 6, what="all of them are borrowed")
    # One more waits in the queue that uses most.
    scene.submit("new", 2)
    scene.expect(3, 3.2, 3.5, 3.9)
    wait_for(lambda: scene.held() == {"cheap"}, what="who loses least was told to go")
    wait_for(lambda: scene.runs() == {"dear", "dearer"} and "reclaiming" not in scene.status(), what="it has gone")
    assert scene.held() == {"cheap"}
    scene.expect(1, 1.2, 1.5, 1.9)
    wait_for(lambda: scene.runs() == {"dear", "dearer", "cheap"}, what="who gave back has its GPUs again")
    assert scene.held() == set()
    assert not scene.pods("new"), "who is new in a queue that has more does not come first"


def large_gives_back(scene: Scene) -> None:
    scene.serve("chat-0")
    scene.expect(2, 2.4, 2.6, 2.9)
    scene.pool()
    scene.run("large", 4)
    scene.note("large")
    scene.expect(7, 7, 7, 8)
    wait_for(lambda: scene.held() == {"large"} and scene.runs() == set(), what="it has given back")


@pytest.mark.long
def test_nobody_new_passes_one_that_has_waited_too_long(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    large_gives_back(scene)
    scene.line("large", 10, ago_s=7200)
    asked = len(scene.forecasts.asked)
    wait_for(lambda: len(scene.forecasts.asked) > asked + 2, what="seconds pass, in which the line is seen")
    scene.expect(4, 5, 5, 5.9)
    wait_for(lambda: scene.lent(2), what="two GPUs are lent, too few for it")
    scene.submit("small", 2)
    wait_for(lambda: scene.quota() == 0, what="they are open to nobody else")
    scene.submit("next", 1)
    assert scene.runs() == set()
    scene.expect(2, 2.4, 2.6, 2.9)
    wait_for(lambda: scene.runs() >= {"large"}, what="it goes on as soon as it fits")
    assert not scene.pods("small")
    wait_for(lambda: scene.runs() == {"large", "next"}, what="what is left is open to those who fit")


@pytest.mark.long
def test_it_is_passed_while_it_has_not_waited_long(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller()
    large_gives_back(scene)
    scene.expect(4, 5, 5, 5.9)
    scene.submit("small", 2)
    wait_for(lambda: scene.runs() == {"small"}, what="what is lent is used meanwhile")
