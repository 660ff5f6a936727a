"""What the executor writes: the status of its own node's ``NodePlan``, when it differs from what the cluster has."""

import contextlib
from datetime import UTC, datetime
from typing import Any

from kopt.agents.node_executor.executor import Outcome, OwnNode
from kopt.cluster.client.api import AlreadyExists, Kube, Patch
from kopt.cluster.client.resources import NODE_PLANS, NODES, Object
from kopt.core.node_plan.state import NodeState, document_of

FIELD_MANAGER = "kopt-node-executor"


def status_of(state: NodeState | None, outcome: Outcome | None, node: OwnNode, sequence: int, problem: str) -> Object:
    """Of one pass; ``problem`` says why the GPUs cannot be read, or the journal cannot be used."""
    status: Object = {"nodeUid": node.uid, "sequence": sequence}
    if state is not None:
        status |= {"state": document_of(state), "stateHash": state.digest}
    if outcome is not None:
        status |= {
            "phase": outcome.phase.value,
            "reason": outcome.reason.code,
            "message": outcome.reason.message,
            "envelope": outcome.digest,
        }
    return status | ({"problem": problem[:500]} if problem else {})


def differs(status: Object, live: Object | None) -> bool:
    """Whether it says something else than the object, but for the time."""
    before: dict[str, Any] = dict((live or {}).get("status") or {})
    before.pop("changedAt", None)
    return before != status


async def publish(kube: Kube, node: OwnNode, status: Object, live: Object | None) -> Object:
    """The object as it is stored then; made without a plan where there is none. Raises ApiError."""
    if live is None:
        owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node.name, "uid": node.uid}
        with contextlib.suppress(AlreadyExists):
            await kube.create(NODE_PLANS, {"metadata": {"name": node.name, "ownerReferences": [owner]}, "spec": {}})
    written = {
        "apiVersion": NODE_PLANS.api_version,
        "kind": NODE_PLANS.kind,
        "metadata": {"name": node.name},
        "status": status | {"changedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    return await kube.patch(
        NODE_PLANS,
        node.name,
        written,
        kind=Patch.APPLY,
        subresource="status",
        field_manager=FIELD_MANAGER,
        force=True,
    )
