"""Any pod can reach the metrics port of an agent. What it opens there costs neither threads nor others' scrapes."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
from controlplane.processes import PATIENCE_S, free_port
from prometheus_client.core import GaugeMetricFamily

from kopt.agents.runtime.running import metrics_server

ATTACKER = "127.0.0.66"
IDLE = 300


def collect() -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily("kopt_logtail_jobs", "Jobs that are followed.", value=7)


async def test_idle_connections_cost_no_threads_and_metrics_are_served() -> None:
    port, before = free_port(), threading.active_count()
    with contextlib.ExitStack() as opened:
        async with metrics_server(collect, "127.0.0.1", port):
            for _ in range(IDLE):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), 5.0, (ATTACKER, 0)))
            slow = opened.enter_context(socket.create_connection(("127.0.0.1", port), 5.0, (ATTACKER, 0)))
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ")
            await asyncio.sleep(1.0)
            assert threading.active_count() <= before + 2
            async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
                answer = await http.get(f"http://127.0.0.1:{port}/metrics")
                assert (answer.status_code, "kopt_logtail_jobs 7.0" in answer.text) == (200, True)
                assert (await http.get(f"http://127.0.0.1:{port}/other")).status_code == 404
                assert (await http.post(f"http://127.0.0.1:{port}/metrics", content=b"x" * 8192)).status_code == 413
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5.0).close()
        raise AssertionError("it ended with its block")


async def test_without_a_port_nothing_listens() -> None:
    async with metrics_server(collect, "127.0.0.1", None):
        pass
