"""Queues that `kopt queues apply` wrote."""

from collections.abc import AsyncGenerator
from functools import partial

from kopt.cluster.client.api import ApiError, Kube, NotFound, Unreachable
from kopt.cluster.client.resources import (
    Object,
)
from kopt.cluster.teardown.steps import Outcome, Step, do
from kopt.cluster.workloads.queue_trees.live import KINDS, ObjectKey, key_of_document, read_live, resource_of
from kopt.cluster.workloads.queue_trees.writes import is_created_by_us, leave, remove
from kopt.core.scheduling.queue_tree import Engine


async def give_back_queues(kube: Kube, engine: Engine, dry_run: bool) -> AsyncGenerator[Outcome]:
    """What `kopt queues apply` wrote: fields of ours are left, and then what we created goes once nobody uses it."""
    try:
        live = await read_live(kube, engine)
        for document in (item for item in live.ours() if not is_created_by_us(item)):
            yield await do(_queue_step("release", document), partial(leave, kube, document), dry_run)
        live = live if dry_run else await read_live(kube, engine)
    except NotFound:
        # An engine that is not installed has no queues.
        return
    except Unreachable:
        raise
    except ApiError as error:
        yield Outcome(Step("find", KINDS[engine][-1], "", ""), str(error))
        return
    deleted = set[ObjectKey]()
    for document in (item for item in live.ours() if is_created_by_us(item)):
        step = _queue_step("delete", document)
        if use := live.use_of(document, deleted):
            yield Outcome(
                step, f"it was created for a KaiwoQueue and stays, as {use}; run this again when that has ended"
            )
            continue
        outcome = await do(step, partial(remove, kube, document), dry_run)
        deleted |= set() if outcome.error else {key_of_document(document)}
        yield outcome


def _queue_step(action: str, document: Object) -> Step:
    metadata = document["metadata"]
    resource = resource_of(document)
    return Step(action, resource, metadata.get("namespace", ""), metadata["name"], "of a KaiwoQueue")
