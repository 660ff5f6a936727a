"""The map of GPUs with 1,250 nodes of eight: first paint, from a change in the cluster to the map, and memory.

An API server with as many nodes, and a pod with all GPUs of each; the pages as a process of their own; a real Chromium.
One pod at a time ends or starts, and the clock runs from the API server's change to the drawn map. Prints Markdown;
returns 1 when a target is missed.

    python -m benchmarks gpu-map
"""

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from aiohttp import web
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, async_playwright

from benchmarks.tables import markdown
from kopt.cli.local.example.kubeconfig import read_access, write_kubeconfig
from kopt.cli.local.example.server import application
from kopt.cli.local.example.store import Store
from kopt.cluster.client.resources import NODES, PODS, Object, Resource
from kopt.controllers.overview.kept import KEPT

GPUS, CHANGES, PAINTS = 8, 40, 5
COUNTS = (100, 1_250)
FIRST_PAINT_S, UPDATE_S, HEAP_MIB = 1.5, 0.200, 64
CHROMIUM = os.environ.get("KOPT_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
_GPU = "nvidia.com/gpu"


def main() -> int:
    """Print the table; 0 when the targets are reached."""
    rows, missed = [], False
    for nodes in COUNTS:
        result = asyncio.run(_measured(nodes))
        rows.append([f"{nodes:,}", *result.cells])
        missed |= not result.reaches
    head = [
        "nodes",
        "first paint",
        "map drawn",
        "change to map, median",
        "p95",
        "slowest",
        "CPU a change",
        "JS heap",
        "pages' process",
    ]
    print(markdown(head, rows))
    return int(missed)


class _Result:
    """Of one size of cluster. Seconds and MiB."""

    def __init__(
        self,
        paints_s: Sequence[float],
        drawn_s: Sequence[float],
        updates_s: Sequence[float],
        cpu_s: float,
        heap: float,
        rss: float,
    ) -> None:
        ordered = sorted(updates_s)
        p95_s = ordered[int(0.95 * (len(ordered) - 1))]
        self.reaches = max(drawn_s) < FIRST_PAINT_S and p95_s < UPDATE_S and heap < HEAP_MIB
        times_s = (max(paints_s), max(drawn_s), statistics.median(ordered), p95_s, ordered[-1], cpu_s)
        self.cells = [*(f"{1000 * each:.0f} ms" for each in times_s), f"{heap:.0f} MiB", f"{rss:.0f} MiB"]


async def _measured(nodes: int) -> _Result:
    with tempfile.TemporaryDirectory() as folder:
        home, store = Path(folder), Store()
        objects = _objects(nodes)
        await store.replace(objects)
        kubeconfig = write_kubeconfig(home, _free_port())
        access = read_access(home)
        runner = web.AppRunner(application(store, access.token), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", access.port).start()
        port = _free_port()
        environ = {**os.environ, "KOPT_HOME": folder, "KUBECONFIG": str(kubeconfig), "KOPT_PAGES_PORT": str(port)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "kopt.cli.local.pages", env=environ, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            return await _in_browser(f"http://127.0.0.1:{port}/gpus", store, objects, process.pid)
        finally:
            process.terminate()
            await process.wait()
            await runner.cleanup()


async def _in_browser(address: str, store: Store, objects: Mapping[Resource, Sequence[Object]], pid: int) -> _Result:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        await _ready(page, address)
        drawn = asyncio.Queue[float]()
        await page.expose_function("noteDrawn", lambda: drawn.put_nowait(time.perf_counter()))
        await page.add_init_script("document.addEventListener('kopt:drawn', () => window.noteDrawn())")
        paints_s, drawn_s = [], []
        for _ in range(PAINTS):
            paint_s, map_s = await _opened(page, address)
            paints_s.append(paint_s)
            drawn_s.append(map_s)
        before_s = _cpu_s(pid)
        updates_s = await _changed(store, objects, drawn)
        cpu_s = (_cpu_s(pid) - before_s) / CHANGES
        heap = await page.evaluate("performance.memory.usedJSHeapSize / 2 ** 20")
        rss = psutil.Process(pid).memory_info().rss / 2**20
        await browser.close()
        return _Result(paints_s, drawn_s, updates_s, cpu_s, heap, rss)


async def _ready(page: Page, address: str) -> None:
    """Until the pages have read the cluster."""
    for _ in range(240):
        # The process is still starting.
        with contextlib.suppress(PlaywrightError):
            await page.goto(address)
            if await page.query_selector("#gpu-map"):
                return
        await asyncio.sleep(0.5)
    raise TimeoutError("the pages never showed the map")


async def _opened(page: Page, address: str) -> tuple[float, float]:
    """First paint, and when the map was drawn, from the start of the navigation."""
    await page.goto(address)
    await page.wait_for_selector("#gpu-map[data-version]")
    drawn_ms = await page.evaluate("performance.now()")
    paint_ms = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 1e9")
    return paint_ms / 1000, drawn_ms / 1000


def _cpu_s(pid: int) -> float:
    """What the pages' process has computed for, whatever else the machine does."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def _changed(
    store: Store, objects: Mapping[Resource, Sequence[Object]], drawn: "asyncio.Queue[float]"
) -> list[float]:
    """One pod at a time is gone and back again."""
    await asyncio.sleep(3.0)
    pods, seconds = list(objects[PODS]), []
    for number in range(CHANGES):
        gone = pods[number * 7 % len(pods)]
        present = pods if number % 2 else [pod for pod in pods if pod is not gone]
        await asyncio.sleep(0.6)
        while not drawn.empty():
            drawn.get_nowait()
        began_s = time.perf_counter()
        await store.replace({**objects, PODS: present})
        async with asyncio.timeout(10.0):
            seconds.append(await drawn.get() - began_s)
    return seconds


def _objects(nodes: int) -> Mapping[Resource, Sequence[Object]]:
    names = [f"gpu-{number:04d}" for number in range(nodes)]
    empty: dict[Resource, Sequence[Object]] = dict.fromkeys(KEPT, ())
    return {**empty, NODES: [_node(name) for name in names], PODS: [_pod(name) for name in names]}


def _node(name: str) -> Object:
    offers = {_GPU: str(GPUS), "cpu": "96", "memory": "1024Gi", "pods": "110"}
    status = {"allocatable": offers, "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "spec": {},
        "status": status,
    }


def _pod(node: str) -> Object:
    container = {"name": "train", "resources": {"limits": {_GPU: str(GPUS)}}}
    metadata = {"name": f"train-{node}", "namespace": f"team-{int(node[-4:]) % 20}", "uid": f"uid-{node}"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
