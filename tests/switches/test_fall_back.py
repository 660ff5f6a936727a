"""Alarms switch a feature off once, say why, and never switch it on."""

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import httpx
import orjson
import pytest
from attacks.scenarios.objects import LEASE, node, pod, space
from attacks.scenarios.sizing import SIZING

from kopt.cluster.client.errors import Forbidden
from kopt.cluster.client.resources import FEATURE_ROLLOUTS, NODES, PODS
from kopt.cluster.objects.custom.feature_rollout import changes_of, switches_of
from kopt.cluster.runtime.fall_back import EVERY_S, FailureRate, FallBack, answers_of
from kopt.cluster.runtime.http import Request
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.controllers.extender import main as extender
from kopt.controllers.extender.calls.server import ServerSettings
from kopt.controllers.extender.leadership import LeadershipSettings
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.lending import main as lending
from kopt.controllers.lending.views import Pool
from kopt.controllers.sizing import main as sizing
from kopt.controllers.sizing.ports import SizingSettings
from kopt.core.decision import Mode
from kopt.core.scheduling.lending_pool import PoolStatus, Reclaiming
from kopt.core.switches import Alarm, AlarmUnknown, Switches
from kopt.policies.sizing.profiling_pod import DryRunSettings
from kopt.serving.client.alarms import drift_of, of_intervals, of_series
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import EndpointFailure
from kopt.serving.contract.common import ModelOut, ReasonOut
from kopt.serving.contract.model_answers import (
    ComparisonOut,
    IntervalHealthOut,
    ModelHealthResponse,
    PredictorsHealthResponse,
    SeriesHealthOut,
)

from .acting import USER, Watched, rollout

PATIENCE_S = 60.0
MISSES = Alarm("Drift", "sizing@7", "71 % of the last 200 measurements lay in the predicted interval.")


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Source:
    """An alarm that lasts while it is set; how often it was asked for, and since when evidence counted."""

    def __init__(self, alarm: Alarm | None = None) -> None:
        self.alarm, self.since_s = alarm, list[float]()

    async def __call__(self, since_s: float) -> Alarm | None:
        self.since_s.append(since_s)
        return self.alarm


class Clock:
    def __init__(self) -> None:
        self.now_s = 1.8e9

    def __call__(self) -> float:
        return self.now_s


def now(kube: Watched) -> Switches:
    document = kube.find(FEATURE_ROLLOUTS, "default")
    assert document is not None
    return switches_of(document)


async def watching(kube: Watched, count: int = 1) -> list[LiveSwitches]:
    """Replicas that have seen the switches; their informers end with the event loop of the test."""
    replicas = [LiveSwitches(cast(Any, kube), "sizing") for _ in range(count)]
    for replica in replicas:
        TASKS.append(asyncio.create_task(replica.informer.run()))
    await until(lambda: all(replica.informer.synced.is_set() for replica in replicas))
    return replicas


TASKS: list["asyncio.Task[None]"] = []


@pytest.fixture
async def kube() -> Any:
    api = Watched()
    api.put(FEATURE_ROLLOUTS, rollout(profiling=40))
    yield api
    for task in TASKS:
        task.cancel()
    await asyncio.gather(*TASKS, return_exceptions=True)
    TASKS.clear()


async def test_two_replicas_that_see_an_alarm_switch_off_once(kube: Watched) -> None:
    announced: list[str] = []
    replicas = [
        FallBack(cast(Any, kube), switches, "profiling", [Source(MISSES)], lambda _, __, text: announced.append(text))
        for switches in await watching(kube, 2)
    ]
    flipped = await asyncio.gather(*(replica.check() for replica in replicas))
    assert sorted(flipped) == [False, True]
    (flip,) = now(kube).history
    assert (flip.feature, flip.before, flip.after, flip.by, flip.alarm) == ("profiling", 40, 0, USER, "Drift/sizing@7")
    assert announced == [f"profiling: 40 % to 0 % by {USER}: {MISSES.message}"]


async def test_it_stays_off_when_the_alarm_ends_and_nobody_is_asked_meanwhile(kube: Watched) -> None:
    (switches,), source = await watching(kube), Source(MISSES)
    fall_back = FallBack(cast(Any, kube), switches, "profiling", [source])
    assert await fall_back.check()
    await until(lambda: switches.is_off("profiling"))
    source.alarm = None
    asked = len(source.since_s)
    for _ in range(3):
        assert not await fall_back.check()
    assert len(source.since_s) == asked
    assert now(kube).percent("profiling") == 0


async def test_who_switches_on_again_overrules_the_alarm_and_no_other(kube: Watched) -> None:
    (switches,), source = await watching(kube), Source(MISSES)
    fall_back = FallBack(cast(Any, kube), switches, "profiling", [source])
    assert await fall_back.check()
    before = now(kube)
    after = before.set_by("alice", "profiling", 100, "known: an old driver", 1.9e9)
    assert after is not None
    await kube.patch(FEATURE_ROLLOUTS, "default", changes_of(before, after))
    await until(lambda: switches.now == after)
    assert not await fall_back.check()
    assert source.since_s[-1] == 1.9e9, "evidence counts from then on"
    source.alarm = replace(MISSES, subject="sizing@8")
    assert await fall_back.check()
    assert [flip.after for flip in now(kube).history] == [0, 100, 0]


async def test_a_source_that_cannot_say_is_no_alarm_and_keeps_no_other_from_saying(kube: Watched) -> None:
    (switches,) = await watching(kube)

    async def silent(_since_s: float) -> Alarm | None:
        raise AlarmUnknown("no answer")

    assert not await FallBack(cast(Any, kube), switches, "profiling", [silent]).check()
    assert await FallBack(cast(Any, kube), switches, "profiling", [silent, Source(MISSES)]).check()


async def test_a_controllers_own_process_falls_back_and_leaves_jobs_alone() -> None:
    kube = Watched()
    SIZING.fill(kube)
    kube.put(FEATURE_ROLLOUTS, rollout())
    settings = SizingSettings(DryRunSettings("agents"), mode=Mode.ENFORCE)
    process = sizing.ProcessSettings(lease=LEASE, sizing=settings, port=0)
    replica = sizing.Replica(cast(Any, kube), process, alarms=[Source(MISSES)])
    task = asyncio.create_task(replica.run())
    try:
        await until(lambda: now(kube).percent("profiling") == 0)
        await until(lambda: "FeatureSwitched" in kube.events_on("default"))
        # What it may have held before it looked is released.
        await until(lambda: replica.cluster.held() == 0 and replica._leader.leading)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()


async def test_answers_that_fail_for_long_are_an_alarm_and_an_endpoint_that_is_gone_is_none() -> None:
    clock, status = Clock(), 500

    def answer(_request: httpx.Request) -> httpx.Response:
        if not status:
            raise httpx.ConnectError("refused")
        return httpx.Response(status, json={})

    async with AsyncPredictionClient("http://x", transport=httpx.MockTransport(answer), clock=clock) as client:
        rate = FailureRate("answers", lambda: (client.answered, client.failed), clock=clock)
        same = answers_of(client)
        assert await same(float("-inf")) is None

        async def half_an_hour() -> list[Alarm | None]:
            result = []
            for _ in range(60):
                with pytest.raises(EndpointFailure):
                    await client.models(deadline_s=0.01)
                clock.now_s += EVERY_S
                result.append(await rate(float("-inf")))
            return result

        status = 0
        assert await half_an_hour() == [None] * 60
        status = 500
        alarms = await half_an_hour()
        assert alarms[0] is None
        assert alarms[-1] is not None
        assert "answers failed within 60 minutes" in alarms[-1].message
        assert await rate(clock.now_s - EVERY_S) is None, "a person has just switched on"


async def test_lending_falls_back_while_gpus_stay_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = Watched()
    replica = lending.Replica(cast(Any, kube), lending.ProcessSettings(lease=LEASE, port=0))
    late = PoolStatus(reclaiming=Reclaiming(4, since_s=0.0, by_s=1.0))
    pools = [Pool({}, "inference", "u", 1, None, status=late), Pool({}, "calm", "v", 1, None)]
    monkeypatch.setattr(replica.cluster, "pools", lambda: pools)
    alarms = [await replica._late(float("-inf")) for _ in range(30)]
    assert alarms[0] is None
    alarm = alarms[-1]
    assert alarm is not None
    assert (alarm.kind, "checks of pools found GPUs overdue" in alarm.message) == ("ErrorBudget", True)
    monkeypatch.setattr(replica.cluster, "pools", lambda: pools[1:])
    assert [await replica._late(float("-inf")) for _ in range(300)][-1] is None


async def test_placement_falls_back_while_its_bindings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = Watched()
    space(kube, "team")
    kube.put(FEATURE_ROLLOUTS, rollout())
    for number in range(25):
        kube.put(NODES, node(f"n{number}"))
        waits = pod(f"p{number}", gpus=4)
        kube.put(PODS, waits | {"metadata": waits["metadata"] | {"uid": f"p{number}"}})

    async def refuse(*_: Any) -> Any:
        raise Forbidden(403, "Forbidden", "a quota")

    monkeypatch.setattr(kube, "create_at", refuse)
    settings = extender.ProcessSettings(
        extender=ExtenderSettings(Mode.ENFORCE),
        server=ServerSettings(port=0, drain_s=0),
        leadership=LeadershipSettings(identity="one", lease=LEASE),
    )
    replica = extender.Replica(cast(Any, kube), settings)
    monkeypatch.setattr(replica._binder, "bind", refuse)
    task = asyncio.create_task(replica.run())
    try:
        await until(lambda: replica.serves)
        assert not await replica._fall_back.check()
        names = [f"n{number}" for number in range(25)]
        for number in range(25):
            document = kube.find(PODS, f"p{number}", "team")
            await called(replica, "filter", {"Pod": document, "Nodes": None, "NodeNames": names})
            holding = replica.extender.fleet.holdings[f"p{number}"]
            binding = {"PodName": f"p{number}", "PodNamespace": "team", "PodUID": f"p{number}", "Node": holding.node}
            assert "a quota" in (await called(replica, "bind", binding))["Error"]
        assert await replica._fall_back.check()
        (flip,) = now(kube).history
        assert (flip.feature, flip.after) == ("placement", 0)
        assert "25 of 25 bindings failed" in flip.reason
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.server.stop()
        replica.close()


async def called(replica: extender.Replica, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = replica.server._answer(Request("POST", f"/{verb}", orjson.dumps(body)))
    answer = await reply if inspect.isawaitable(reply) else reply
    return dict(orjson.loads(answer.body))


def intervals(**fields: Any) -> IntervalHealthOut:
    reasons = (ReasonOut("INTERVALS_MISS", "71 % lay in the interval.", {}),)
    values: dict[str, Any] = {
        "predictor": "sizing",
        "role": "champion",
        "version": "7",
        "unit": "bytes",
        "compared": 200,
        "probability": 0.95,
        "coverage": 0.71,
        "error": 0.2,
        "bias": 0.2,
        "alarm": True,
        "widened_for": 2,
        "reasons": reasons,
        "newest": (ComparisonOut("train", "team", 0.0, 1.0, 1.0, 2.0, 3.0),),
    }
    return IntervalHealthOut(**values | fields)


def test_one_tenant_alone_makes_no_alarm_for_all() -> None:
    alarm = of_intervals(intervals())
    assert alarm is not None
    assert (alarm.name, alarm.message) == ("Drift/sizing@7", "sizing 7: 71 % lay in the interval.")
    assert of_intervals(intervals(widened_for=1)) is None
    assert of_intervals(intervals(alarm=False)) is None
    unnamed = (ComparisonOut("train", "", 0.0, 1.0, 1.0, 2.0, 3.0),)
    assert of_intervals(intervals(widened_for=1, newest=unnamed)) is not None, "there are no tenants to tell apart"


def series(*alarms: bool) -> ModelHealthResponse:
    shown = tuple(
        SeriesHealthOut(f"ml/s{number}", 50, 0.9, 0.95, 0.1, 0.2, 0.0, alarm, ()) for number, alarm in enumerate(alarms)
    )
    return ModelHealthResponse(model=ModelOut("demand", "3", "d"), challenger=None, series=shown, shadow=())


@pytest.mark.parametrize(
    ("alarms", "raised"),
    [((), False), ((True,), False), ((True, True), True), ((True, True, False, False, False), False)],
)
def test_demand_is_an_alarm_where_half_of_the_services_and_two_have_one(alarms: tuple[bool, ...], raised: bool) -> None:
    alarm = of_series(series(*alarms))
    assert (alarm is not None) is raised
    assert alarm is None or alarm.name == "Drift/demand@3"


async def test_the_endpoints_own_words_become_the_alarm() -> None:
    said = {
        "/v1/health/predictors": dataclasses.asdict(PredictorsHealthResponse(predictors=(intervals(),))),
        "/v1/health/models": dataclasses.asdict(series(True, True)),
    }
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=said[request.url.path]))
    async with AsyncPredictionClient("http://x", transport=transport) as client:
        found = [await drift_of(client, predictor)(0.0) for predictor in ("sizing", "demand", "bandwidth")]
    assert [alarm and alarm.name for alarm in found] == ["Drift/sizing@7", "Drift/demand@3", None]


async def test_an_endpoint_that_does_not_say_is_unknown_and_not_well() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(503, json={"detail": "No model is loaded yet."}))
    async with AsyncPredictionClient("http://x", transport=transport) as client:
        for predictor in ("sizing", "demand"):
            with pytest.raises(AlarmUnknown, match=predictor):
                await drift_of(client, predictor)(0.0)
