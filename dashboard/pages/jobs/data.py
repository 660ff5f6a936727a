"""The jobs whose logs the endpoint follows."""

from dataclasses import dataclass, replace

from kopt.dashboard.data.access import Holds, pods_of
from kopt.dashboard.data.feed import Answer, Connections, Feed, Polled
from kopt.serving.contract.checkpoint_answers import JobOut


@dataclass(frozen=True)
class Jobs(Answer):
    """The jobs whose logs are followed, heard of last first, as of ``now_s``; or what kept them away."""

    jobs: tuple[JobOut, ...] = ()
    now_s: float = 0.0


def _open(connections: Connections) -> Polled[Jobs]:
    async def ask() -> Jobs:
        answer = await connections.client.jobs()
        return Jobs(answer.jobs, answer.now)

    return Polled(Jobs(), ask, connections.clock)


def _restrict(jobs: Jobs, holds: Holds) -> Jobs:
    return replace(jobs, jobs=tuple(job for job in jobs.jobs if holds(pods_of(job.job))))


JOBS: Feed[Jobs] = Feed("jobs", Jobs, _open, _restrict)
