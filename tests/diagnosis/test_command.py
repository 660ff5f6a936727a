"""``kopt why`` against an API server over HTTP, with and without the right to list nodes."""

import ast
import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from benchmarked import benchmark_module
from typer.testing import CliRunner

import kopt
from kopt.cli.main import app
from kopt.controllers.overview.asking import WrongName
from kopt.controllers.overview.reading import Unknown

Object = dict[str, Any]
_TIMES_S = (60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0)
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


def _application(cluster: Any, forbidden: set[str], asked: list[Object]) -> web.Application:
    """Lists and reads objects as an API server does: selectors of names and uids, 403 and 404 as a Status. It is the
    prediction endpoint as well, where everything takes from a minute to an hour; ``asked`` gets the questions.
    """

    async def run_times(request: web.Request) -> web.Response:
        question = await request.json()
        asked.append(question)
        times = dict(zip(("p05", "p10", "p25", "p50", "p75", "p90", "p95"), _TIMES_S, strict=True))
        jobs = [
            {"id": job["id"], "remaining_seconds": times, "level": "class", "finished": 20} for job in question["jobs"]
        ]
        model = {"name": "runtime", "version": "1", "digest": "0" * 64}
        return web.json_response({"schema": "kopt/v1", "jobs": jobs, "at_s": question["at_s"], "model": model})

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
    application.router.add_post("/v1/runtime/jobs", run_times)
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
def served(cluster: Any, folder: Path, forbidden: set[str], asked: list[Object] | None = None) -> Iterator[Path]:
    """The kubeconfig of a server that answers in a thread of its own."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(_application(cluster, forbidden, [] if asked is None else asked))
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


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, list[Object]]]:
    """The kubeconfig of a cluster whose job waits for GPUs, and the questions that its endpoint gets."""
    situation = benchmark_module("why_situations.kueue").cohort_in_use(random.Random(3))
    questions: list[Object] = []
    with served(situation.cluster, tmp_path, set(), questions) as kubeconfig:
        server = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]["server"]
        monkeypatch.setenv("KOPT_URL", server)
        yield kubeconfig, questions


def test_it_says_when_the_job_starts_unless_it_is_told_not_to(asked: tuple[Path, list[Object]]) -> None:
    kubeconfig, questions = asked
    start = json.loads(why(kubeconfig, "-o", "json"))["diagnosis"]["start"]
    assert _TIMES_S[0] <= start["p50_s"] <= start["p90_s"] <= 10 * _TIMES_S[-1]
    assert "Expected start: in" in why(kubeconfig, "--eta")
    assert len(questions) == 2
    document = json.loads(why(kubeconfig, "--no-eta", "-o", "json"))
    assert document["diagnosis"]["start"] == {"p50_s": None, "p90_s": None, "draws": 0, "reason": None}
    assert document["diagnosis"]["changes"]
    text = why(kubeconfig, "--no-eta")
    assert "Expected start" not in text
    assert len(questions) == 2


async def test_python_gives_the_object_behind_the_document(asked: tuple[Path, list[Object]]) -> None:
    kubeconfig, questions = asked
    answer = await asyncio.to_thread(kopt.why, "team/train", kubeconfig=kubeconfig)
    printed = json.loads(await asyncio.to_thread(why, kubeconfig, "-o", "json"))
    document = json.loads(json.dumps(answer.to_dict()))
    for volatile in ("at_s", "summary", "findings"):
        document.pop(volatile)
        printed.pop(volatile)
    assert document == printed
    # A notebook has a loop that runs.
    again = kopt.why("train", "team", eta=False, kubeconfig=str(kubeconfig))
    assert again.start.p50_s is None
    assert [cause.code for cause in again.causes] == [cause.code for cause in answer.causes]
    assert len(questions) == 2
    html = replace(answer, summary="<b>train</b>", next="<i>")._repr_html_()
    assert answer.causes[0].message in unescape(html)
    assert answer.changes[0].message in unescape(html)
    assert "Expected start: in" in html
    assert "<b>train</b>" not in html
    assert "<i>" not in html
    assert "<title>half by" in html
    with pytest.raises(Unknown, match="there is no workload called trian"):
        kopt.why("team/trian", kubeconfig=kubeconfig)
    with pytest.raises(WrongName, match="names no job"):
        kopt.why("a/b/c/d", kubeconfig=kubeconfig)


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
        assert diagnosis["start"]["reason"]["code"] == "RUN_TIMES_UNANSWERED"
        assert "KOPT_URL" in text


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


@pytest.mark.long
def test_the_notebook_shows_every_answer(asked: tuple[Path, list[Object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """``docs/examples/how-long.ipynb``: each cell is run, and its last line shows a table and a chart."""
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    monkeypatch.setenv("KUBECONFIG", str(asked[0]))
    document = json.loads((root / "docs/examples/how-long.ipynb").read_text(encoding="utf-8"))
    scope: dict[str, Any] = {}
    shown = []
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            *first, last = ast.parse("".join(cell["source"])).body
            assert isinstance(last, ast.Expr)
            exec(compile(ast.Module(first, []), "cell", "exec"), scope)
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), scope)._repr_html_())
    assert len(shown) == 4
    for html, text, chart in zip(
        shown,
        ("How long it runs", "the best of", "GPUs are useful", "What binds"),
        ("<svg", "<svg", "<div style", "<svg"),
        strict=True,
    ):
        assert text in html
        assert "<td>" in html
        assert chart in html
