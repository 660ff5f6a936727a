"""Volcano's Jobs are stopped and go on by Commands, which its controller carries out and deletes.

A hold is a mark on the Job (``cluster.holds.hold``) that says what is to be done, ``{"volcano": "AbortJob"}`` or
``"ResumeJob"``, and the Command after it: a replica that finds one without the other writes the other. Commands have
names of their own, so that there are no two of one; a repeated one finds nothing to do. Written against
volcano.sh/apis 1.13.
"""

import contextlib

from kopt.cluster.client.api import AlreadyExists, Kube
from kopt.cluster.client.resources import VOLCANO_COMMANDS, VOLCANO_JOBS, Object

ABORT, RESUME = "AbortJob", "ResumeJob"
STEP = "volcano"
"""The name in ``kaiwo.ai/held-undo``."""
ABORTED, STOPPING = "Aborted", ("Aborting", "Aborted")
ENDED = ("Completed", "Terminated", "Failed")


def phase_of(job: Object) -> str:
    """The phase of a Job; Pending while it has none."""
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "Pending")


def command(job: Object, action: str, reason: str = "") -> Object:
    """The Command that has a Job aborted or resumed."""
    metadata = job["metadata"]
    target = VOLCANO_JOBS.reference("", metadata["name"], metadata["uid"]) | {"controller": True}
    name = f"kopt-{action.lower()}-{metadata['uid']}"
    return {
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "action": action,
        "target": target,
        "reason": "Lending",
        "message": reason[:512],
    }


async def resume(kube: Kube, job: Object) -> None:
    """Let a Job that was aborted go on."""
    if phase_of(job) in STOPPING:
        with contextlib.suppress(AlreadyExists):
            await kube.create(VOLCANO_COMMANDS, command(job, RESUME, "It is no longer held."))
