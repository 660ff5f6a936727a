"""The pods that wait, as shapes: equal ones together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.cluster.workloads.kueue.reading import requests_of
from kopt.cluster.workloads.requests.pods import ask_of, is_gpu
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.rules import rules_of
from kopt.core.scheduling.placement import Ask
from kopt.policies.diagnosis import NodeLimit, PodShape
from kopt.policies.placement.pool import Pool

_DECIDE = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName", "priority")
_OWN = ("cpu", "memory", "pods", "ephemeral-storage")


@dataclass(frozen=True)
class PodTemplate:
    """``count`` pods like ``pod``, of which ``least`` start together."""

    name: str
    pod: Object
    count: int
    least: int


def templates_of(pods: Sequence[Object], least: int) -> list[PodTemplate]:
    """Equal pods together. ``least``: of a gang's pods, how many have to start together; 1 where each goes alone."""
    groups: dict[bytes, list[Object]] = {}
    for pod in pods:
        spec = mapping(pod, "spec")
        key = _key([[spec.get(name) for name in _DECIDE], sorted(requests_of(spec).items())])
        groups.setdefault(key, []).append(pod)
    result, remaining = [], least
    for members in sorted(groups.values(), key=len, reverse=True):
        together = max(1, min(len(members), remaining)) if least > 1 else 1
        remaining -= together
        result.append(PodTemplate(text(members[0], "metadata", "name"), members[0], len(members), together))
    return result


def _key(decisive: list[Any]) -> bytes:
    try:
        return orjson.dumps(decisive, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Numbers beyond 64 bits, which are in no object that an API server has checked.
        return repr(decisive).encode(errors="replace")


def requests_of_templates(templates: Iterable[PodTemplate]) -> list[tuple[PodTemplate, Ask]]:
    """Without templates that nobody can read."""
    result = []
    for template in templates:
        try:
            result.append((template, ask_of(template.pod)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return result


def pool_of(requests: Iterable[tuple[PodTemplate, Ask]], books: ClusterBooks) -> Pool | None:
    """The pool of the GPU resource that most of the pods request; None where none of them requests any."""
    counts: dict[str, int] = {}
    for template, ask in requests:
        if ask.pool:
            counts[ask.pool] = counts.get(ask.pool, 0) + template.count * ask.request.gpus.count
    return books.pool(max(counts, key=lambda name: counts[name])) if counts else None


def shape_of(
    template: PodTemplate, ask: Ask, namespace: str, books: ClusterBooks, pool: Pool, flavors: Sequence[str] = ()
) -> PodShape:
    """With its rules and what it needs of other resources. Models of GPUs are left to the rules that select them."""
    limits = []
    if ask.pool:
        amounts = requests_of(mapping(template.pod, "spec"))
        others = [name for name, value in amounts.items() if value and name not in _OWN and not is_gpu(name)]
        for resource in [*others, *(["pods"] if _counts_pods(books, pool) else [])]:
            free, total = books.free_of(pool, resource)
            limits.append(NodeLimit(resource, max(1, amounts.get(resource, 0) // 1000), free, total))
    request = replace(ask.request, gpus=replace(ask.request.gpus, models=()))
    rules = rules_of(template.pod, namespace, books, pool, flavors) if ask.pool else ()
    return PodShape(template.name, template.count, template.least, request, ask.pool, rules, tuple(limits))


def _counts_pods(books: ClusterBooks, pool: Pool) -> bool:
    return any(at(books.nodes.get(name), "status", "allocatable", "pods") for name in pool.state.index)
