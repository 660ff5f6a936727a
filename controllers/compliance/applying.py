"""Server-side apply of compiled policies: what it would change first, then the writes, as a field manager of our own.

A dry run of every write comes before the first: the API server compiles the CEL in it, and says what is wrong with it.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence

from kopt.cluster.client.api import ApiError, Kube, NotFound, Patch
from kopt.cluster.client.resources import (
    COMPLIANCE_POLICIES,
    COMPONENT_LABEL,
    MUTATING_POLICIES,
    OURS,
    POLICIES_COMPONENT,
    VALIDATING_POLICIES,
    Object,
    Resource,
)
from kopt.cluster.objects.fields import items, text
from kopt.cluster.runtime.audit import audit_write
from kopt.cluster.workloads.compliance import COMPILED_KINDS, LABELS, resource_of
from kopt.core.workload.compliance import FIELD_MANAGER, CompliancePolicy, Surroundings
from kopt.policies.compliance.compile import compile_policy, names_of, policy_name
from kopt.policies.queues.differences import Action, ApplyPlan, ObjectChange, change_of

_OF_POLICIES = f"{OURS},{COMPONENT_LABEL}={POLICIES_COMPONENT}"


async def plan_apply(
    kube: Kube, policies: Sequence[CompliancePolicy], around: Surroundings, *, verifies: bool = True
) -> ApplyPlan:
    """What applying these policies would do now. Objects of parts that they do not have any more are deleted. With
    ``verifies`` the API server is asked what it says to each write. Raises ApiError where the cluster cannot be read,
    and ValueError for what cannot be compiled."""
    desired = [document for policy in policies for document in compile_policy(policy, around)]
    changes, problems = list[ObjectChange](), list[str]()
    for document in desired:
        live = await _live(kube, document)
        if live is not None and not _is_ours(live):
            problems.append(f"{_named(document)} is there and not of `kopt policies`: rename the policy")
            continue
        changes.append(change_of(document, live, FIELD_MANAGER))
        if verifies and (refusal := await _refusal(kube, document)):
            problems.append(refusal)
    parts = {name for policy in policies for name in names_of(policy.name)}
    wanted = {(document["kind"], document["metadata"]["name"]) for document in desired}
    deletions = [
        ObjectChange(Action.DELETE, item, why="the policy has no such part any more")
        for item in await compiled_objects(kube)
        if item["metadata"]["name"] in parts and (item["kind"], item["metadata"]["name"]) not in wanted
    ]
    return ApplyPlan((*changes, *deletions), tuple(problems))


async def store(kube: Kube, document: Object, *, dry_run: bool = False) -> Object:
    """Applies a CompliancePolicy. Raises ApiError, NotFound where the kind is not installed."""
    name = document["metadata"]["name"]
    result = await kube.patch(
        COMPLIANCE_POLICIES, name, document, kind=Patch.APPLY, field_manager=FIELD_MANAGER, dry_run=dry_run
    )
    if not dry_run:
        audit_write("apply", COMPLIANCE_POLICIES, document["metadata"], after=document)
    return result


def owned(document: Object, policy: Object) -> Object:
    """A compiled object that goes with its policy: the garbage collector deletes it when that is deleted."""
    metadata = policy["metadata"]
    owner = COMPLIANCE_POLICIES.reference("", metadata["name"], metadata["uid"])
    return {**document, "metadata": {**document["metadata"], "ownerReferences": [owner]}}


async def apply_plan(
    kube: Kube, plan: ApplyPlan, owners: Mapping[str, Object]
) -> AsyncGenerator[tuple[ObjectChange, str]]:
    """Each write with its error, if any; the first error ends it. ``owners`` are the CompliancePolicies by name."""
    for change in plan.writes:
        document = dict(change.document)
        try:
            if change.action is Action.DELETE:
                await remove(kube, document)
            else:
                await _apply(kube, owned(document, owners[policy_name(document)]))
        except ApiError as error:
            yield change, f"{_named(document)}: {error}"
            return
        yield change, ""


async def compiled_objects(kube: Kube) -> list[Object]:
    """Every object that policies were compiled to, bindings first: these are what acts."""
    result: list[Object] = []
    for kind in reversed(COMPILED_KINDS):
        result += await _listed(kube, kind)
    return result


async def remove(kube: Kube, document: Object) -> None:
    """Deletes this very object. One that is gone already is no error."""
    metadata, kind = document["metadata"], resource_of(document)
    try:
        await kube.delete(kind, metadata["name"], uid=metadata.get("uid", ""))
    except NotFound:
        return
    audit_write("delete", kind, metadata)


async def _apply(kube: Kube, document: Object, *, dry_run: bool = False) -> None:
    kind, metadata = resource_of(document), document["metadata"]
    await kube.patch(kind, metadata["name"], document, kind=Patch.APPLY, field_manager=FIELD_MANAGER, dry_run=dry_run)
    if not dry_run:
        audit_write("apply", kind, metadata, after=document)


async def _live(kube: Kube, document: Object) -> Object | None:
    try:
        return await kube.get(resource_of(document), document["metadata"]["name"])
    except NotFound:
        return None


async def _refusal(kube: Kube, document: Object) -> str:
    """What the API server says to a dry run of this write; empty where it would take it."""
    try:
        await _apply(kube, document, dry_run=True)
    except NotFound:
        if resource_of(document).plural.startswith("mutating"):
            return f"{_named(document)}: defaults need {MUTATING_POLICIES.api_version}, Kubernetes 1.36 or later"
        return f"{_named(document)}: this API server has no {document['kind']} (Kubernetes 1.30 or later)"
    except ApiError as error:
        return f"{_named(document)}: {error.message}"
    return ""


async def _listed(kube: Kube, kind: Resource) -> list[Object]:
    try:
        listed = (await kube.list(kind, label_selector=_OF_POLICIES)).items
    except NotFound:
        return []
    # Items of a list come without these.
    return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in listed]


def _is_ours(live: Object) -> bool:
    return LABELS.items() <= (live["metadata"].get("labels") or {}).items()


def _named(document: Object) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


async def type_warnings(kube: Kube, policy: str) -> list[str]:
    """What Kubernetes' type checker says to the expressions of a policy that is applied. Raises ApiError."""
    result = []
    for item in await _listed(kube, VALIDATING_POLICIES):
        if policy_name(item) == policy:
            listed = items(item, "status", "typeChecking", "expressionWarnings")
            result += [f"{text(warning, 'fieldRef')}: {text(warning, 'warning')}" for _, warning in listed]
    return result
