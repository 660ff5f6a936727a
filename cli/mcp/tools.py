"""The tools: each reads with the caller's rights and gives the document that its command prints with ``-o json``."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kopt.cli.errors import Refused
from kopt.cli.output import document

if TYPE_CHECKING:
    from kopt.cli.sizing.measured import Measurements
    from kopt.cluster.client.api import Kube
    from kopt.core.settings import Settings

Document = Mapping[str, Any]
_SHORTEST_S = 600


@dataclass(frozen=True)
class Tools:
    """Of one cluster. ``prometheus`` is empty where there is none: then nothing says what GPUs really do."""

    kube: "Kube"
    settings: "Settings"
    prometheus: str = ""
    token_file: Path | None = None

    async def why(self, job: str, namespace: str, *, eta: bool) -> Document:
        """Raises Refused for a job that is not there, or no name of one."""
        from kopt.controllers.overview.asking import WrongName, ask, wanted_of
        from kopt.controllers.overview.diagnosis.endpoint import EndpointPredictions
        from kopt.controllers.overview.reading import Unknown

        predictions = EndpointPredictions(self.settings.endpoint, self.settings.cluster) if eta else None
        try:
            records = self.settings.endpoint if eta else ""
            return (await ask(self.kube, wanted_of(job, namespace), predictions, records=records)).to_dict()
        except (Unknown, WrongName) as error:
            raise Refused(str(error)) from error

    async def queue(self, namespace: str, queue: str, *, only_pending: bool) -> Document:
        from kopt.cli.cluster.queueing.queue import answer, read

        now_s = time.time()
        queueds, unread = await read(self.kube, namespace, now_s)
        result = answer(queueds, unread, now_s, namespace=namespace, name=queue, waiting=only_pending)
        return {**document(result), "remarks": list(result.remarks)}

    async def gpus(self, node: str, *, free: bool) -> Document:
        from kopt.cli.cluster.gpus import answer
        from kopt.controllers.overview.devices.gpus import read_gpus

        listed = await read_gpus(self.kube)
        result = answer([gpu for gpu in listed.gpus if node in ("", gpu.node)], listed.unread, free=free)
        return {**document(result), "remarks": list(result.remarks)}

    async def idle(self, namespace: str, since: str, below_percent: float) -> Document:
        from kopt.cli.cluster.idle import answer, read_kaiwos
        from kopt.controllers.overview.running_workloads import running

        measurements = await self._measurements(namespace, since)
        if measurements is None:
            raise Refused("start kopt mcp with --prometheus URL: nothing else says what GPUs do")
        pod_kinds = [pod_kind async for pod_kind in running(self.kube, namespace)]
        kaiwos = await read_kaiwos(self.kube, namespace)
        result = answer(pod_kinds, measurements, below_percent / 100, None, everything=False, kaiwos=kaiwos)
        return {**document(result), "remarks": list(result.remarks)}

    async def recommend(self, namespace: str, since: str) -> Document:
        """The prediction endpoint is asked, which answers and keeps nothing of it in the cluster."""
        from kopt.cli.endpoint import DEADLINE_S, unanswered
        from kopt.cli.sizing import running_workloads
        from kopt.controllers.overview.running_workloads import running
        from kopt.serving.client.client import AsyncPredictionClient
        from kopt.serving.client.transport import EndpointFailure

        measurements = await self._measurements(namespace, since)
        pod_kinds = [pod_kind async for pod_kind in running(self.kube, namespace)]
        try:
            async with AsyncPredictionClient(self.settings.endpoint, deadline_s=DEADLINE_S) as client:
                sizeds = await running_workloads.ask_all(client, pod_kinds, measurements)
        except EndpointFailure as error:
            raise Refused(unanswered(self.settings, str(error))) from error
        return {"recommendations": [running_workloads.document(sized) for sized in sizeds]}

    async def _measurements(self, namespace: str, since: str) -> "Measurements | None":
        """What Prometheus measured over the span; None without Prometheus."""
        from kopt.cli.options import seconds
        from kopt.cli.sizing.measured import Question, read

        if not self.prometheus:
            return None
        try:
            span_s = seconds(since, "since")
        except typer.BadParameter as error:
            raise Refused(f"since: {error.message}") from None
        if span_s < _SHORTEST_S:
            raise Refused(f"since: a window of {span_s} s is shorter than {_SHORTEST_S} s")
        return await asyncio.to_thread(read, Question(self.prometheus, span_s, self.token_file), namespace)
