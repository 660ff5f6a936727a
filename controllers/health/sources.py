"""What speaks against each node at one look: exporters' series, links, others' verdicts and device taints."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from kopt.controllers.health.devices import UNKNOWN, DevicesByGpu
from kopt.controllers.health.views import ObservedLinks, ObservedNode
from kopt.core.hardware.health import NODE, Entry, Evidence
from kopt.formats.gpu_metrics.health import labels, names

Query = Callable[[str], Awaitable[list[tuple[dict[str, str], float]]]]
"""Series of a query as of now."""
_FALLS = "FALLS"


def health_query() -> str:
    """One query for all series, with the labels that are read and no others: small also for thousands of GPUs."""
    by = ",".join(["__name__", *labels()])
    return f'max by ({by}) ({{__name__=~"{"|".join(names())}"}})'


def by_node_name(readings: Iterable[str], nodes: Mapping[str, ObservedNode]) -> Mapping[str, str]:
    """The node's name by what exporters call it: the same, or its first label where one of both is fully qualified."""
    short: dict[str, set[str]] = {}
    for name in nodes:
        short.setdefault(name.split(".")[0], set()).add(name)
    result = {}
    for reading in readings:
        host = reading.rsplit(":", 1)[0] if reading.rsplit(":", 1)[-1].isdigit() else reading
        same = short.get(host.split(".")[0], set())
        if host in nodes:
            result[reading] = host
        elif len(same) == 1 and ("." not in host or "." not in next(iter(same))):
            result[reading] = next(iter(same))
    return result


def links_evidence(
    links: ObservedLinks | None,
    entries: Mapping[tuple[str, str], Entry],
    before: Mapping[str, float],
    now_s: float,
) -> tuple[list[Evidence], dict[str, float]]:
    """Of links: what is worse now, and falls since the last look; and the readings for the next one."""
    degraded = links.degraded if links is not None else {}
    evidence = [Evidence("LINK_DEGRADED", gpu, 1.0, now_s, detail) for gpu, detail in degraded.items()]
    evidence += _over("LINK_DEGRADED", degraded, entries, now_s)
    counters = {f"{_FALLS}/{part}": falls for part, falls in (links.falls.items() if links is not None else ())}
    for name, falls in counters.items():
        # The first fall is degradation; each one after that a flap.
        growth = falls - before.get(name, min(1.0, falls))
        if growth > 0:
            part, _, gpu = name.removeprefix(f"{_FALLS}/").rpartition("/")
            evidence.append(Evidence("LINK_FLAP", gpu, growth, now_s, part))
    return evidence, counters


def others_evidence(
    node: ObservedNode, devices: DevicesByGpu, entries: Mapping[tuple[str, str], Entry], now_s: float
) -> list[Evidence]:
    """Of what other systems say of the node, and of its devices by taints."""
    reported: dict[str, list[str]] = {NODE: list(node.grades)} if node.grades else {}
    for gpu, parts in devices.items():
        texts = [text for device in parts if device.is_whole for text in device.taints]
        if gpu != UNKNOWN and texts:
            reported[gpu] = texts
    evidence = [Evidence("OTHER_VERDICT", gpu, 1.0, now_s, "; ".join(texts)) for gpu, texts in reported.items()]
    return evidence + list(_over("OTHER_VERDICT", reported, entries, now_s))


def job_evidence(why: str | None, entries: Mapping[tuple[str, str], Entry], now_s: float) -> list[Evidence]:
    """Of jobs that fail on this node and not on others."""
    if why is not None:
        return [Evidence("JOB_FAILURES", NODE, 1.0, now_s, why)]
    return list(_over("JOB_FAILURES", {}, entries, now_s))


def _over(
    code: str, reported: Mapping[str, object], entries: Mapping[tuple[str, str], Entry], now_s: float
) -> Iterator[Evidence]:
    """Ends of states that nobody reports any more."""
    for (name, gpu), entry in entries.items():
        if name == code and entry.lasts and gpu not in reported:
            yield Evidence(code, gpu, 0.0, now_s)
