"""GPU workloads that wait and run, for the pages: kept by watches, with the explanations of ``kopt why``."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kopt.cli.local.watch_problems import is_ready, missing, problems
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.runtime.informer import Informer, InformerSettings
from kopt.controllers.overview.kept import KEPT, Kept
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queued import QueueState

ALIVE = "status.phase!=Succeeded,status.phase!=Failed"
_OLDEST_S = 60.0
"""After so long lines are ordered anew even though no object has changed: work at risk goes stale."""
_REST = 10.0
"""Pauses between two orderings, in multiples of what one takes: thousands of workloads take seconds."""


class QueueWatch:
    """Pods, Jobs, Kueue's objects and PodGroups. ``overview`` gives what else is read of the cluster, as of now."""

    def __init__(self, kube: Kube, overview: Callable[[], Overview], settings: InformerSettings | None = None) -> None:
        self._overview = overview
        self._informers = {
            resource: Informer[Object](
                kube, resource, field_selector=ALIVE if resource == PODS else "", keep=keep, settings=settings
            )
            for resource, keep in KEPT.items()
        }
        self._versions: tuple[Any, ...] = ()
        self._kept: Kept | None = None
        self._due_s = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def state(self) -> QueueState:
        """Of now. What is unreachable is a problem in it, not an exception."""
        overview, informers = self._overview(), tuple(self._informers.values())
        absent = missing(informers)
        state = QueueState(
            cluster=True,
            ready=is_ready(informers) and overview.ready,
            now_s=overview.now_s,
            missing=absent,
            problems=problems(informers),
        )
        if not state.ready:
            return state
        versions = *(informer.version for informer in informers), overview.pools, overview.ledger, overview.staged
        kept = self._kept
        is_old = kept is None or versions != self._versions or overview.now_s - kept.overview.now_s > _OLDEST_S
        began_s = time.monotonic()
        if kept is None or (is_old and began_s >= self._due_s):
            documents = {resource: tuple(informer.objects.values()) for resource, informer in self._informers.items()}
            has_kueue = KUEUE_WORKLOADS.full_name not in absent
            kept = await asyncio.to_thread(lambda: Kept(documents, overview, has_kueue=has_kueue))
            self._kept, self._versions = kept, versions
            self._due_s = time.monotonic() + _REST * (time.monotonic() - began_s)
        return replace(state, queued=kept.queued, explain=kept.explain)
