"""The scheduler extender's decision: filter + prioritize + bind over loopback HTTP, 70 % of the GPUs allocated.

The extender's own server and books run in a process of their own, as in a cluster; the names of the nodes come in
another order with every call, as a scheduler that filters in parallel sends them. Bindings go to a server that accepts
them all, and its time is reported apart; what a real API server adds shows in ``extender-cluster``. Each fleet is asked
over plain HTTP, and over TLS with certificates on both sides, as the chart installs it; a connection made anew, which
kube-scheduler needs for many a Binding, is measured apart. Prints Markdown; returns 1 when a target is missed.

    python -P -m benchmarks extender
"""

import asyncio
import http.client
import json
import random
import ssl
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

WARM_UP, DECISIONS, CONNECTIONS = 100, 1000, 200
GPUS = 8
ALLOCATED = 0.7
MIX = ((1, 1000, 8), (1, 500, 3), (2, 1000, 2), (4, 1000, 1), (8, 1000, 2))
"""GPUs, milli-GPU of each, how often."""


@dataclass(frozen=True)
class Case:
    nodes: int
    target_p99_ms: float
    tls: bool = False


CASES = (Case(1_250, 10.0), Case(1_250, 10.0, tls=True), Case(12_500, 50.0), Case(12_500, 50.0, tls=True))


@dataclass(frozen=True)
class Row:
    """Milliseconds: the decision without the Binding, its three calls, and the Binding. ``refused`` binds.

    ``connection_ms`` is a connection made anew up to its first answer; ``connection_cpu_ms`` the server's part of it.
    """

    case: Case
    decision_ms: tuple[float, float]
    calls_ms: dict[str, tuple[float, float]]
    binding_ms: tuple[float, float]
    refused: int
    cpu_ms: float
    memory_mib: int
    connection_ms: tuple[float, float]
    connection_cpu_ms: float

    @property
    def reached(self) -> bool:
        return self.decision_ms[1] < self.case.target_p99_ms and not self.refused


def main() -> int:
    """Print the table; 0 when every target is reached."""
    rows = [measure(case) for case in CASES]
    columns = (
        "GPUs",
        "TLS",
        "decision P50 / P99 ms",
        "target P99",
        "filter",
        "prioritize",
        "bind",
        "Binding (apart)",
        "CPU ms",
        "MiB",
        "new connection ms",
        "its CPU ms",
        "reached",
    )
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for row in rows:
        calls = " | ".join(_pair(row.calls_ms[verb]) for verb in ("filter", "prioritize", "bind"))
        verdict = "yes" if row.reached else "no"
        print(
            f"| {row.case.nodes * GPUS:,} | {'yes' if row.case.tls else 'no'} | {_pair(row.decision_ms)} | "
            f"{row.case.target_p99_ms:g} | {calls} | {_pair(row.binding_ms)} | {row.cpu_ms:.2f} | {row.memory_mib} | "
            f"{_pair(row.connection_ms)} | {row.connection_cpu_ms:.2f} | {verdict} |"
        )
    return 0 if all(row.reached for row in rows) else 1


def measure(case: Case) -> Row:
    """One fleet: a server process, then decisions one after the other as a scheduler makes them."""
    import numpy as np
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        tls = _certificates(Path(folder)) if case.tls else None
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "serve", str(case.nodes)]
        command += [folder] if case.tls else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline())
                process = psutil.Process(server.pid)
                used_s = lambda: sum(process.cpu_times()[:2])  # noqa: E731
                before_s = used_s()
                seconds, refused = _decide(case, _connection(port, tls))
                cpu_ms = 1000 * (used_s() - before_s) / (WARM_UP + DECISIONS)
                before_s = used_s()
                made_s = [_connect(_connection(port, tls)) for _ in range(CONNECTIONS)]
                connection_cpu_ms = 1000 * (used_s() - before_s) / CONNECTIONS
                memory = process.memory_info().rss >> 20
            finally:
                server.kill()
    table = np.array(seconds) * 1000
    decision = table[:, :3].sum(axis=1)
    two = lambda column: (float(np.quantile(column, 0.5)), float(np.quantile(column, 0.99)))  # noqa: E731
    calls = {verb: two(table[:, place]) for place, verb in enumerate(("filter", "prioritize", "bind"))}
    return Row(
        case,
        two(decision),
        calls,
        two(table[:, 3]),
        refused,
        cpu_ms,
        memory,
        two(1000 * np.array(made_s)),
        connection_cpu_ms,
    )


def _certificates(folder: Path) -> ssl.SSLContext:
    """The server's files in ``folder``; a caller's context."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from controlplane.certificates import Authority

    authority = Authority(folder)
    authority.issue("tls", "kopt-extender", hosts=["127.0.0.1"])
    caller = authority.issue("caller", "kopt-scheduler")
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(caller.certificate, caller.key)
    return context


def _connection(port: int, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=tls)


def _connect(connection: http.client.HTTPConnection) -> float:
    """Seconds until a new connection has its first answer."""
    started = perf_counter()
    connection.request("GET", "/healthz")
    connection.getresponse().read()
    elapsed = perf_counter() - started
    connection.close()
    return elapsed


def _decide(case: Case, connection: http.client.HTTPConnection) -> tuple[list[list[float]], int]:
    chance = random.Random(7)
    names = [f"node-{number:05d}" for number in range(case.nodes)]
    seconds, refused = [], 0
    for number in range(WARM_UP + DECISIONS):
        chance.shuffle(names)
        pod = pod_manifest(number, chance)
        offer = {"Pod": pod, "Nodes": None, "NodeNames": names}
        filtered, filter_s, _ = _call(connection, "/filter", offer)
        if not filtered["NodeNames"]:
            # A pod that needs a whole node may find none: a decision as well, of one call.
            if number >= WARM_UP:
                seconds.append([filter_s, 0.0, 0.0, 0.0])
            continue
        offer["NodeNames"] = filtered["NodeNames"]
        scores, prioritize_s, _ = _call(connection, "/prioritize", offer)
        winner = max(scores, key=lambda score: score["Score"])["Host"]
        meta = pod["metadata"]
        call = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": winner}
        bound, bind_s, binding_s = _call(connection, "/bind", call)
        refused += bool(bound["Error"])
        if number >= WARM_UP:
            seconds.append([filter_s, prioritize_s, bind_s - binding_s, binding_s])
    return seconds, refused


def _call(connection: http.client.HTTPConnection, path: str, body: Any) -> tuple[Any, float, float]:
    """The answer, its seconds, and those of the Binding in it."""
    content = json.dumps(body, separators=(",", ":"))
    started = perf_counter()
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    answer = reply.read()
    elapsed = perf_counter() - started
    if reply.status != 200:
        raise RuntimeError(f"{path}: {reply.status} {answer[:300]!r}")
    timing = reply.headers.get("Server-Timing", "dur=0")
    return json.loads(answer), elapsed, float(timing.rpartition("dur=")[2]) / 1000


def pod_manifest(number: int, chance: random.Random) -> dict[str, Any]:
    """A pod as a Job makes it, some 2 KiB."""
    gpus, share, _ = chance.choices(MIX, [weight for *_, weight in MIX])[0]
    limits = {"cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi"} | (
        {"nvidia.com/gpu": str(gpus)} if share == 1000 else {}
    )
    annotations = {} if share == 1000 else {"kaiwo.ai/gpu-fraction": f"{share / 1000:g}"}
    environment = [{"name": f"SETTING_{one}", "value": "x" * 40} for one in range(16)]
    container = {
        "name": "main",
        "image": "registry.local/train:1",
        "command": ["python", "train.py"],
        "env": environment,
        "resources": {"limits": limits, "requests": limits},
    }
    metadata = {"name": f"pod-{number}", "namespace": "bench", "uid": f"{number:032x}", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container], "schedulerName": "kopt-scheduler"}, "status": {}}


def _pair(two: tuple[float, float]) -> str:
    return f"{two[0]:.2f} / {two[1]:.2f}"


async def serve(nodes: int, tls: Path | None) -> None:
    """The extender's server over a fleet of that many nodes; prints its port. As each pod is bound, another ends."""
    from kopt.cluster.client.api import connect
    from kopt.cluster.runtime.http.tls_files import TlsFiles
    from kopt.cluster.runtime.informer import Change, ChangeKind
    from kopt.cluster.runtime.signals import settle_memory
    from kopt.cluster.workloads.placement.pod_state import PodState
    from kopt.controllers.extender.binding.request import Binder
    from kopt.controllers.extender.calls.server import ExtenderServer, ServerSettings
    from kopt.controllers.extender.calls.service import Extender
    from kopt.controllers.extender.metrics import ExtenderMetrics
    from kopt.controllers.extender.settings import ExtenderSettings
    from kopt.core.decision import Mode
    from kopt.policies.placement.fleet import Fleet

    chance = random.Random(11)
    with tempfile.TemporaryDirectory() as folder:
        async with connect(await _accepts_everything(Path(folder))) as kube:
            metrics = ExtenderMetrics()
            extender = Extender(
                Fleet(),
                Binder(kube, None),
                ExtenderSettings(Mode.ENFORCE),
                metrics,
                announce=lambda decision: loop.call_soon(seen_bound, decision.pod),
            )
            loop = asyncio.get_running_loop()
            running = await _fill(extender, nodes, chance)

            def seen_bound(pod: tuple[str, str]) -> None:
                decision = extender.log.find(pod)
                assert decision is not None
                waiting = extender.pods[decision.uid]
                view = PodState(waiting.uid, pod, decision.node, False, waiting.ask, decision.gpus, "", "", "")
                extender.pod_changed(Change(ChangeKind.UPDATED, pod, waiting, view))
                running.append(view)
                place = chance.randrange(len(running))
                running[place], running[-1] = running[-1], running[place]
                ended = running.pop()
                extender.pod_changed(Change(ChangeKind.DELETED, ended.key, ended, None))

            files = TlsFiles(tls) if tls is not None else None
            server = ExtenderServer(extender, metrics, ServerSettings(port=0), tls=files.context if files else None)
            await server.start()
            settle_memory()
            print(server.port, flush=True)
            while True:
                await asyncio.sleep(1.0)
                await extender.teach()


async def _fill(extender: Any, nodes: int, chance: random.Random) -> list[Any]:
    """Nodes, and running pods on 70 % of their GPUs, scattered as a default scheduler leaves them."""
    from kopt.cluster.runtime.informer import Change, ChangeKind
    from kopt.core.scheduling.placement import FleetNode
    from kopt.core.units import GIB, Bytes

    names = [f"node-{number:05d}" for number in range(nodes)]
    for name in names:
        offer = FleetNode(name, 96_000, Bytes(1024 * GIB), GPUS, "NVIDIA-A100-SXM4-80GB", Bytes(80 * GIB))
        change = Change(ChangeKind.ADDED, ("", name), None, {"nvidia.com/gpu": offer})
        extender.node_changed(change)
    state = extender.fleet.pools["nvidia.com/gpu"].state
    wanted, taken, number = ALLOCATED * nodes * GPUS * 1000, 0, 0
    views = []
    while taken < wanted:
        number += 1
        document = pod_manifest(10**9 + number, chance)
        asked = extender.pod_state(document).ask.request.gpus
        name = names[chance.randrange(nodes)]
        if (state.gpu_free_milli[state.index[name]] >= asked.share).sum() < asked.count:
            continue
        document["spec"]["nodeName"] = name
        view = extender.pod_state(document)
        extender.pod_changed(Change(ChangeKind.ADDED, view.key, None, view))
        views.append(view)
        taken += asked.total
    await extender.teach()
    return views


async def _accepts_everything(folder: Path) -> Path:
    """A kubeconfig of a server that answers every POST with success."""
    import yaml
    from aiohttp import web

    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(status=201, text='{"kind":"Status","apiVersion":"v1","status":"Success"}')

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": address}}],
        "users": [{"name": "one", "user": {}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
