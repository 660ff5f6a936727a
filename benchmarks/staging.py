"""Throughput of ``kopt stage`` beside plain copies by obstore, from a real S3 server (versitygw) on this machine.

Three ways in turns, medians: one stream after another (what a script of five lines does); as many parts of the same
size at a time as staging takes, written and nothing else; and that with every file on the disk at the end, as staging
leaves it. Staging does more than each: digests of all parts, a journal, files under their names when they are whole, a
manifest. Server and client share the processors, so a copy is slower by what it computes: only a quiet machine
tells, and beside a real network it matters less. Prints Markdown; returns 1 when the target is missed.

    python -m benchmarks staging
"""

import asyncio
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown

TARGET_SHARE = 0.9
ROUNDS = 5
PARALLEL, PART = 8, 16 << 20
SETS = {"4 objects of 256 MiB": (4, 256 << 20), "2,000 objects of 128 KiB": (2_000, 128 << 10)}
KEY, SECRET = "benchmarks", "only-on-loopback"
Way = Callable[[Any, str, Path], Awaitable[None]]


def main(arguments: list[str] | None = None) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from controlplane.build import binaries
    from controlplane.processes import Server, free_port, wait_for

    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "objects" / "data").mkdir(parents=True)
        command = [binaries("s3") / "versitygw", "--port", f"127.0.0.1:{port}", "posix", folder / "objects"]
        server = Server("versitygw", command, folder, {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET})
        url = f"http://127.0.0.1:{port}"
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
                       "AWS_ENDPOINT_URL": url}  # fmt: skip
        store = _store(url)
        try:
            wait_for(lambda: _answers(store), what="the S3 server answers")
            return _compare(store, folder)
        finally:
            server.stop()


def _compare(store: Any, folder: Path) -> int:
    rows, missed = [], False
    ways: dict[str, Way] = {"one stream": _streams, "parts at a time": _parts, "parts, synced": _synced,
                            "kopt stage": _staged}  # fmt: skip
    for label, (count, size) in SETS.items():
        prefix = f"{count}-{size}"
        _put(store, prefix, count, size)
        seconds = _timed(ways, store, prefix, folder)
        speed = {way: count * size / 1e6 / statistics.median(found) for way, (found, _) in seconds.items()}
        missed |= speed["kopt stage"] < TARGET_SHARE * max(speed["one stream"], speed["parts at a time"])
        for way, (_, cpu) in seconds.items():
            rows.append([label, way, f"{speed[way]:,.0f}", f"{speed['kopt stage'] / speed[way]:.2f}",
                         f"{statistics.median(cpu):.2f}"])  # fmt: skip
    print(markdown(["what", "how", "MB/s", "kopt stage's share of it", "client's CPU, s"], rows))
    print(f"\nTarget: {TARGET_SHARE:.0%} of the faster plain copy; {'missed' if missed else 'reached'}.")
    return 1 if missed else 0


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
        for one in await obstore.list(store, prefix=prefix).collect_async() for begin in range(0, one["size"], PART)
    ]  # fmt: skip
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
    from kopt.core.staging import Source

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


def _store(url: str) -> Any:
    from obstore.store import S3Store

    return S3Store("data", endpoint=url, access_key_id=KEY, secret_access_key=SECRET, region="us-east-1",
                   client_options={"allow_http": True, "timeout": "10m"})  # fmt: skip


def _answers(store: Any) -> bool:
    import obstore

    try:
        obstore.put(store, "ready", b"yes")
    except obstore.exceptions.BaseError as error:
        raise ValueError(str(error)) from error
    return True


def _put(store: Any, prefix: str, count: int, size: int) -> None:
    import obstore

    for index in range(count):
        obstore.put(store, f"{prefix}/{index:05d}", os.urandom(size))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
