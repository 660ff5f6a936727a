"""What is wrong with watches of a cluster, in sentences for the reader of the pages."""

from collections.abc import Sequence
from typing import Any

from kopt.cluster.client.api import ApiError, Forbidden, NoCluster, NotFound, Unauthorized, Unreachable
from kopt.cluster.runtime.informer import Informer
from kopt.controllers.overview.text import span

STALE_S = 150.0
"""The server confirms every 60 to 75 s that a watch is alive."""


def problems(informers: Sequence[Informer[Any]]) -> tuple[str, ...]:
    """What is wrong; a server that is away is said once."""
    away = [informer for informer in informers if isinstance(informer.error, NoCluster | Unreachable)]
    if len(away) == len(informers) and (stale := [informer for informer in informers if problem(informer)]):
        newest_s = min(informer.age_s() for informer in stale)
        old = "nothing of it has been read yet" if newest_s == float("inf") else f"this is {span(newest_s)} old"
        return (f"The cluster does not answer, {old}: {_short(stale[0].error)}",)
    return tuple(sentence for informer in informers if (sentence := problem(informer)))


def problem(informer: Informer[Any]) -> str:
    """What is wrong with one kind, as the reader has to know it; empty for what is well or not installed."""
    name, error = informer.resource.full_name, informer.error
    if error is None or isinstance(error, NotFound):
        return ""
    if isinstance(error, Forbidden | Unauthorized):
        return f"These pages may not read {name}: {error.message}"
    if not informer.synced.is_set():
        return f"{name} could not be read yet: {_short(error)}"
    if informer.age_s() > STALE_S:
        return f"Data about {name} is {span(informer.age_s())} old: {_short(error)}"
    return ""


def _short(error: ApiError | None) -> str:
    return error.message[:300] if error is not None else "for an unknown reason"


def is_ready(informers: Sequence[Informer[Any]]) -> bool:
    """Whether each was read once, or said why not."""
    return all(informer.synced.is_set() or informer.error is not None for informer in informers)


def missing(informers: Sequence[Informer[Any]]) -> frozenset[str]:
    """Kinds that are not installed, by their full name."""
    return frozenset(informer.resource.full_name for informer in informers if isinstance(informer.error, NotFound))
