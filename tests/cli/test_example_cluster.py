"""The example cluster of ``kopt up``: read by the ordinary watch, closed to everybody else, and a day that repeats."""

import asyncio
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from controlplane.processes import PATIENCE_S

from kopt.cli.cluster.queueing.queue import read
from kopt.cli.local.example import agents
from kopt.cli.local.example.cluster import NODES, objects_at
from kopt.cli.local.example.jobs import BORROWERS
from kopt.cli.local.example.kubeconfig import kubeconfig_of, read_access, write_kubeconfig
from kopt.cli.local.example.server import application
from kopt.cli.local.example.starting import wants_example
from kopt.cli.local.example.store import Store
from kopt.cli.local.pages.cluster import ClusterWatch
from kopt.cluster.client.api import Kube, Unauthorized
from kopt.cluster.client.credentials import Credentials, KubeconfigAccess
from kopt.cluster.client.resources import EVICTIONS, JOBS, KAI_QUEUES, KUEUE_CLUSTER_QUEUES, LENDING_POOLS, PODS
from kopt.controllers.overview.collect import gather
from kopt.controllers.overview.reading import Wanted
from kopt.controllers.overview.why import why
from kopt.core.hardware.health import Grade
from kopt.core.scheduling.eviction import Phase
from kopt.core.scheduling.overview import Overview
from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from kopt.simulator.lending.recording import MOMENTS, record_day

MIDDAY_S = 1_900_022_400.0


class Example:
    """A served store and the home with its kubeconfig."""

    def __init__(self, home: Path, store: Store, url: str) -> None:
        self.home, self.store, self.url = home, store, url


@pytest.fixture
async def example(tmp_path: Path) -> AsyncIterator[Example]:
    store = Store()
    await store.replace(objects_at(MIDDAY_S))
    runner = web.AppRunner(application(store, "secret"), shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    write_kubeconfig(tmp_path, port)
    yield Example(tmp_path, store, f"http://127.0.0.1:{port}")
    await runner.cleanup()


class Signed:
    """Access with a token."""

    def __init__(self, url: str, token: str) -> None:
        self._credentials = Credentials(url, f"Bearer {token}", None)

    async def credentials(self) -> Credentials:
        return self._credentials

    renew = credentials


async def until(watch: ClusterWatch, is_so: Callable[[Overview], object]) -> Overview:
    async with asyncio.timeout(PATIENCE_S):
        while not (watch.overview().ready and is_so(watch.overview())):
            await asyncio.sleep(0.02)
    return watch.overview()


async def test_the_ordinary_watch_reads_it_and_hears_of_the_next_moment(example: Example) -> None:
    kube = Kube(Signed(example.url, "secret"))
    watch = ClusterWatch(kube, lambda: MIDDAY_S)
    running = asyncio.create_task(watch.run())
    first = await until(watch, lambda overview: overview.pools and overview.ledger and overview.staged)
    assert first.problems == ()
    assert [pool.name for pool in first.pools] == ["inference"]
    assert len(first.pools[0].history) == MOMENTS
    assert {node.topology.node for node in (await watch.nodes()).nodes} == set(NODES)
    async with asyncio.timeout(PATIENCE_S):
        while not (watch.gpus().ready and watch.gpus().nodes):
            await watch.gpus_changed()
    assert set(watch.gpus().nodes) == set(NODES)
    grades = {name: node.standing.grade for name, node in watch.gpus().nodes.items()}
    assert {grade for grade in grades.values() if grade is not None} >= {Grade.HEALTHY, Grade.SUSPECT}
    assert {holder.pod for node in watch.gpus().nodes.values() for gpu in node.gpus for holder in gpu.holders}
    await example.store.replace(objects_at(MIDDAY_S + 300))
    last_s = first.pools[0].history[-1].at_s
    later = await until(watch, lambda overview: overview.pools[0].history[-1].at_s > last_s)
    assert later.pools[0].history[-1].at_s == last_s + 300
    running.cancel()
    await kube.close()


async def test_lists_are_narrowed_and_kinds_are_discovered(example: Example) -> None:
    kube = Kube(Signed(example.url, "secret"))
    assert await kube.serves(LENDING_POOLS)
    assert not await kube.serves(KAI_QUEUES)
    evictions = (await kube.list(EVICTIONS)).items
    vision = (await kube.list(EVICTIONS, "vision")).items
    assert 0 < len(vision) < len(evictions)
    name = vision[0]["metadata"]["name"]
    assert [
        item["metadata"]["name"] for item in (await kube.list(EVICTIONS, field_selector=f"metadata.name={name}")).items
    ] == [name]
    assert (await kube.list(EVICTIONS, label_selector="app=none")).items == []
    assert (await kube.list(EVICTIONS, label_selector="app.kubernetes.io/part-of=kaiwo-optimizer")).items == evictions
    await kube.close()


async def test_without_the_token_nothing_is_read_and_with_it_nothing_is_written(example: Example) -> None:
    kube = Kube(Signed(example.url, "guessed"))
    with pytest.raises(Unauthorized):
        await kube.list(LENDING_POOLS)
    await kube.close()
    path, headers = "/apis/kaiwo.ai/v1alpha1/lendingpools", {"authorization": "Bearer secret"}
    async with aiohttp.ClientSession() as session:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            async with session.request(method, example.url + path, headers=headers) as reply:
                assert reply.status == 405
        async with session.get(example.url + "/apis/kaiwo.ai") as reply:
            assert reply.status == 401
        async with session.get(f"{example.url}{path}?watch=true&resourceVersion=1", headers=headers) as reply:
            assert reply.status == 200


def test_the_kubeconfig_is_its_owners_and_has_a_new_token_each_time(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path, 4000)
    first = read_access(tmp_path)
    write_kubeconfig(tmp_path, 4001)
    second = read_access(tmp_path)
    assert (first.port, second.port) == (4000, 4001)
    assert first.token != second.token
    assert len(first.token) > 30
    assert stat.S_IMODE(kubeconfig_of(tmp_path).stat().st_mode) == 0o600
    credentials = asyncio.run(KubeconfigAccess(str(kubeconfig_of(tmp_path))).credentials())
    assert credentials.host == "http://127.0.0.1:4001"
    assert second.token in credentials.authorization


def test_it_is_shown_where_there_is_nothing_else_to_show(tmp_path: Path) -> None:
    assert wants_example(tmp_path, {})
    assert not wants_example(tmp_path, {"KUBECONFIG": "/x"})
    assert not wants_example(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    for source, wanted in (("generator", True), ("prometheus", False)):
        home = tmp_path / source
        write_demand(generate(services=1, days=1.0), home / "demand", source=source)
        assert wants_example(home, {}) is wanted


def test_a_recorded_day_lends_and_takes_back_and_never_lends_what_is_kept() -> None:
    day = record_day(("chat", "code"), gpus=32)
    assert len(day) == MOMENTS
    assert {moment.verb for moment in day} == {"lend", "reclaim", "keep"}
    assert all(moment.lent + moment.provision <= 32 for moment in day)
    assert all(moment.borrowed <= moment.lent for moment in day)
    assert day == record_day(("chat", "code"), gpus=32)


def test_every_line_of_a_training_has_its_time_and_a_save_is_under_way() -> None:
    now_s = time.time()
    saving = next(training for training in agents.TRAININGS if training.into_save_s is not None)
    lines: Mapping[bool, list[str]] = {True: [], False: []}
    before_s = 0.0
    for at_s, text in saving.lines(now_s):
        assert at_s >= before_s
        before_s = at_s
        lines[at_s <= now_s].append(text)
        if len(lines[False]) > 2:
            break
    assert lines[True][-1].startswith("Saving checkpoint")
    assert lines[False][0].startswith("successfully saved")


def test_requests_are_those_that_the_endpoint_takes(tmp_path: Path) -> None:
    from tests.cli.endpoints import shipped_endpoint

    with shipped_endpoint(tmp_path) as url:
        from kopt.serving.client.blocking import PredictionClient

        with PredictionClient(url, deadline_s=60.0) as client:
            for request in agents.sizing_requests():
                assert not client.sizing(request)["fallback"]
            advice: list[Any] = list(client.sizes())
    assert len(advice) == len(agents.sizing_requests())
    assert all(item.has_peak for item in advice), [(item.name, item.reasons) for item in advice]


async def test_the_page_of_queues_shows_its_jobs_and_says_what_the_terminal_says(example: Example) -> None:
    kube = Kube(Signed(example.url, "secret"))
    watch = ClusterWatch(kube, lambda: MIDDAY_S)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(PATIENCE_S):
        while not (state := await watch.queue()).ready or len(state.queued) < 6:
            await asyncio.sleep(0.02)
    assert state.problems == ()
    assert {name for name in state.missing if "kueue" in name} == set()
    lines, unread = await read(kube, "", MIDDAY_S)
    assert unread == ()
    assert list(state.queued) == lines
    assert [(one.full_name, one.position) for one in lines if not one.has_gpus] == [
        ("research/qwen-32b-sft", 1),
        ("vision/video-moe-pretrain", 2),
        ("research/olmo-7b-pretrain", None),
    ]
    assert {one.name for one in lines if one.has_gpus} == set(BORROWERS)
    explained = await asyncio.to_thread(state.explain, state.queued)
    for one in lines:
        terminal = why(await gather(kube, Wanted(one.name, one.namespace), MIDDAY_S))
        page = explained[one.uid]
        assert (page.summary, page.next) == (terminal.summary, terminal.next)
        assert page.sentences == tuple(finding.message for finding in terminal.findings)
        assert page.unread == ()
    reasons = [explained[one.uid].sentences[0] for one in lines if not one.has_gpus]
    expected = ("insufficient unused quota", "more than the queue has", "held by staging")
    for reason, word in zip(reasons, expected, strict=True):
        assert word in reason
    causes = [explained[one.uid].document["diagnosis"]["causes"][0]["code"] for one in lines if not one.has_gpus]
    assert causes == ["QUOTA_IN_USE", "QUOTA_TOO_SMALL", "HELD"]
    # Nothing has changed: nothing is put in order anew.
    assert (await watch.queue()).queued is state.queued
    running.cancel()
    await kube.close()


@pytest.mark.parametrize("hour", range(24))
def test_at_every_hour_borrowers_run_unless_the_ledger_says_that_they_wait(hour: int) -> None:
    now_s = MIDDAY_S + 3600 * hour
    objects = objects_at(now_s)
    waits = {
        item["spec"]["workload"]["name"] for item in objects[EVICTIONS] if item["status"]["phase"] == Phase.WAITING
    }
    runs = {job["metadata"]["name"] for job in objects[JOBS] if not job["spec"]["suspend"]}
    assert runs == set(BORROWERS) - waits
    assert {pod["metadata"]["ownerReferences"][0]["name"] for pod in objects[PODS]} == runs
    queue = next(item for item in objects[KUEUE_CLUSTER_QUEUES] if item["metadata"]["name"] == "research")
    (flavors,) = queue["spec"]["resourceGroups"]
    quota = {flavor["name"]: int(flavor["resources"][0]["nominalQuota"]) for flavor in flavors["flavors"]}
    assert quota["lent"] == objects[LENDING_POOLS][0]["status"]["lentGpus"]
