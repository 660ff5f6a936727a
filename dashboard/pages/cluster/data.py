"""What the controllers in the cluster say."""

from kopt.core.scheduling.overview import Overview
from kopt.dashboard.data.feed import Connections, Feed, Fixed


def _open(connections: Connections) -> Fixed[Overview]:
    cluster = connections.cluster
    return Fixed((lambda: Overview(now_s=connections.clock())) if cluster is None else cluster.overview)


OVERVIEW: Feed[Overview] = Feed("overview", lambda: Overview(now_s=0.0), _open)
