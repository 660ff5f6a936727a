"""What applying definitions would change, and why it may not be done: read from the cluster with one's own rights."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.cluster.client.api import ApiError, Forbidden, Kube, NotFound, Patch
from kopt.cluster.client.resources import CUSTOM_RESOURCE_DEFINITIONS, PART_OF, PART_OF_LABEL, Object, Resource
from kopt.cluster.objects.definitions import FIELD_MANAGER
from kopt.core.units import counted
from kopt.policies.definitions import Loss, changes, has, losses, lost_versions
from kopt.policies.queues.differences import FieldChange

INSTALLERS = frozenset({FIELD_MANAGER, "helm", "kubectl", "kubectl-client-side-apply", "kubectl-create"})
"""Field managers that put our definitions there by hand: theirs are taken over. Others would write them again."""
_MOST_NAMED = 3
_FOREIGN = f"it is not ours: the label {PART_OF_LABEL}={PART_OF} is missing (--force-conflicts takes it over)"


class State(StrEnum):
    """How a definition in the cluster compares with this version's."""

    CURRENT = "current"
    CHANGED = "changed"
    MISSING = "missing"
    MANAGED_ELSEWHERE = "left"
    """It differs, and somebody else manages it."""


@dataclass(frozen=True)
class DefinitionPlan:
    """One definition. ``problems`` are why it is not written."""

    document: Object
    state: State
    fields: tuple[FieldChange, ...] = ()
    problems: tuple[str, ...] = ()
    resource_version: str = ""
    """Of the one that was read; empty where there is none."""
    manager: str = ""
    """To whom it is left."""

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


async def plan(kube: Kube, definitions: Sequence[Object], *, force_conflicts: bool = False) -> list[DefinitionPlan]:
    """Of each definition, by a dry run on the API server. ``force_conflicts``: also what other field managers own."""
    return [await _plan_definition(kube, document, force_conflicts=force_conflicts) for document in definitions]


async def write(kube: Kube, plans: Sequence[DefinitionPlan]) -> AsyncGenerator[tuple[str, str]]:
    """Names of what is written, each with its error or an empty text; the first error ends it."""
    for each in plans:
        if each.state in (State.CURRENT, State.MANAGED_ELSEWHERE):
            continue
        try:
            await _apply(kube, _unchanged_since(each))
        except ApiError as error:
            yield each.name, str(error)
            return
        yield each.name, ""


async def _plan_definition(kube: Kube, document: Object, *, force_conflicts: bool) -> DefinitionPlan:
    name = document["metadata"]["name"]
    try:
        live = await kube.get(CUSTOM_RESOURCE_DEFINITIONS, name)
    except NotFound:
        return await _plan_new(kube, document)
    version = live["metadata"]["resourceVersion"]
    problems = [] if force_conflicts or _labels(live).get(PART_OF_LABEL) == PART_OF else [_FOREIGN]
    problems += [f"objects may be stored as {lost}, which it drops" for lost in lost_versions(live, document)]
    try:
        after = await _apply(kube, document, dry_run=True)
    except Forbidden:
        raise
    except ApiError as refused:
        return DefinitionPlan(document, State.CHANGED, (), (*problems, str(refused)))
    fields = (*changes(live["spec"], after["spec"]), *changes(_labels(live), _labels(after), ("labels",)))
    if not fields:
        return DefinitionPlan(document, State.CURRENT)
    if not problems and not force_conflicts and (manager := _other_managers(live)):
        return DefinitionPlan(document, State.MANAGED_ELSEWHERE, tuple(fields), manager=manager)
    problems += await _losses_in_use(kube, live, after)
    return DefinitionPlan(document, State.CHANGED, tuple(fields), tuple(problems), version)


async def _plan_new(kube: Kube, document: Object) -> DefinitionPlan:
    fields = (FieldChange("spec", None, document["spec"]),)
    try:
        await _apply(kube, document, dry_run=True)
    except Forbidden:
        raise
    except ApiError as refused:
        return DefinitionPlan(document, State.MISSING, fields, (str(refused),))
    return DefinitionPlan(document, State.MISSING, fields)


def _unchanged_since(plan: DefinitionPlan) -> Object:
    """With the version that was looked at, so that a change in between is a conflict."""
    if not plan.resource_version:
        return plan.document
    return {**plan.document, "metadata": {**plan.document["metadata"], "resourceVersion": plan.resource_version}}


async def _apply(kube: Kube, document: Object, *, dry_run: bool = False) -> Object:
    name = document["metadata"]["name"]
    # Versions are one field: without force helm's part of it would be a conflict, which is looked for before.
    return await kube.patch(
        CUSTOM_RESOURCE_DEFINITIONS,
        name,
        document,
        kind=Patch.APPLY,
        field_manager=FIELD_MANAGER,
        force=True,
        dry_run=dry_run,
    )


def _labels(document: Mapping[str, Any]) -> dict[str, Any]:
    return dict(document["metadata"].get("labels") or {})


def _other_managers(live: Object) -> str:
    """Who else manages the versions of a definition; empty where it was installed by hand."""
    managers = {
        str(entry.get("manager"))
        for entry in live["metadata"].get("managedFields") or ()
        if "f:versions" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}) and not entry.get("subresource")
    }
    return ", ".join(sorted(managers - INSTALLERS))


async def _losses_in_use(kube: Kube, live: Object, new: Object) -> list[str]:
    """Fields that objects have and the new definition has not; a field of which nobody can tell counts as one."""
    lost = losses(live, new)
    if not lost:
        return []
    spec = live["spec"]
    version = next(each["name"] for each in spec["versions"] if each["served"])
    plural, kind = spec["names"]["plural"], spec["names"]["kind"]
    resource = Resource(spec["group"], version, plural, kind, namespaced=spec["scope"] == "Namespaced")
    users: dict[Loss, list[str]] = {loss: [] for loss in lost}
    try:
        async for page in kube.pages(resource):
            for item in page.items:
                for loss in lost:
                    if has(item, loss):
                        users[loss].append(_name(item))
    except Forbidden:
        named = ", ".join(map(str, lost))
        unknown = f"it drops {named}, and you may not list {resource.full_name} to see whether that is in use"
        return [f"{unknown}: run kopt crds apply with an administrator's rights"]
    return [_in_use(loss, names) for loss, names in users.items() if names]


def _in_use(loss: Loss, names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    users = f"{', '.join(names[:_MOST_NAMED])}{more}"
    return f"it drops {loss}, which {counted(len(names), 'object')} use: {users}. Clear it there first"


def _name(item: Object) -> str:
    metadata = item["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
