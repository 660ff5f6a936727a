"""Asks a cluster why a job does not run, with the rights of whoever asks; ``kopt.why`` is made of it.

    import kopt
    answer = kopt.why("research/finetune")
    print(answer.summary, answer.causes[0].message, answer.start.p90_s)

``kopt why -o json`` prints ``to_dict()``.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kopt.cluster.client.api import Kube, connect
from kopt.controllers.overview.collect import gather
from kopt.controllers.overview.diagnosis.endpoint import EndpointPredictions
from kopt.controllers.overview.diagnosis.questions import Predictions
from kopt.controllers.overview.diagnosis.reading import diagnosed
from kopt.controllers.overview.job_answer import JobAnswer, Named
from kopt.controllers.overview.reading import Wanted, is_kind
from kopt.controllers.overview.recorded import recorded_actions
from kopt.controllers.overview.why import why as answered
from kopt.core.settings import Settings


class WrongName(ValueError):
    """What was asked about can be no name of a job; the message says what to write. ``of_namespace``: the name is one,
    and its namespace contradicts the one that was given beside it."""

    def __init__(self, message: str, *, of_namespace: bool = False) -> None:
        super().__init__(message)
        self.of_namespace = of_namespace


def why(
    job: str,
    namespace: str = "",
    *,
    eta: bool = True,
    kubeconfig: str | Path | None = None,
    settings: Settings,
) -> JobAnswer:
    """Why a job does not run, what would let it, and when it starts.

    ``job`` is NAMESPACE/NAME, NAME, KIND/NAME or KIND/NAMESPACE/NAME; it is read with the rights of the kubeconfig, by
    default the one that kubectl takes. With ``eta`` the prediction endpoint is asked for the run times of what is
    before it, and for what components of ours did to it. Works inside a running event loop, as in notebooks. Raises
    WrongName, Unknown for a job that is not there, ApiError for a cluster that cannot be read, NoCluster without one.
    """
    wanted = wanted_of(job, namespace)
    predictions = EndpointPredictions(settings.endpoint, settings.cluster) if eta else None

    async def read() -> JobAnswer:
        async with connect(None if kubeconfig is None else Path(kubeconfig)) as kube:
            return await ask(kube, wanted, predictions, records=settings.endpoint if eta else "")

    with ThreadPoolExecutor(1, thread_name_prefix="kopt-why") as thread:
        return thread.submit(asyncio.run, read()).result()


async def ask(kube: Kube, wanted: Wanted, predictions: Predictions | None = None, *, records: str = "") -> JobAnswer:
    """The answer, read now; without ``predictions`` it has no start. ``records`` is the address of an endpoint whose
    audit log is read. Raises Unknown for a name without an object, and ApiError."""
    collected = await gather(kube, wanted)
    answer = answered(collected)
    root, target = Named.of(collected.root), Named.of(collected.target)
    return JobAnswer(
        root,
        target,
        answer.now,
        answer.summary,
        answer.findings,
        answer.next,
        await diagnosed(kube, collected, answer, predictions),
        collected.unread,
        collected.now_s,
        await recorded_actions(records, root.namespace, {(each.kind, each.name, each.uid) for each in (root, target)})
        if records
        else (),
    )


def wanted_of(job: str, namespace: str = "") -> Wanted:
    """What was named. ``a/b`` is KIND/NAME where ``a`` is a kind, else NAMESPACE/NAME. Raises WrongName."""
    parts = job.split("/")
    is_whole = all(parts)
    kind = parts.pop(0) if len(parts) == 3 or (len(parts) == 2 and is_kind(parts[0])) else ""
    space = parts.pop(0) if len(parts) == 2 else ""
    if not is_whole or len(parts) != 1 or (kind and not is_kind(kind)):
        raise WrongName(f"{job!r} names no job; write NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME")
    if space and namespace and space != namespace:
        raise WrongName(f"{job!r} is in namespace {space}, and {namespace} was given", of_namespace=True)
    return Wanted(parts[0], space or namespace, kind)
