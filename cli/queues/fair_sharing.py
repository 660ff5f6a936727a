"""Whether the weights of a tree count in the Kueue of a cluster."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.open_cluster import open_cluster
from kopt.core.scheduling.queue_tree import Compiled, Engine

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.workloads.kueue.own_configuration import FairSharingState


def fair_sharing_in(kubeconfig: Path, compiled: Compiled, engine: Engine) -> "FairSharingState | None":
    """In the cluster that a kubeconfig names. Raises Refused where it cannot be read at all."""

    async def read() -> "FairSharingState | None":
        async with open_cluster(kubeconfig) as kube:
            return await fair_sharing_for(kube, compiled, engine)

    return asyncio.run(read())


async def fair_sharing_for(kube: "Kube", compiled: Compiled, engine: Engine) -> "FairSharingState | None":
    """None where no queue has a weight, or another engine counts it."""
    from kopt.cluster.workloads.kueue.own_configuration import fair_sharing
    from kopt.policies.queues.kueue import FAIR_SHARING

    if engine is not Engine.KUEUE or FAIR_SHARING not in compiled.requires:
        return None
    return await fair_sharing(kube)


def requirements(compiled: Compiled, fair: "FairSharingState | None") -> list[str]:
    """What the engine has to have, as far as the cluster does not have it by what is known."""
    from kopt.cluster.workloads.kueue.own_configuration import FairSharing
    from kopt.policies.queues.kueue import FAIR_SHARING

    result = []
    for need in compiled.requires:
        if fair is None or need != FAIR_SHARING:
            result.append(f"Needs {need}")
        elif fair.state is FairSharing.OFF:
            result.append(f"Weights do not count: {fair.reason} has no fair sharing. Needs {need}")
        elif fair.state is FairSharing.UNKNOWN:
            result.append(f"Needs {need} Whether this Kueue has it is not known: {fair.reason}.")
    return result
