"""A term that lapses while it is being renewed: the work of a leader goes on, in memory and without a server."""

import asyncio
from typing import Any, cast

import pytest

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.runtime.lease import Deposed, Leader, LeaseSettings

SETTINGS = LeaseSettings(duration_s=30.0, renew_within_s=20.0, retry_s=0.02)


class SlowServer:
    """Keeps a Lease. Its first renewal is accepted after the term has lapsed, and not before ``deposed`` is set."""

    def __init__(self) -> None:
        self.now_s, self.lease, self.deposed, self.renewals = 0.0, dict[str, Any](), asyncio.Event(), 0

    def clock(self) -> float:
        return self.now_s

    async def get(self, *_: Any) -> dict[str, Any]:
        raise NotFound(404, "NotFound", "no lease yet")

    async def create(self, _: Any, lease: dict[str, Any], *__: Any) -> dict[str, Any]:
        self.now_s = 19.9
        return self._kept(lease)

    async def replace(self, _: Any, lease: dict[str, Any], *__: Any) -> dict[str, Any]:
        self.renewals += 1
        if self.renewals == 1:
            self.now_s = 20.1
            await self.deposed.wait()
        return self._kept(lease)

    def _kept(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.lease = lease | {"metadata": lease["metadata"] | {"resourceVersion": str(self.renewals)}}
        return self.lease


async def test_who_was_deposed_leads_again_when_the_renewal_under_way_is_accepted() -> None:
    server = SlowServer()
    leader = Leader(cast(Kube, server), "kopt-system", "kopt-preemption", "a", SETTINGS, clock=server.clock)
    campaign = asyncio.create_task(leader.run())
    try:
        async with asyncio.timeout(20):
            with pytest.raises(Deposed):
                async with leader.lead():
                    await asyncio.Event().wait()
            again = asyncio.create_task(_leads(leader))
            await asyncio.sleep(0)
            server.deposed.set()
            await again
    finally:
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)


async def _leads(leader: Leader) -> None:
    async with leader.lead():
        pass
