"""``kopt why`` against an API server over HTTP, with and without the right to list nodes."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from benchmarked import benchmark_module
from typer.testing import CliRunner

from kopt.cli.main import app

Object = dict[str, Any]
KINDS = {
    ("", "v1"): {"nodes": "nodes", "pods": "pods"},
    ("batch", "v1"): {"jobs": "jobs"},
    ("events.k8s.io", "v1"): {"events": "events"},
    ("kueue.x-k8s.io", "v1beta1"): {
        "workloads": "workloads",
        "localqueues": "local_queues",
        "clusterqueues": "cluster_queues",
        "cohorts": "cohorts",
        "resourceflavors": "flavors",
    },
    ("scheduling.run.ai", "v2alpha2"): {"podgroups": "kai_groups"},
    ("scheduling.run.ai", "v2"): {"queues": "kai_queues"},
    ("resource.k8s.io", "v1"): {"resourceclaims": "claims", "resourceslices": "slices"},
}
"""Kinds that are served, with the name of their objects in a constructed cluster; Volcano is not installed."""


def _application(cluster: Any, forbidden: set[str]) -> web.Application:
    """Lists and reads objects as an API server does: selectors of names and uids, 403 and 404 as a Status."""

    def status(code: int, reason: str) -> web.Response:
        body = {"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code}
        return web.json_response(body, status=code)

    async def groups(_: web.Request) -> web.Response:
        names = sorted({group for group, _ in KINDS if group})
        listed = [
            {
                "name": name,
                "versions": [
                    {"groupVersion": f"{group}/{version}", "version": version}
                    for group, version in KINDS
                    if group == name
                ],
            }
            for name in names
        ]
        return web.json_response({"kind": "APIGroupList", "groups": listed})

    async def answer(request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        key = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if key not in KINDS:
            return status(404, "NotFound")
        if not rest:
            return web.json_response({"resources": [{"name": plural} for plural in KINDS[key]]})
        space = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            space, rest = rest[1], rest[2:]
        if rest[0] not in KINDS[key]:
            return status(404, "NotFound")
        if rest[0] in forbidden and not space:
            return status(403, "Forbidden")
        items = getattr(cluster, KINDS[key][rest[0]])
        items = [item for item in items if not space or item["metadata"].get("namespace") == space]
        if len(rest) > 1:
            named = [item for item in items if item["metadata"]["name"] == rest[1]]
            return web.json_response(named[0]) if named else status(404, "NotFound")
        return web.json_response({"items": [item for item in items if _selected(item, request.query)], "metadata": {}})

    application = web.Application()
    application.router.add_get("/apis", groups)
    application.router.add_get("/{path:.*}", answer)
    return application


def _selected(item: Object, query: Any) -> bool:
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = part.partition("=")
        if path == "metadata.name" and item["metadata"]["name"] != value:
            return False
        if path == "reason" and item.get("reason") != value:
            return False
        if path == "regarding.uid" and item["regarding"]["uid"] != value:
            return False
    _, is_selecting, uid = query.get("labelSelector", "").partition("batch.kubernetes.io/controller-uid=")
    owners = [ref["uid"] for ref in item["metadata"].get("ownerReferences", [])]
    return not is_selecting or uid in owners


@contextmanager
def served(cluster: Any, folder: Path, forbidden: set[str]) -> Iterator[Path]:
    """The kubeconfig of a server that answers in a thread of its own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(_application(cluster, forbidden))
    ports = list[int]()

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        ready.set()

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(20)
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{ports[0]}"}}],
        "users": [{"name": "x", "user": {"token": "none"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    try:
        yield path
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)


def why(kubeconfig: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["why", "team/train", "--kubeconfig", str(kubeconfig), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("module", "maker", "code"),
    [
        ("nodes", "gpus_fragmented", "GPUS_FRAGMENTED"),
        ("nodes", "claim", "CLAIM_UNALLOCATED"),
        ("kueue", "cohort_in_use", "COHORT_IN_USE"),
    ],
)
def test_the_command_reads_the_cluster(module: str, maker: str, code: str, tmp_path: Path) -> None:
    make = getattr(benchmark_module(f"why_situations.{module}"), maker)
    situation = make(random.Random(3))
    with served(situation.cluster, tmp_path, set()) as kubeconfig:
        text, document = why(kubeconfig), json.loads(why(kubeconfig, "-o", "json"))
    diagnosis = document["diagnosis"]
    assert diagnosis["scheduler"] == situation.engine
    assert diagnosis["causes"][0]["code"] == code
    assert f"What binds ({situation.engine}):" in text
    assert code in text
    assert diagnosis["unread"] == []
    if code != "CLAIM_UNALLOCATED":
        assert "It would run with any of these" in text
        assert all(change["verified"] for change in diagnosis["changes"])
        assert diagnosis["start"]["reason"]["code"] == "RUN_TIME_UNKNOWN"


def test_who_may_not_list_nodes_gets_the_words_of_the_scheduler(tmp_path: Path) -> None:
    nodes = benchmark_module("why_situations.nodes")
    situation = nodes.tainted(random.Random(1))
    with served(situation.cluster, tmp_path, {"nodes", "pods"}) as kubeconfig:
        diagnosis = json.loads(why(kubeconfig, "-o", "json"))["diagnosis"]
    assert diagnosis["causes"][0]["code"] == "TAINT"
    assert diagnosis["causes"][0]["message"].startswith("The scheduler: ")
    assert diagnosis["changes"] == []
    assert {"nodes", "pods"} <= set(diagnosis["unread"])


def test_a_job_that_runs_has_no_diagnosis(tmp_path: Path) -> None:
    objects, nodes = benchmark_module("why_situations.objects"), benchmark_module("why_situations.nodes")
    fleet = nodes.Fleet(random.Random(2))
    where, spec = fleet.add(8), objects.pod_spec(1)
    fleet.cluster.jobs.append(objects.job("train", spec))
    fleet.cluster.pods.append(objects.pod("train-0", spec, on=where, owned_by=objects.owner("Job", "train")))
    with served(fleet.cluster, tmp_path, set()) as kubeconfig:
        assert json.loads(why(kubeconfig, "-o", "json"))["diagnosis"] is None
        assert "What binds" not in why(kubeconfig)
