"""``python -P -m kopt.cli.local.example``: the example cluster as a process of ``kopt up``, until SIGTERM.

The port and the token come from the kubeconfig in the home, which ``kopt up`` wrote.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from kopt.cli.local.example import agents
from kopt.cli.local.example.cluster import objects_at
from kopt.cli.local.example.costs import ExampleCosts, costs_file
from kopt.cli.local.example.kubeconfig import HOST, read_access
from kopt.cli.local.example.server import application
from kopt.cli.local.example.store import Store
from kopt.cluster.client.resources import KAIWO_BUDGETS, Object
from kopt.core.settings import Settings
from kopt.serving.base.environment import load_settings

REPLAY_EVERY_S = 10.0


async def run(settings: Settings) -> None:
    """Serve and report until cancelled."""
    access, store = read_access(settings.home), Store()
    await store.replace({**objects_at(time.time()), KAIWO_BUDGETS: []})
    runner = web.AppRunner(application(store, access.token), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, access.port).start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_replay(store, costs_file(settings.home)))
            tasks.create_task(agents.report(settings.endpoint))
    finally:
        await runner.cleanup()


async def _replay(store: Store, path: Path) -> None:
    """Costs are filled in beside, so that the cluster answers at once."""
    costs = await asyncio.to_thread(ExampleCosts, path, int(time.time() * 1000))
    try:
        while True:
            now_s = time.time()
            budgets = await asyncio.to_thread(_followed, costs, int(now_s * 1000))
            await store.replace({**objects_at(now_s), KAIWO_BUDGETS: budgets})
            await asyncio.sleep(REPLAY_EVERY_S)
    finally:
        costs.close()


def _followed(costs: ExampleCosts, now_ms: int) -> Sequence[Object]:
    costs.follow(now_ms)
    return costs.budgets(now_ms)


def main() -> int:
    async def until_sigterm() -> None:
        work = asyncio.ensure_future(run(load_settings()))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        await work

    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(until_sigterm())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
