"""Throughput of ``kopt stage`` beside plain copies by obstore, from a real S3 server (versitygw) on this machine.

Three ways in turns, medians: one stream after another (what a script of five lines does); as many parts of the same
size at a time as staging takes, written and nothing else; and that with every file on the disk at the end, as staging
leaves it. Staging does more than each: digests of all parts, the checksums that the store gives, a journal, files under
their names when they are whole, a manifest.

Twice: over loopback, where server and client share the processors and every digest makes a copy slower; and over a link
(Toxiproxy) as clouds have them, of so much a connection and so long to the first byte, where the network decides. Run
it on a quiet machine. Prints Markdown; returns 1 when the target is missed.

    python -m benchmarks staging
"""

import asyncio
import contextlib
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.tables import markdown

TARGET_SHARE = 0.9
ROUNDS = 5
PARALLEL, PART = 8, 16 << 20
# Amazon's advice for S3 counts 85 to 90 MB/s for a request and 100 to 200 ms to the first byte of a small object; with
# less delay the network hides less of what staging computes.
LINK_MB_S, LINK_MS = 90, 20
LARGE = {"4 objects of 256 MiB": (4, 256 << 20)}
SMALL = {"2,000 objects of 128 KiB": (2_000, 128 << 10)}
FEWER = {"500 objects of 128 KiB": (500, 128 << 10)}
Sets = dict[str, tuple[int, int]]
Way = Callable[[Any, str, Path], Coroutine[Any, Any, None]]


def main(arguments: list[str] | None = None) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from controlplane.object_store import server

    with tempfile.TemporaryDirectory() as name, server(Path(name)) as s3, _link(s3.port, Path(name)) as far_port:
        missed = [
            _compare(s3, "loopback", s3.port, LARGE | SMALL, Path(name)),
            _compare(s3, f"a link: {LINK_MB_S} MB/s a connection, {LINK_MS} ms", far_port, LARGE | FEWER, Path(name)),
        ]
    return 1 if any(missed) else 0


@contextlib.contextmanager
def _link(port: int, folder: Path) -> Iterator[int]:
    """A port behind which the server is as far as ``LINK_MB_S`` and ``LINK_MS`` say."""
    from controlplane.build import binaries
    from controlplane.processes import Server, free_port

    api, far = f"http://127.0.0.1:{free_port()}", free_port()
    command = [binaries("toxiproxy") / "toxiproxy-server", "-host", "127.0.0.1", "-port", api.rpartition(":")[2]]
    proxy = Server("toxiproxy", command, folder, url=api)
    proxy.wait_until(lambda: _made(api, "proxies", name="s3", listen=f"127.0.0.1:{far}", upstream=f"127.0.0.1:{port}"))
    assert _made(api, "proxies/s3/toxics", type="bandwidth", attributes={"rate": LINK_MB_S * 1000})
    assert _made(api, "proxies/s3/toxics", type="latency", attributes={"latency": LINK_MS})
    yield far
    proxy.stop()


def _made(api: str, what: str, **fields: Any) -> bool:
    try:
        return httpx.post(f"{api}/{what}", json=fields).is_success
    except httpx.TransportError:
        return False


def _compare(s3: Any, label: str, port: int, sets: Sets, folder: Path) -> bool:
    """Whether the target is missed."""
    rows, missed = [], False
    ways: dict[str, Way] = {
        "one stream": _streams,
        "parts at a time": _parts,
        "parts, synced": _synced,
        "kopt stage": _staged,
    }
    os.environ |= s3.through(f"http://127.0.0.1:{port}")
    store = _store()
    for what, (count, size) in sets.items():
        prefix = f"{count}-{size}"
        if not (s3.folder / prefix).exists():
            _put(s3.store, prefix, count, size)
        seconds = _timed(ways, store, prefix, folder)
        speed = {way: count * size / 1e6 / statistics.median(found) for way, (found, _) in seconds.items()}
        missed |= speed["kopt stage"] < TARGET_SHARE * max(speed["one stream"], speed["parts at a time"])
        for way, (_, cpu) in seconds.items():
            rows.append(
                [
                    what,
                    way,
                    f"{speed[way]:,.0f}",
                    f"{speed['kopt stage'] / speed[way]:.2f}",
                    f"{statistics.median(cpu):.2f}",
                ]
            )
    print(f"Over {label}:\n")
    print(markdown(["what", "how", "MB/s", "kopt stage's share of it", "client's CPU, s"], rows))
    print(f"\nTarget: {TARGET_SHARE:.0%} of the faster plain copy; {'missed' if missed else 'reached'}.\n", flush=True)
    return missed


def _timed(ways: dict[str, Way], store: Any, prefix: str, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Wall and CPU seconds of every round; the first round, which warms up, is not counted."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, way in ways.items():
            place = folder / "copy"
            place.mkdir()
            os.sync()
            wall, cpu = time.perf_counter(), _cpu()
            asyncio.run(way(store, prefix, place))
            if round_:
                found[name][0].append(time.perf_counter() - wall)
                found[name][1].append(_cpu() - cpu)
            shutil.rmtree(place)
    return found


async def _streams(store: Any, prefix: str, place: Path) -> None:
    import obstore

    for one in await obstore.list(store, prefix=prefix).collect_async():
        with (place / one["path"].rpartition("/")[2]).open("wb") as file:
            async for piece in (await obstore.get_async(store, one["path"])).stream():
                file.write(piece)


async def _parts(store: Any, prefix: str, place: Path) -> None:
    import obstore

    wanted = [
        (one["path"], begin, min(begin + PART, one["size"]))
        for one in await obstore.list(store, prefix=prefix).collect_async()
        for begin in range(0, one["size"], PART)
    ]
    waiting = iter(wanted)

    async def work() -> None:
        for path, begin, end in waiting:
            content = await obstore.get_range_async(store, path, start=begin, end=end)
            await asyncio.to_thread(_write, place / path.rpartition("/")[2], content, begin)

    await asyncio.gather(*(work() for _ in range(PARALLEL)))


async def _synced(store: Any, prefix: str, place: Path) -> None:
    await _parts(store, prefix, place)
    waiting = iter(list(place.iterdir()))

    async def work() -> None:
        for path in waiting:
            await asyncio.to_thread(_sync, path)

    await asyncio.gather(*(work() for _ in range(PARALLEL)))


async def _staged(store: Any, prefix: str, place: Path) -> None:
    from kopt.agents.staging.settings import StageSettings
    from kopt.agents.staging.staging import stage
    from kopt.core.staging.manifest import Source

    await stage(Source.parse(f"s3://data/{prefix}"), place, StageSettings(PARALLEL, PART))


def _write(path: Path, content: Any, begin: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, content, begin)
    finally:
        os.close(file)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def _store() -> Any:
    from obstore.store import S3Store

    return S3Store("data", client_options={"allow_http": True, "timeout": "10m"})


def _put(store: Any, prefix: str, count: int, size: int) -> None:
    import obstore

    for index in range(count):
        obstore.put(store, f"{prefix}/{index:05d}", os.urandom(size))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
