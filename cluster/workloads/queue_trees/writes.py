"""The writes of objects that a tree becomes: server-side apply as a field manager of our own, and giving them back.

Fields of others are never taken, so giving back needs no record of what was before: every field that we own is left,
and what has no other owner is deleted.
"""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.api import Kube, Patch
from kopt.cluster.client.resources import Object
from kopt.cluster.runtime.audit import audit_write
from kopt.cluster.workloads.queue_trees.live import resource_of
from kopt.core.scheduling.queue_tree import FIELD_MANAGER


async def apply_object(kube: Kube, document: Object, *, dry_run: bool = False) -> None:
    """Raises Conflict where a field of others has another value."""
    metadata = document["metadata"]
    resource, space = resource_of(document), metadata.get("namespace", "")
    await kube.patch(
        resource,
        metadata["name"],
        document,
        space,
        kind=Patch.APPLY,
        field_manager=FIELD_MANAGER,
        dry_run=dry_run,
    )
    if not dry_run:
        audit_write("apply", resource, metadata, after=document)


async def leave(kube: Kube, document: Object) -> None:
    """Gives up every field that we own of an object that others have too; what nobody owns then goes."""
    metadata = {key: document["metadata"][key] for key in ("name", "namespace") if document["metadata"].get(key)}
    await apply_object(kube, {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata})


async def remove(kube: Kube, document: Object) -> None:
    """Deletes this very object; its status may have changed since it was read."""
    metadata = document["metadata"]
    space, uid = metadata.get("namespace", ""), metadata.get("uid", "")
    await kube.delete(resource_of(document), metadata["name"], space, uid=uid)
    audit_write("delete", resource_of(document), metadata)


def is_created_by_us(document: Object) -> bool:
    """Whether nobody else owns anything in its spec."""
    return owners_of_spec(document) <= {FIELD_MANAGER}


def owners_of_spec(live: Mapping[str, Any]) -> set[str]:
    """The field managers of an object's spec."""
    entries = live["metadata"].get("managedFields") or ()
    return {str(entry.get("manager")) for entry in entries if "f:spec" in (entry.get("fieldsV1") or {})}
