"""Which change of a workload is made: one container and one resource."""

from collections.abc import Sequence

from kopt.cli.errors import Refused
from kopt.controllers.rightsizing.candidates import Candidate
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
    return max(changes, key=lambda each: each.freed_share)
