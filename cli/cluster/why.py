"""``kopt why``: why a job does not run, was evicted, moved or resized, in plain sentences."""

import asyncio
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kopt.controllers.overview.diagnosis.starts import RunTimes
    from kopt.controllers.overview.job import JobSnapshot
    from kopt.controllers.overview.reading import Wanted
    from kopt.controllers.overview.why import Why
    from kopt.core.scheduling.diagnosis import Diagnosis
    from kopt.core.workload.run_time import RunTimeQuestion

_ENDPOINT_S = 5.0
"""How long run times are waited for."""


@dataclass(frozen=True)
class FindingRow:
    """A sentence, for programs: ``since_s`` are Unix seconds."""

    code: str = column("code")
    message: str = column("message")
    about: str = column("about")
    since_s: float | None = column("since")
    next: str = column("next")
    source: str = column("source")


def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="NAMESPACE/NAME, NAME, or KIND/NAME (pod/x, rayjob/y).")],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the job; default: where its name is.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Why a job does not run, was evicted, moved or resized, and what to do.

    Collected from its objects: position in the queue and quota, what holds it and since when (sizing, staging,
    preemption, lending), staged data, evictions and their cost, messages of the schedulers, sizes and placement.
    The most important comes first. A Job, a Pod, a Kueue Workload or any other kind; read with your own rights.

    For what waits in Kueue, KAI Scheduler, Volcano or for kube-scheduler: what binds and by how much, and the smallest
    changes with which it would run, each tried on the cluster as it is.

    Examples:

        kopt why research/finetune

        kopt why finetune -n research -o json

        kopt why rayjob/sweep
    """
    wanted = wanted_of(job, namespace)
    collected, answer, diagnosis = asyncio.run(_read(kubeconfig, wanted))
    rows = [
        FindingRow(finding.code, finding.message, finding.about, finding.since_s, finding.next, finding.source or "")
        for finding in answer.findings
    ]
    if output is Format.TABLE:
        show(
            Answer("findings", [], empty=answer.summary, remarks=_sentences(answer, diagnosis, collected.now_s)), output
        )
        return
    root, target = collected.root, collected.target
    document = {
        "job": {"kind": root.resource.kind, "namespace": root.key[0], "name": root.key[1], "uid": root.uid},
        "asked": {"kind": target.resource.kind, "namespace": target.key[0], "name": target.key[1]},
        "state": answer.now.name.lower(),
        "summary": answer.summary,
        "findings": rows,
        "next": answer.next,
        "diagnosis": None if diagnosis is None else asdict(diagnosis),
        "unread": list(collected.unread),
        "at_s": collected.now_s,
    }
    show(Answer("findings", rows, document=document), output)


def wanted_of(job: str, namespace: str) -> "Wanted":
    """What was named. ``a/b`` is KIND/NAME where ``a`` is a kind, else NAMESPACE/NAME; wrong usage ends the process."""
    from kopt.controllers.overview.reading import Wanted, is_kind

    parts = job.split("/")
    is_whole = all(parts)
    kind = parts.pop(0) if len(parts) == 3 or (len(parts) == 2 and is_kind(parts[0])) else ""
    space = parts.pop(0) if len(parts) == 2 else ""
    if not is_whole or len(parts) != 1 or (kind and not is_kind(kind)):
        usage_error(f"{job!r} names no job; write NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME", "JOB")
    if space and namespace and space != namespace:
        usage_error(f"{job!r} is in namespace {space}, and -n says {namespace}", "--namespace")
    return Wanted(parts[0], space or namespace, kind)


def _sentences(answer: "Why", diagnosis: "Diagnosis | None", now_s: float) -> list[str]:
    from kopt.controllers.overview.diagnosis.words import sentences

    result = [f"• {finding.message}" for finding in answer.findings]
    result += sentences(diagnosis, now_s) if diagnosis is not None else []
    return [*result, f"Next: {answer.next}"] if answer.next else result


async def _read(kubeconfig: Path | None, wanted: "Wanted") -> "tuple[JobSnapshot, Why, Diagnosis | None]":
    from kopt.cluster.client.api import ApiError, connect
    from kopt.controllers.overview.collect import gather
    from kopt.controllers.overview.diagnosis.reading import diagnosed
    from kopt.controllers.overview.reading import Unknown
    from kopt.controllers.overview.why import why as answered

    try:
        async with connect(kubeconfig) as kube:
            collected = await gather(kube, wanted)
            answer = answered(collected)
            diagnosis = await diagnosed(kube, collected, answer, _run_times)
    except Unknown as error:
        raise Refused(error.message) from error
    except ApiError as error:
        raise Refused(f"the cluster cannot be read: {error}") from error
    return collected, answer, diagnosis


async def _run_times(questions: "Mapping[str, RunTimeQuestion]") -> "RunTimes":
    """What the endpoint says of each; nothing where there is none, as the answer is of use without a start."""
    from kopt.core.workload.run_time import LEVELS, RunTimeQuantiles
    from kopt.serving.client.client import AsyncPredictionClient, EndpointFailure, RequestRefused
    from kopt.serving.contract.common import AnswerError
    from kopt.serving.contract.runtime_answers import MAX_JOBS

    result: dict[str, RunTimeQuantiles] = {}
    names = sorted(questions)
    try:
        async with AsyncPredictionClient(load_settings().endpoint, deadline_s=_ENDPOINT_S) as client:
            for first in range(0, len(names), MAX_JOBS):
                part = {name: questions[name] for name in names[first : first + MAX_JOBS]}
                for job in (await client.run_times(part)).jobs:
                    if job.remaining_seconds is not None:
                        result[job.id] = RunTimeQuantiles(LEVELS, astuple(job.remaining_seconds))
    except (EndpointFailure, RequestRefused, AnswerError):
        return result
    return result
