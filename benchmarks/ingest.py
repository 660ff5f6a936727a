"""What live demand costs: 1,000 services, from Prometheus' answer to features in the online store, every five minutes.

The ingester reads from a stand-in of Prometheus (real HTTP, answers as it gives them), in turn by a query for each
service and by grouped queries, and pushes to the real endpoint application over HTTP, in a process of its own, which
merges each bucket into its history and materialises it in the feature store. The first pass fills in two weeks; each
further pass brings one new bucket of every service. CPU is that of the ingester's and of the endpoint's process
together, as a share of one core over a bucket's five minutes. The age is how long after its end the newest bucket of
the last service is stored. Prints Markdown; returns 1 when a target is missed.

    python -m benchmarks ingest
"""

import asyncio
import json
import multiprocessing
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs

SERVICES, PASSES, GRID_S = 1_000, 3, 300
TARGET_SHARE, TARGET_LATE_S = 0.10, 10.0
SETTLE_S, MATERIALISED_S = 2.0, 5.0


def main() -> int:
    """Print the table; 0 when both targets are reached."""
    with (
        tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder,
        running(_endpoint, folder) as (url, process),
        running(_prometheus) as (prometheus, _),
    ):
        rows = asyncio.run(_measure(prometheus, url, process))
    print("| 1,000 services | seconds until all are stored | ingester CPU s | endpoint CPU s | share of a core |")
    print("|---|---|---|---|---|")
    for row in rows:
        share = f"{row.share:.1%}" if row.grouped is not None else ""
        print(f"| {row.name} | {row.wall_s:.1f} | {row.ingester_s:.1f} | {row.endpoint_s:.1f} | {share} |")
    buckets = [row for row in rows if row.grouped]
    share = max(row.share for row in buckets)
    late_s = SETTLE_S + max(row.wall_s for row in buckets)
    print(f"\nNewest bucket of the last service: {late_s:.1f} s after its end (target: {TARGET_LATE_S:g} s).")
    return int(share > TARGET_SHARE or late_s > TARGET_LATE_S)


@dataclass(frozen=True)
class Row:
    """One pass over all services; ``grouped`` is None for the back-fill."""

    name: str
    grouped: bool | None
    wall_s: float
    ingester_s: float
    endpoint_s: float

    @property
    def share(self) -> float:
        return (self.ingester_s + self.endpoint_s) / GRID_S


async def _measure(prometheus: str, url: str, endpoint: int) -> list[Row]:
    from kopt.controllers.ingest.connections import connected
    from kopt.controllers.ingest.ingester import Followed, Ingester, SourceState
    from kopt.controllers.ingest.sources import source_of

    names = [f"ml/service-{i:04d}" for i in range(SERVICES)]
    followed = [Followed(source_of(name, {"engine": "vLLM"}, {"service": name})) for name in names]
    rows, start_s = [], time.time() // GRID_S * GRID_S - 2 * PASSES * GRID_S
    now_s = start_s
    async with connected(prometheus, url) as ends:
        alone = Ingester(ends.read, ends.push, clock=lambda: now_s + SETTLE_S)
        together = Ingester(ends.read, ends.push, clock=lambda: now_s + SETTLE_S, read_group=ends.read_group)
        for i in range(2 * PASSES + 1):
            now_s = start_s + i * GRID_S
            grouped = i % 2 == 0 if i else None
            ingester = together if grouped else alone
            begun, cpu, endpoint_cpu = time.perf_counter(), time.process_time(), _cpu_s(endpoint)
            await asyncio.gather(*(ingester._attempt(source) for source in followed))
            wall_s, own_s = time.perf_counter() - begun, time.process_time() - cpu
            # The endpoint materialises in batches, beside the answers.
            await asyncio.sleep(MATERIALISED_S)
            name = "one bucket each, " + ("grouped queries" if grouped else "a query each")
            rows.append(
                Row(name if i else "two weeks filled in", grouped, wall_s, own_s, _cpu_s(endpoint) - endpoint_cpu)
            )
            failed = [source for source in followed if source.state is not SourceState.CURRENT]
            if failed:
                raise SystemExit(f"{len(failed)} services failed: {failed[0].error}")
    return rows


def _cpu_s(process: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(serve: Callable[..., None], *arguments: str) -> Iterator[tuple[str, int]]:
    """Address and id of a process until the block ends; ``serve`` gets a pipe last, and sends the address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv(), int(process.pid or 0)
    finally:
        process.kill()
        process.join()


def _endpoint(folder: str, ready: Connection) -> None:
    import uvicorn

    from kopt.core.settings import Settings
    from kopt.serving.demand.service import DemandService
    from kopt.serving.endpoint.app import create_app
    from kopt.serving.endpoint.assemble import assemble

    endpoint = assemble(Settings(home=Path(folder)))
    endpoint.start()
    endpoint.service(DemandService).open_store()
    server = uvicorn.Server(uvicorn.Config(create_app(endpoint, manage=False), port=0, log_level="error"))

    def announce() -> None:
        while not server.started:
            time.sleep(0.05)
        ready.send(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")

    threading.Thread(target=announce, daemon=True).start()
    server.run()


class _Answers(BaseHTTPRequestHandler):
    """A daily shape, the same for a bucket whenever it is asked for."""

    protocol_version = "HTTP/1.1"
    day: Sequence[str] = [f"{100 + (i * 7919) % 97}" for i in range(288)]

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        times = range(int(form["start"][0]), int(form["end"][0]) + 1, GRID_S)
        values = [[at_s, self.day[at_s // GRID_S % 288]] for at_s in times]
        alternatives = re.search(r'service=~"([^"]*)"', form["query"][0])
        # Values have no other special letter than what the query escapes.
        services = [] if alternatives is None else alternatives[1].replace("\\", "").split("|")
        metrics = [{"service": service} for service in services] or [{}]
        data = {"resultType": "matrix", "result": [{"metric": metric, "values": values} for metric in metrics]}
        body = json.dumps({"status": "success", "data": data}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _prometheus(ready: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    ready.send(f"http://127.0.0.1:{server.server_address[1]}")
    server.serve_forever()
