"""Everything of ours off: webhooks and compiled compliance policies deleted, controllers scaled to zero, elastic jobs
that nobody watches given back their width, agents deleted, then the policy that guards our annotations, tests and Jobs
that hold reserved GPUs, held workloads released, pods that are being resized given back what they had.

In this order, as a controller that still runs could hold again what was released, and acts on annotations that others
could forge without the guard. Log agents go on until widths are given back: they tell which moment is safe.

Safe to repeat: what is off already is not touched, and a second run finds nothing. The entry of the extender in a
scheduler's configuration is ``ignorable`` and may stay; a scheduler that the chart deployed goes on without the
extender, as pods name it.

A DaemonSet has no number of replicas; it is deleted, and comes back with the next ``helm upgrade`` as the webhook
configurations do. What is held is found and restored as ``cluster.holds.hold`` says, priorities as
``cluster.workloads.kueue.order``, and the queues that `kopt queues apply` wrote as
``cluster.workloads.queue_trees.writes``.
"""

from collections.abc import AsyncGenerator, Sequence

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import (
    HOLDS_COMPONENT,
    POLICIES_COMPONENT,
    TESTS_COMPONENT,
    Resource,
)
from kopt.cluster.holds.hold import HELD_KINDS
from kopt.cluster.teardown.changes import open_unhealthy_nodes, release_held, unguard, unorder, untaint_devices
from kopt.cluster.teardown.components import (
    GUARD_COMPONENT,
    delete_agents,
    delete_policies,
    delete_webhooks,
    end_jobs,
    stop_controllers,
    wait_until_ended,
)
from kopt.cluster.teardown.queues import give_back_queues
from kopt.cluster.teardown.resizes import undo_resizes
from kopt.cluster.teardown.steps import Outcome, Step
from kopt.cluster.teardown.widths import undo_widths
from kopt.core.scheduling.queue_tree import Engine


async def switch_off(
    kube: Kube,
    *,
    held_kinds: Sequence[Resource] = HELD_KINDS,
    namespace: str = "",
    dry_run: bool = False,
    wait_s: float = 60.0,
) -> AsyncGenerator[Outcome]:
    """Each step as it is done; a step that fails does not keep the others from being done.

    ``held_kinds`` are released, in this order. ``namespace`` limits where our Deployments and DaemonSets are looked
    for. Raises Unreachable when there is no API server.
    """
    async for outcome in delete_webhooks(kube, dry_run):
        yield outcome
    async for outcome in delete_policies(kube, POLICIES_COMPONENT, dry_run):
        yield outcome
    stopped: list[Step] = []
    async for outcome in stop_controllers(kube, namespace, dry_run):
        stopped += [] if outcome.error else [outcome.step]
        yield outcome
    async for outcome in undo_widths(kube, dry_run, wait_s):
        yield outcome
    async for outcome in delete_agents(kube, namespace, dry_run):
        stopped += [] if outcome.error else [outcome.step]
        yield outcome
    if stopped and not dry_run:
        for outcome in await wait_until_ended(kube, stopped, wait_s):
            yield outcome
        # A replica that was starting may have registered once more before it ended.
        async for outcome in delete_webhooks(kube, dry_run):
            yield outcome
    async for outcome in delete_policies(kube, GUARD_COMPONENT, dry_run):
        yield outcome
    for component in (TESTS_COMPONENT, HOLDS_COMPONENT):
        async for outcome in end_jobs(kube, component, dry_run):
            yield outcome
    for kind in held_kinds:
        # An API group may have left the version behind that this was written against.
        served = kind if await kube.serves(kind) else await kube.preferred(kind)
        if served is not None:
            async for outcome in release_held(kube, kind, served, dry_run, wait_s):
                yield outcome
    async for outcome in undo_resizes(kube, dry_run):
        yield outcome
    async for outcome in unorder(kube, dry_run):
        yield outcome
    async for outcome in open_unhealthy_nodes(kube, dry_run):
        yield outcome
    async for outcome in untaint_devices(kube, dry_run):
        yield outcome
    for engine in Engine:
        async for outcome in give_back_queues(kube, engine, dry_run):
            yield outcome
    async for outcome in unguard(kube, dry_run):
        yield outcome
