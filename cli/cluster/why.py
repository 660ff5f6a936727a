"""``kopt why``: why a job does not run, was evicted, moved or resized, in plain sentences."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.controllers.overview.job_answer import JobAnswer
    from kopt.controllers.overview.reading import Wanted


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
    eta: Annotated[
        bool,
        typer.Option(
            "--eta/--no-eta",
            help="Ask the prediction endpoint when it starts (p50 and p90), and what the audit log has of it; without, "
            "only the cluster is asked.",
        ),
    ] = True,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Why a job does not run, was evicted, moved or resized, what to do, and when it starts.

    Collected from its objects: position in the queue and quota, what holds it and since when (sizing, staging,
    preemption, lending), staged data, evictions and their cost, messages of the schedulers, sizes and placement.
    The most important comes first. A Job, a Pod, a Kueue Workload or any other kind; read with your own rights.

    For what waits in Kueue, KAI Scheduler, Volcano or for kube-scheduler: what binds and by how much, the smallest
    changes with which it would run, each tried on the cluster as it is, and when it starts. What components of kopt
    did to it is shown from the audit log, as far as you may see it (`kopt audit log`).

    Examples:

        kopt why research/finetune

        kopt why finetune -n research --no-eta -o json

        kopt why rayjob/sweep
    """
    from kopt.controllers.overview.asking import WrongName, wanted_of

    try:
        wanted = wanted_of(job, namespace)
    except WrongName as error:
        usage_error(str(error), "--namespace" if error.of_namespace else "JOB")
    answer = asyncio.run(_read(kubeconfig, wanted, eta=eta))
    if output is Format.TABLE:
        show(Answer("findings", [], empty=answer.summary, remarks=answer.lines), output)
        return
    rows = [
        FindingRow(finding.code, finding.message, finding.about, finding.since_s, finding.next, finding.source or "")
        for finding in answer.findings
    ]
    show(Answer("findings", rows, document=answer.to_dict()), output)


async def _read(kubeconfig: Path | None, wanted: "Wanted", *, eta: bool) -> "JobAnswer":
    from kopt.controllers.overview.asking import ask
    from kopt.controllers.overview.diagnosis.endpoint import EndpointPredictions
    from kopt.controllers.overview.reading import Unknown

    settings = load_settings()
    predictions = EndpointPredictions(settings.endpoint, settings.cluster) if eta else None
    async with open_cluster(kubeconfig) as kube:
        try:
            return await ask(kube, wanted, predictions, records=settings.endpoint if eta else "")
        except Unknown as error:
            raise Refused(error.message) from error
