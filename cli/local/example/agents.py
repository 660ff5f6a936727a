"""What the example's agents and controllers tell the endpoint: sizes that are asked for, log lines, measured pairs, and
what ran before.

Requests are those of the real ones (webhook, ``kopt agent logtail``, ``kopt controller pairwise`` and ``runs``),
through the same client; the endpoint does not know the difference.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from kopt.cli.local.example.actions import recorded_at
from kopt.cli.local.example.cluster import NODES, objects_at, topologies
from kopt.cli.local.example.history import runs_of_pool
from kopt.cli.local.example.jobs import LENT
from kopt.cli.local.example.kubeconfig import NAME
from kopt.cluster.client.resources import KUEUE_WORKLOADS
from kopt.cluster.workloads.runs import run_of_workload
from kopt.core.audit import read_record
from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.core.units import GIB, Bytes
from kopt.core.workload.run_time import JobKind, JobRun
from kopt.core.workload.sizing import MemoryBreakdown, Method, TraceCoverage
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.trace_summary import summary
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.audit_answers import MAX_RECORDS, AuditQuery
from kopt.serving.contract.common import AnswerError

LOG = logging.getLogger(__name__)
DEADLINE_S = 30.0
AGAIN_S = 2.0
LINES_EVERY_S = 5.0
_MOST_LINES = 400
_PAST_S = 7200.0
_SWITCHED = NODES[:-1]
_SLOW = NODES[3]
_PAIR_GBPS = 340.0
_PAST_RUNS = 40
_MEGATRON = (
    "torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --bf16"
)


@dataclass(frozen=True)
class TrainingLog:
    """A training that writes a step every ``step_s`` and saves every ``save_steps``, which takes ``save_s``.

    ``into_save_s``: how far it is in a save when the example starts; None for one that trains then.
    """

    job: str
    gpus: int
    step_s: float
    save_steps: int
    save_s: float
    into_save_s: float | None = None

    @property
    def cycle_s(self) -> float:
        return self.save_steps * self.step_s + self.save_s

    def lines(self, now_s: float) -> Iterator[tuple[float, str]]:
        """Lines with their times, from two hours before ``now_s`` on, for ever."""
        cycles = max(1, int(_PAST_S // self.cycle_s))
        ahead_s = self.save_steps * self.step_s
        behind_s = ahead_s * 0.6 if self.into_save_s is None else ahead_s + self.into_save_s
        at_s, step = now_s - cycles * self.cycle_s - behind_s, 0
        while True:
            for _ in range(self.save_steps):
                at_s, step = at_s + self.step_s, step + 1
                loss = 1.2 + 2.4 * math.exp(-step / 400) + 0.05 * math.sin(step * 1.7)
                yield at_s, f"step {step}/20000 loss {loss:.3f} lr 0.0001"
            yield at_s, f"Saving checkpoint to /out/checkpoint-{step} ..."
            at_s += self.save_s
            yield at_s, f"successfully saved checkpoint at iteration {step} to /out"


TRAININGS = (
    TrainingLog("research/llama-3-8b-sft", 8, 20.0, 60, 45.0),
    TrainingLog("research/mamba-130m-pretrain", 4, 10.0, 90, 20.0),
    TrainingLog("vision/resnet50-imagenet", 8, 15.0, 40, 15.0),
    TrainingLog("vision/sam2-finetune", 2, 12.0, 30, 420.0, into_save_s=30.0),
)


def sizing_requests() -> tuple[Mapping[str, Any], ...]:
    """What the webhook asks for pods as they are created."""
    return (
        _request("research", "llama-3-8b-sft", _MEGATRON, 8),
        _request("research", "mamba-130m-pretrain", "python train_mamba.py", 4, _trace(9.5, 11.0, steps=3)),
        _request(
            "vision", "resnet50-imagenet", "python train.py --arch resnet50 -b 128", 1, _trace(10.6, 12.2, steps=3)
        ),
        _request("vision", "sam2-finetune", "python finetune_sam2.py --batch 4", 2, _trace(27.0, 31.5, steps=3)),
    )


def _request(
    namespace: str, name: str, command: str, gpus: int, trace: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    container = {
        "name": "train",
        "image": f"registry.example.com/{namespace}/{name}:1",
        "command": command.split(),
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
    }
    return {"workload": pod, **({"trace": trace} if trace else {})}


def _trace(allocated_gib: float, reserved_gib: float, *, steps: int) -> Mapping[str, Any]:
    """The summary of an abstract execution, as the sizing controller has it of a script."""
    parts = [Bytes(int(allocated_gib * GIB * share)) for share in (0.2, 0.2, 0.4)]
    code = CodeEstimate(
        Method.ABSTRACT,
        TraceCoverage.FULL,
        Bytes(int(allocated_gib * GIB)),
        Bytes(int(reserved_gib * GIB)),
        MemoryBreakdown(*parts),
        steps=steps,
    )
    return summary(code)


def measurements_at(now_s: float) -> tuple[MeasuredPair, ...]:
    """Of every two nodes with H100; one node's cable is slow."""
    return tuple(_pair(a, b, number, now_s) for number, (a, b) in enumerate(combinations(_SWITCHED, 2)))


def _pair(a: str, b: str, number: int, now_s: float) -> MeasuredPair:
    is_slow = _SLOW in (a, b)
    gbps = _PAIR_GBPS * (0.42 if is_slow else 1.0) * (1 + 0.01 * (number % 5 - 2))
    points = tuple(MeasuredPoint(1 << n, 30 + (1 << n) * 1.875 / gbps / 1e3) for n in range(16, 31, 2))
    return MeasuredPair(
        (a, b),
        8,
        Collective.ALL_REDUCE,
        now_s - 7200 + 120 * number,
        points,
        30.0,
        gbps,
        "nccl 2.27.3",
        Health.SLOW if is_slow else Health.HEALTHY,
        f"{gbps:.0f} GB/s is 0.42 of what such pairs reach" if is_slow else "",
    )


def runs_at(now_s: float) -> tuple[JobRun, ...]:
    """What runs, 40 runs of such jobs in the days before, of 4 to 20 hours, and those of the pool that grows."""
    running = tuple(run for item in objects_at(now_s)[KUEUE_WORKLOADS] if (run := run_of_workload(item)) is not None)
    past = []
    for number in range(_PAST_RUNS):
        kind = running[number % len(running)].kind if running else JobKind("research", 8)
        ended_s = now_s - 3600.0 * (4 + 3 * number)
        began_s = ended_s - 3600.0 * (4 + number * 7 % 17)
        past.append(JobRun(f"past-{number}", kind, began_s, ended_s, pool=LENT))
    return (*runs_of_pool(now_s), *past, *running)


async def report(url: str, clock: Callable[[], float] = time.time) -> None:
    """Report everything, then go on with log lines until cancelled. Waits for an endpoint that starts."""
    async with AsyncPredictionClient(url, deadline_s=DEADLINE_S) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(_report_sizes(client))
        tasks.create_task(_report_measurements(client, clock))
        tasks.create_task(_report_runs(client, clock))
        tasks.create_task(_report_actions(client, clock))
        for training in TRAININGS:
            tasks.create_task(_follow(client, training, clock))


async def _report_sizes(client: AsyncPredictionClient) -> None:
    for request in sizing_requests():
        await _answered(lambda request=request: client.sizing(request))  # type: ignore[misc]


async def _report_measurements(client: AsyncPredictionClient, clock: Callable[[], float]) -> None:
    by_node = {name: topologies()[name] for name in _SWITCHED}
    domains = {name: ["block-a", "rack-1" if name < NODES[2] else "rack-2"] for name in _SWITCHED}
    measurements = measurements_at(clock())

    async def send() -> Mapping[str, Any]:
        await client.tell_pairs(NAME, measurements, by_node, domains=domains)
        return {}

    await _answered(send)


async def _report_runs(client: AsyncPredictionClient, clock: Callable[[], float]) -> None:
    runs = runs_at(clock())

    async def send() -> Mapping[str, Any]:
        await client.send_runs(runs)
        return {}

    await _answered(send)


async def _report_actions(client: AsyncPredictionClient, clock: Callable[[], float]) -> None:
    async def send() -> Mapping[str, Any]:
        # What an earlier start has reported is there still.
        known = await client.audit(AuditQuery(limit=MAX_RECORDS))
        stored = [item.stored.record for item in known.records]
        after_s = max((read_record(record).at_s for record in stored), default=0.0)
        if records := recorded_at(clock(), after_s):
            await client.send_audit(records)
        return {}

    await _answered(send)


async def _follow(client: AsyncPredictionClient, training: TrainingLog, clock: Callable[[], float]) -> None:
    started_s = clock()
    lines = training.lines(started_s)
    pending, first = next(lines), 1
    source = f"{training.job.partition('/')[2]}-{int(started_s):x}/train"
    while True:
        batch: list[Mapping[str, Any]] = []
        while pending[0] <= clock() and len(batch) < _MOST_LINES:
            batch.append({"text": pending[1], "at": pending[0]})
            pending = next(lines)
        if batch:
            request = {"job": training.job, "source": source, "first": first, "lines": batch, "gpus": training.gpus}
            await _answered(lambda request=request: client.checkpoint(request))  # type: ignore[misc]
            first += len(batch)
        if len(batch) < _MOST_LINES:
            await asyncio.sleep(LINES_EVERY_S)


async def _answered(ask: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    """Ask until the endpoint answers with a model: it loads one after the other."""
    reported = ""
    while True:
        try:
            if not (await ask()).get("fallback"):
                return
        except (EndpointFailure, AnswerError):
            # It starts, or is away for a while.
            pass
        except RequestRefused as error:
            if reported != str(error):
                reported = str(error)
                LOG.warning("the endpoint refuses what the example reports: %s", error)
        await asyncio.sleep(AGAIN_S)
