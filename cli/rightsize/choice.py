"""Which change of a workload is made: one container and one resource."""

from collections.abc import Sequence

from kopt.cli.errors import Refused
from kopt.cli.rightsize.candidates import Candidate
from kopt.core.reason import Reason
from kopt.core.workload.rightsizing import Lever


def select(candidates: Sequence[Candidate], lever: Lever | None, container: str) -> Candidate:
    """Of those that fit the options, the one that gives back the larger share of its request. Raises Refused with
    every reason where there is none."""
    fitting = [each for each in candidates if lever in (None, each.lever) and container in ("", each.container)]
    changes = [each for each in fitting if each.resize is not None]
    if not changes:
        reasons = {each.result.message for each in fitting if isinstance(each.result, Reason)}
        raise Refused(f"there is nothing to change: {' '.join(sorted(reasons)) or 'no container fits the options.'}")
    return max(changes, key=_share)


def _share(candidate: Candidate) -> float:
    assert candidate.resize is not None
    return candidate.resize.freed / max(1, candidate.bounds.request or 0)


def log_container(candidate: Candidate) -> str:
    """The container that has the GPUs: its log shows the steps."""
    from kopt.cluster.workloads.pod_sizing import gpu_container

    pod_kind = candidate.pod_kind
    container = gpu_container(pod_kind.workload, pod_kind.pods)
    return candidate.container if container is None else str(container[1]["name"])
