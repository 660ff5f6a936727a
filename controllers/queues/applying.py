"""Server-side apply of a compiled tree: what it would change first, then the writes, as a field manager of our own.

Fields of others are never taken: where one differs, the API server says so in a dry run, and nothing at all is written.
What we wrote is found by its label; what is in no manifest any more is left to its other owners, or deleted.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from kopt.cluster.client.api import ApiError, Conflict, Kube, NotFound
from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import holder_of
from kopt.cluster.workloads.queue_trees.live import LiveQueues, key_of_document, read_live
from kopt.cluster.workloads.queue_trees.writes import apply_object, is_created_by_us, leave, remove
from kopt.core.scheduling.queue_tree import FIELD_MANAGER, Compiled, Engine
from kopt.policies.queues.differences import Action, ApplyPlan, ObjectChange, as_written, change_of
from kopt.policies.queues.tree import QueueTree, misspelled, nearest

_AT_ONCE = 16


async def plan_apply(
    kube: Kube, tree: QueueTree, compiled: Compiled, engine: Engine, *, prune: bool = False, insist: bool = True
) -> ApplyPlan:
    """What applying would do now. Objects of ours that are not in the tree are deleted with ``prune``, else left; one
    that is in use is a problem where the caller insists, else it is left until it is not."""
    live = await read_live(kube, engine)
    wanted = [item for item in compiled.objects if not _is_described_elsewhere(item, tree, live)]
    desired = [_of_this_object(as_written(item, live.get(item)), live.get(item)) for item in wanted]
    changes = [change_of(item, live.get(item), FIELD_MANAGER) for item in desired]
    deletions, problems = _deletions(live, desired, prune=prune, insist=insist)
    problems += [*_unknown_names(tree, live, desired), *_filled_departments(tree, live)]
    problems += await _refusals(kube, live, changes)
    return ApplyPlan((*changes, *deletions), tuple(problems))


async def apply_plan(
    kube: Kube, plan: ApplyPlan, check: Callable[[], None] = lambda: None
) -> AsyncGenerator[tuple[ObjectChange, str]]:
    """Each write with its error, if any; the first error ends it, as what follows may rest on it. ``check`` is called
    before each, and raises where the caller may not write any more."""
    for change in plan.writes:
        check()
        try:
            if change.action is Action.DELETE:
                await remove(kube, dict(change.document))
            elif change.action is Action.RELEASE:
                await leave(kube, dict(change.document))
            else:
                await apply_object(kube, dict(change.document))
        except NotFound as error:
            if change.action is not Action.DELETE:
                yield change, str(error)
                return
        except ApiError as error:
            yield change, _refusal(change, error)
            return
        yield change, ""


def _is_described_elsewhere(document: Object, tree: QueueTree, live: LiveQueues) -> bool:
    """A parent that no manifest describes, and that is there: its own bounds are not ours to change."""
    return document["metadata"]["name"] in tree.implied and live.get(document) is not None


def _of_this_object(desired: Object, live: Object | None) -> Object:
    """With the uid of the object that was read: another one of its name is not written to."""
    if live is None:
        return desired
    return {**desired, "metadata": {**desired["metadata"], "uid": live["metadata"]["uid"]}}


def _deletions(
    live: LiveQueues, desired: Sequence[Object], *, prune: bool, insist: bool
) -> tuple[list[ObjectChange], list[str]]:
    wanted = {key_of_document(item) for item in desired}
    obsolete = [item for item in live.ours() if key_of_document(item) not in wanted]
    obsolete_keys, changes, problems = {key_of_document(item) for item in obsolete}, list[ObjectChange](), list[str]()
    for item in obsolete:
        if not prune:
            changes.append(ObjectChange(Action.LEAVE, item, why="in no manifest; --prune deletes it"))
        elif not is_created_by_us(item):
            changes.append(ObjectChange(Action.RELEASE, item, why="in no manifest; it has other owners"))
        elif use := live.use_of(item, obsolete_keys):
            change = ObjectChange(Action.LEAVE, item, why=use)
            changes.append(change)
            if not insist:
                continue
            text = "it is in no manifest any more: drain it first, or keep its KaiwoQueue under this name"
            problems.append(f"{change.kind} {change.name} cannot be deleted, as {use}; {text}")
        else:
            changes.append(ObjectChange(Action.DELETE, item))
    return changes, problems


def _unknown_names(tree: QueueTree, live: LiveQueues, desired: Sequence[Object]) -> list[str]:
    """Pools and parents that neither the manifests nor the cluster have."""
    problems = []
    if live.engine is Engine.KUEUE:
        flavors = {*live.names("ResourceFlavor"), *(item["metadata"]["name"] for item in desired)}
        for name, queue in tree.queues.items():
            for pool in (pool for pool in queue.pools if pool not in flavors):
                there = nearest(pool, live.names("ResourceFlavor")) or "; declare a KaiwoPool"
                problems.append(f"{name}: there is no pool {pool} (ResourceFlavor){there}")
    names = {name for _, _, name in live.objects} | {
        str(item["spec"].get(key)) for item in live.objects.values() for key in ("cohortName", "parentName")
    }
    for name in sorted(tree.implied - names):
        if near := misspelled(name, {*names, *tree.queues} - {name}):
            problems.append(f"there is no queue {name}, which is named as parentQueue{near}")
    return problems


def _filled_departments(tree: QueueTree, live: LiveQueues) -> list[str]:
    """Queues with jobs that would get queues below them: they could not be scheduled any more."""
    if live.engine is Engine.KUEUE:
        held = [
            item for (kind, _, name), item in live.objects.items() if kind == "ClusterQueue" and name in tree.queues
        ]
        filled = [item["metadata"]["name"] for item in held if live.use_of(item)]
    else:
        filled = sorted(live.busy)
    return [
        f"{name} has jobs, and would have queues below it ({', '.join(tree.children(name))}): drain it first"
        for name in filled
        if name in tree.queues and not tree.is_leaf(name)
    ]


async def _refusals(kube: Kube, live: LiveQueues, changes: Sequence[ObjectChange]) -> list[str]:
    """What the API server says to a dry run of each write."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def refusal(change: ObjectChange) -> str:
        async with limit:
            try:
                await apply_object(kube, dict(change.document), dry_run=True)
            except ApiError as error:
                document = live.get(dict(change.document))
                held = holder_of(document) if document else ""
                return _refusal(change, error, held)
            return ""

    tried = [change for change in changes if change.action in (Action.CREATE, Action.CHANGE)]
    return [text for text in await asyncio.gather(*(refusal(change) for change in tried)) if text]


def _refusal(change: ObjectChange, error: ApiError, holder: str = "") -> str:
    about = f"{change.kind} {change.name}"
    if not isinstance(error, Conflict):
        return f"{about}: {error}"
    lent = f"; its quota is raised for {holder} at the moment, try later" if holder else ""
    text = "Fields of others are not taken: change them where they are applied, or leave them to this tree there"
    return f"{about}: {' '.join(error.message.split())}. {text}{lent}."
