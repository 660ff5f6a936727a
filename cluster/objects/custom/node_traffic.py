"""``status.traffic`` of ``NodeTopology`` objects: what jobs put on a node's links, as its agent measured it."""

from collections.abc import Mapping

from kopt.cluster.client.resources import Object
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.times import seconds, stamp

_MOST_LINKS = 128


def traffic_status(rates_gbps: Mapping[str, float], at_s: float) -> Object:
    """Rates by link (GB/s of the busier direction) at a time in Unix seconds."""
    links = [{"link": link[:63], "gigabytesPerS": rate} for link, rate in sorted(rates_gbps.items())[:_MOST_LINKS]]
    return {"measuredAt": stamp(at_s), "links": links}


def traffic_of(document: Object, now_s: float) -> tuple[LinkTraffic, ...]:
    """Of one node, with the age of the rates; none where its agent measures none.

    Raises KeyError, TypeError or ValueError for a status that no agent writes.
    """
    status = (document.get("status") or {}).get("traffic")
    if not status:
        return ()
    age_s = max(0.0, now_s - seconds(status["measuredAt"]))
    node = str(document["metadata"]["name"])
    return tuple(
        LinkTraffic(str(item["link"]), float(item["gigabytesPerS"]), node=node, age_s=age_s)
        for item in (status.get("links") or ())[:_MOST_LINKS]
    )
