"""The extender's part of kube-scheduler's configuration."""

from kopt.cluster.client.resources import Object

SCHEDULER_NAME = "kopt-scheduler"
PERCENT_OF_NODES = 5


def scheduler_configuration(
    url: str, scheduler: str = SCHEDULER_NAME, timeout: str = "1s", *, joint: bool = False, tls: Object | None = None
) -> Object:
    """A KubeSchedulerConfiguration with one profile that asks the extender about every pod.

    ``tls`` is its ``tlsConfig`` (``caFile``, ``certFile``, ``keyFile``), for an https ``url``.

    No ``managedResources``: pods that ask for a share of a GPU by annotation request none, and must be seen all the
    same.

    ``percentageOfNodesToScore`` is the least that a scheduler takes by itself (in clusters of 5,600 nodes): 5 %, but a
    hundred nodes with room, each time the next ones, and all where fewer have room. Filtering nodes is most of a
    scheduler's work, and the openb trace fills to the same share (`docs/adr/0011-extender.md`). Where pods are planned
    together (``joint``) it is all of them: a plan is of no use for a node that is not offered.
    """
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": scheduler, "percentageOfNodesToScore": 100 if joint else PERCENT_OF_NODES}],
        "extenders": [
            {
                "urlPrefix": url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": 1000,
                "enableHTTPS": url.startswith("https"),
                "httpTimeout": timeout,
                "nodeCacheCapable": True,
                "ignorable": True,
            }
            | ({"tlsConfig": tls} if tls else {})
        ],
    }
