"""The endpoint dies, stalls, or talks nonsense: nothing new is lent, and what pods ask for is taken back."""

from collections.abc import Callable

import pytest
from controlplane.processes import wait_for

from .conftest import Controller, Scene
from .test_with_kueue import lend_to

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LONG = pytest.mark.long


@pytest.mark.long
@pytest.mark.parametrize(
    "says", ["stall", *(pytest.param(each, marks=LONG) for each in ("garbage", "error", "fallback"))]
)
def test_without_forecasts_nothing_new_is_lent(scene: Scene, controller: Callable[..., Controller], says: str) -> None:
    controller("--stale=8s")
    scene.expect(5, 5, 5, 5.9)
    lend_some(scene)
    wait_for(lambda: scene.lent(2), what="two GPUs are lent")
    scene.forecasts.says = says
    wait_for(lambda: scene.status()["forecast"]["state"] == "Stale", what="the forecast is old")
    scene.expect(2, 2, 2, 2)
    asked = len(scene.forecasts.asked)
    wait_for(lambda: len(scene.forecasts.asked) > asked, what="it is asked again")
    assert (scene.quota(), scene.status()["lentGpus"]) == (2, 2)
    assert scene.condition("ForecastsFresh")["status"] == "False"
    scene.forecasts.says = "forecasts"
    # How many follows from what was learned of misses, too.
    wait_for(lambda: scene.status()["lentGpus"] > 2, what="it lends again")


def lend_some(scene: Scene) -> None:
    scene.serve("chat-0", "chat-1")
    scene.pool()


@pytest.mark.long
def test_old_metrics_make_a_forecast_stale(scene: Scene, controller: Callable[..., Controller]) -> None:
    controller("--stale=8s")
    scene.forecasts.data_age_s = 3600
    scene.expect(2, 2, 2, 2.9)
    lend_some(scene)
    wait_for(lambda: scene.status().get("forecast", {}).get("state") == "Stale", what="it says so")
    assert scene.status()["lentGpus"] == 0


def test_what_pods_ask_for_is_taken_back_with_a_dead_endpoint(
    scene: Scene, controller: Callable[..., Controller]
) -> None:
    controller("--stale=8s")
    lend_to(scene, "one", "two")
    scene.forecasts.says = "error"
    wait_for(lambda: scene.status()["forecast"]["state"] == "Stale", what="the forecast is old")
    assert scene.held() == set()
    scene.serve("chat-2", "chat-3", "chat-4")
    wait_for(lambda: len(scene.serving()) == 5, what="the service has its GPUs")
    wait_for(lambda: len(scene.held()) >= 1, what="we chose who gives back")
    assert scene.status()["decision"]["verb"] in ("keep", "reclaim")
