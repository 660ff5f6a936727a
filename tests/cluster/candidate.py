"""A process that leads when it can and writes its name onto a config map; it says on standard output what happens.

``candidate.py KUBECONFIG NAMESPACE IDENTITY [STOP_BEFORE]``: just before it sends its STOP_BEFOREth write, after every
check of its own, it stops itself with SIGSTOP: the worst moment for a leader to be frozen.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kopt.cluster.client.api import Conflict, Kube, connect
from kopt.cluster.client.resources import CONFIG_MAPS, Object
from kopt.cluster.runtime.lease import Deposed, Leader, LeaseSettings

LEASE = "candidates"
SETTINGS = LeaseSettings(duration_s=4.0, renew_within_s=3.0, retry_s=0.3)
CASE = "work"


class FreezingKube(Kube):
    """Stops the process in the middle of a write, which goes on afterwards whatever becomes of the caller."""

    stop_before = 0

    async def patch(self, *arguments: Any, **options: Any) -> Object:
        self.stop_before -= 1
        if self.stop_before != 0:
            return await super().patch(*arguments, **options)
        say("stopping")
        os.kill(os.getpid(), signal.SIGSTOP)
        sending = asyncio.ensure_future(super().patch(*arguments, **options))
        sending.add_done_callback(lambda sent: say(f"sent: {type(sent.exception()).__name__}"))
        return await asyncio.shield(sending)


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the test reads it


async def work(kube: Kube, leader: Leader, namespace: str) -> None:
    async with leader.lead() as fence:
        say(f"leads {fence.term}")
        while True:
            seen = await kube.get(CONFIG_MAPS, CASE, namespace)
            try:
                await fence.patch(CONFIG_MAPS, seen, {"data": {"writer": leader.identity}})
            except Conflict:
                say("conflict")
            else:
                say("wrote")
            await asyncio.sleep(0.02)


async def main(kubeconfig: Path, namespace: str, identity: str, stop_before: int) -> None:
    async with connect(kubeconfig) as plain:
        kube = FreezingKube(plain._access)
        kube.stop_before = stop_before
        leader = Leader(kube, namespace, LEASE, identity, SETTINGS)
        campaign = asyncio.create_task(leader.run())
        try:
            while True:
                try:
                    await work(kube, leader, namespace)
                except Deposed:
                    say("deposed")
        finally:
            campaign.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await campaign
            await kube.close()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(Path(arguments[0]), arguments[1], arguments[2], int(arguments[3]) if len(arguments) > 3 else 0))
