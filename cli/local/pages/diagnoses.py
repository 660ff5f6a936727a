"""Has the process of the pages write why workloads wait as Events on them, where ``KOPT_PAGES_DIAGNOSES`` is true.

It watches and diagnoses what waits anyway; this adds the right to create Events, and nothing else.
"""

import asyncio
import logging
import os
from collections.abc import Callable

from kopt.cli.local.pages.queue import QueueWatch
from kopt.cluster.client.api import Kube
from kopt.cluster.runtime.events import EventRecorder
from kopt.controllers.overview.diagnosis.events import DiagnosisEvents
from kopt.core.scheduling.queued import Explanation
from kopt.core.switches import Switches
from kopt.dashboard.data.masking import masked

_LOG = logging.getLogger(__name__)
COMPONENT = "kaiwo.ai/pages"
_AT_LEAST_EVERY_S = 60.0
"""Starts move with time alone."""
_PAUSE_S = 2.0
"""Between two rounds, while objects change all the time."""


class DiagnosisWriter:
    """``run`` until cancelled. ``switches`` are those of now, ``now_s`` gives Unix seconds."""

    def __init__(
        self, kube: Kube, queue: QueueWatch, switches: Callable[[], Switches], *, pause_s: float = _PAUSE_S
    ) -> None:
        self._recorder = EventRecorder(kube, COMPONENT, os.environ.get("HOSTNAME", "pages"))
        self._diagnoses = DiagnosisEvents(self._recorder, switches, _without_other_namespaces)
        self._queue, self._news, self._pause_s = queue, queue.news(), pause_s

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run())
            tasks.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:  # noqa: BLE001 - edge: what cannot be told must not end the pages
                _LOG.exception("why workloads wait could not be written")
            await asyncio.sleep(self._pause_s)
            try:
                async with asyncio.timeout(_AT_LEAST_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    async def step(self) -> int:
        """One look at what waits; how many Events were recorded."""
        state = await self._queue.state()
        wanted = self._diagnoses.wanted(state) if state.ready else []
        explained = await asyncio.to_thread(state.explain, wanted) if wanted else {}
        return self._diagnoses.write(wanted, explained, state.now_s)


def _without_other_namespaces(explanation: Explanation, namespace: str) -> Explanation:
    """Whoever may read the Events of a namespace need not be allowed to see others."""
    return masked(explanation, lambda other: other != namespace)
