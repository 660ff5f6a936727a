"""The agents of a node, by the entries of their processes: whatever stands on pods, namespaces and the node's own
objects, an ordinary pod is followed and annotated, and the node's topology is published."""

import asyncio
import contextlib
import json
import os
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import node_outputs as outputs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logtail_endpoint import Endpoint

from kopt.agents.logtail import process as logtail
from kopt.agents.logtail.log_paths import PodSettings
from kopt.agents.staging.journal import finished_parts
from kopt.agents.topology import process as topology
from kopt.agents.topology.publishing import PublishSettings
from kopt.agents.topology.sources import Sources
from kopt.cluster.client.resources import NODE_TOPOLOGIES, NODES, PODS, Object

from .api_in_memory import MemoryKube
from .hostile import trees
from .scenarios.objects import SPACE, Host, node, note_of, notes, pod, space
from .test_hostile_objects import PATIENCE_S, Drawn, some

FEW, MANY = 8, int(os.environ.get("KOPT_ATTACK_EXAMPLES", "1500"))
NODE, LINE = "n0", "step 1 loss 2.0"


@contextlib.contextmanager
def cluster_of(kube: MemoryKube, endpoint: Endpoint) -> Any:
    """Both agents meet this cluster and this endpoint."""

    @contextlib.asynccontextmanager
    async def connect(*_: Any) -> AsyncIterator[MemoryKube]:
        yield kube

    class Client:
        def __init__(self, *_: Any, **__: Any) -> None:
            """Whatever the address."""

        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *_: object) -> None:
            """Nothing is open."""

        async def checkpoint(self, request: Any) -> Any:
            # As over the wire.
            return endpoint.take(json.loads(json.dumps(request)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logtail, "connect", connect)
        patch.setattr(logtail, "AsyncPredictionClient", Client)
        patch.setattr(logtail, "_raise_file_limit", lambda: None)
        patch.setattr(topology, "connect", connect)
        yield


async def ends_with(work: Coroutine[Any, Any, None], handled: Callable[[], object]) -> None:
    task = asyncio.create_task(work)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not handled():
                if task.done():
                    task.result()
                    pytest.fail("the agent has ended")
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(kube: MemoryKube, objects: Drawn) -> None:
    for host, document in objects:
        names = {
            key: host.base["metadata"][key] for key in ("name", "namespace", "uid") if key in host.base["metadata"]
        }
        kube.put(host.resource, document | {"metadata": document["metadata"] | names})


# --- logtail

POD_HOSTS = (
    Host(PODS, pod("a-hostile", "tenant", on=NODE, annotations=notes()), fixed=(("spec", "nodeName"),)),
    Host(PODS, pod("a-colleague", "team", on=NODE, job_name="ordinary"), fixed=(("spec", "nodeName"),)),
    SPACE,
)


async def logs_are_read(objects: Drawn, root: Path) -> None:
    kube, endpoint = MemoryKube(), Endpoint()
    space(kube, "team", "tenant")
    put(kube, objects)
    kube.put(PODS, pod("ordinary", on=NODE, uid="uid-ordinary"))
    folder = root / "team_ordinary_uid-ordinary" / "a"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0.log").write_text(f"2026-11-23T12:00:00Z stdout F {LINE}\n")
    with cluster_of(kube, endpoint):
        work = logtail.serve_node(logtail.ProcessSettings("http://127.0.0.1:1", grace_s=0), PodSettings(), NODE, root)
        await ends_with(
            work,
            lambda: (
                any(LINE in lines.values() for (of, _), lines in endpoint.taken.items() if of == "team/ordinary")
                and note_of(kube, PODS, "ordinary", "kaiwo.ai/checkpoint-state")
            ),
        )


def log_agent(root: Path, examples: int, most: int) -> None:
    @settings(max_examples=examples)
    @given(some(POD_HOSTS, most))
    def holds(objects: Drawn) -> None:
        asyncio.run(logs_are_read(objects, root))

    holds()


def test_an_ordinary_log_is_read(tmp_path: Path) -> None:
    asyncio.run(logs_are_read([], tmp_path))


def test_no_pod_costs_another_its_log(tmp_path: Path) -> None:
    log_agent(tmp_path, FEW, 3)


@pytest.mark.thorough
def test_no_pod_of_very_many_costs_another_its_log(tmp_path: Path) -> None:
    log_agent(tmp_path, MANY, 6)


def test_what_is_contained_is_counted_as_controllers_count(tmp_path: Path) -> None:
    broken = pod("a-hostile", "tenant", on=NODE)
    broken["spec"]["containers"] = [{"name": "a", "resources": {"limits": 5}}]
    seen: list[Any] = []
    serve = logtail.serve_metrics

    def spied(jobs: Any, contained: Any, host: str, port: int | None) -> Any:
        seen.append(contained)
        return serve(jobs, contained, host, port)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logtail, "serve_metrics", spied)
        asyncio.run(logs_are_read([(Host(PODS, broken), broken)], tmp_path))
    (errors,) = seen[0].metrics()
    samples = {tuple(sorted(one.labels.items())): one.value for one in errors.samples}
    assert errors.name == "kopt_object_errors"
    assert samples == {(("controller", "logtail"), ("kind", "Pod"), ("reason", "InvalidObject")): 1.0}


# --- topology


async def topology_is_published(objects: Drawn, replay: Path) -> Object:
    """The spec as it stands in the end."""
    (replay / "nvidia-smi-topo.txt").write_text(outputs.topo_m(4, {(0, 1): 2}, {"mlx5_0": 0}))
    kube = MemoryKube()
    kube.put(NODES, node(NODE))
    put(kube, objects)
    quick = PublishSettings(first_pause_s=0.01, longest_pause_s=0.05, retry_first_s=0.01)

    def published() -> bool:
        spec = (kube.find(NODE_TOPOLOGIES, NODE) or {}).get("spec") or {}
        return len(spec.get("gpus") or ()) == 4 and spec.get("links") is not None

    with cluster_of(kube, Endpoint()):
        work = topology.serve(topology.ProcessSettings(NODE, Sources(replay=replay), publish=quick))
        await ends_with(work, published)
    found = kube.find(NODE_TOPOLOGIES, NODE)
    assert found is not None
    return found


def topology_hosts(replay: Path) -> tuple[Host, ...]:
    ordinary = asyncio.run(topology_is_published([], replay))
    # Of another machine: it has to be written anew.
    other = ordinary | {"spec": ordinary["spec"] | {"gpus": ordinary["spec"]["gpus"][:2], "links": []}}
    return Host(NODE_TOPOLOGIES, other, schema="nodetopologies"), Host(NODES, node(NODE))


def topology_agent(replay: Path, examples: int, most: int) -> None:
    @settings(max_examples=examples)
    @given(some(topology_hosts(replay), most))
    def holds(objects: Drawn) -> None:
        asyncio.run(topology_is_published(objects, replay))

    holds()


def test_the_topology_is_published_whatever_stands_in_its_object(tmp_path: Path) -> None:
    topology_agent(tmp_path, FEW, 2)


@pytest.mark.thorough
def test_the_topology_is_published_whatever_stands_in_very_many_objects(tmp_path: Path) -> None:
    topology_agent(tmp_path, MANY, 2)


# --- staging: its journal lies on a volume that users may write


@settings(max_examples=50)
@given(st.lists(trees.map(json.dumps) | st.binary(max_size=60).map(repr), max_size=6))
def test_no_line_of_a_journal_ends_a_download(lines: list[str]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        for line in lines:
            file.write(b"%08x %s\n" % (zlib.crc32(line.encode()), line.encode()))
        file.flush()
        assert isinstance(finished_parts(Path(file.name), iter(())), dict)
