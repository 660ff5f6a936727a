"""The life of a process in the cluster: it works until it is asked to end, and then drains."""

import asyncio
import gc
import signal
from typing import Protocol


class Replica(Protocol):
    """What a process runs: ``run`` never ends by itself, ``stop`` drains."""

    async def run(self) -> None: ...

    async def stop(self) -> None: ...


def end_signals(stop: asyncio.Event | None = None) -> asyncio.Event:
    """``stop``, or a new event, that SIGTERM and SIGINT set."""
    ending = stop or asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, ending.set)
    return ending


async def run_until(ending: asyncio.Event, replica: Replica) -> None:
    """Run until ``ending`` is set, drain, and raise what broke the work, if something did."""
    work = asyncio.ensure_future(replica.run())
    ended = asyncio.ensure_future(ending.wait())
    await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
    await replica.stop()
    ended.cancel()
    work.cancel()
    # A failure of the work is raised; its own end is not.
    await asyncio.gather(work, return_exceptions=True)
    if not work.cancelled() and (error := work.exception()) is not None:
        raise error


def settle_memory() -> None:
    """What is there now stays: walking through it again and again would cost the slowest answers milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
