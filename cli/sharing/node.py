"""One node whose way of sharing changes: what of it is read, and each write, through the API server alone."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kopt.core.sharing.change import UNFINISHED, ChangeOutcome, ReplicaState, SharingChange
from kopt.formats.sharing_terms import (
    CONFIGURATION_LABEL,
    ReplicaSetting,
    configuration_text,
    is_own_configuration,
)
from kopt.policies.fractions.applying import NodeState

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object

_LONGEST_MANAGER = 128
"""Of a field manager's name, which the API server refuses beyond."""


def field_manager(node: str) -> str:
    """Of a node's configurations: each node holds its own, so that a configuration stays while any node has it."""
    name = f"kopt-sharing-{node}"
    return name if len(name) <= _LONGEST_MANAGER else f"kopt-sharing-{hashlib.sha256(node.encode()).hexdigest()}"


class SharedNode:
    """``read`` first: writes are refused as conflicts where the node has changed since."""

    def __init__(self, kube: "Kube", name: str) -> None:
        self._kube, self.name = kube, name
        self._node: Object = {"metadata": {"name": name}}
        self._pods: list[Object] = []
        self._config_map: Object | None = None

    async def changes(self) -> list[SharingChange]:
        """The newest first. Raises ApiError, and AnnotationError for what cannot be read."""
        from kopt.cluster.client.resources import NODES
        from kopt.cluster.objects.sharing_changes import sharing_changes_of

        self._node = await self._kube.get(NODES, self.name)
        return sharing_changes_of(self._node)

    @property
    def is_cordoned(self) -> bool:
        """As it was read."""
        from kopt.cluster.objects.fields import at

        return at(self._node, "spec", "unschedulable") is True

    def outcome_of(self, change: SharingChange) -> ChangeOutcome | None:
        """As it was recorded when the node was read; None where it is not, or cannot be read."""
        from kopt.cluster.objects.annotations import AnnotationError
        from kopt.cluster.objects.sharing_changes import sharing_changes_of

        try:
            changes = sharing_changes_of(self._node)
        except AnnotationError:
            return None
        return next((each.outcome for each in changes if each.at_s == change.at_s), None)

    @property
    def uid(self) -> str:
        """As it was read."""
        return str(self._node["metadata"].get("uid", ""))

    async def read(self, change: SharingChange) -> NodeState:
        """Raises ApiError."""
        from kopt.cluster.client.api import NotFound
        from kopt.cluster.client.resources import CONFIG_MAPS, NODES, PODS, UNFINISHED_PODS
        from kopt.cluster.objects.conditions import condition, is_true
        from kopt.cluster.objects.fields import mapping, text
        from kopt.cluster.workloads.sharing.nodes import (
            MPS_DAEMON,
            SHARED_GPU_RESOURCE,
            gpu_amount,
            gpu_pod,
            setting_in_force,
        )
        from kopt.formats.gpu_shares import WHOLE_GPU_RESOURCE
        from kopt.formats.share_terms import STRATEGY_LABEL

        self._node = await self._kube.get(NODES, self.name)
        selector = f"spec.nodeName={self.name},{UNFINISHED_PODS}"
        pods = (await self._kube.list(PODS, field_selector=selector)).items
        try:
            self._config_map = await self._kube.get(CONFIG_MAPS, change.config_map[1], change.config_map[0])
        except NotFound:
            self._config_map = None
        daemons = [is_true(condition(pod, "Ready")) for pod in pods if MPS_DAEMON in text(pod, "metadata", "name")]
        self._pods = [pod for pod in pods if gpu_pod(pod) is not None]
        labels = mapping(self._node, "metadata", "labels")
        setting = setting_in_force(labels)
        held = self._held()
        after = change.after.label or ""
        return NodeState(
            labels.get(CONFIGURATION_LABEL),
            self.is_cordoned,
            gpu_amount(mapping(self._node, "status", "allocatable"), WHOLE_GPU_RESOURCE, SHARED_GPU_RESOURCE),
            (setting.mode, setting.replicas) if STRATEGY_LABEL in labels else None,
            any(daemons) if daemons else None,
            tuple(sorted("/".join((pod["metadata"]["namespace"], pod["metadata"]["name"])) for pod in self._pods)),
            after in held and self._data.get(after) == self._configuration(change),
            after in held,
        )

    @property
    def config_map_exists(self) -> bool:
        """As it was read."""
        return self._config_map is not None

    @property
    def _data(self) -> "Object":
        from kopt.cluster.objects.fields import mapping

        return dict(mapping(self._config_map, "data"))

    def _held(self) -> set[str]:
        """Names of the configurations that are held for this node."""
        from kopt.cluster.objects.fields import items, mapping, text

        return {
            str(key).removeprefix("f:")
            for _, entry in items(self._config_map, "metadata", "managedFields")
            if text(entry, "manager") == field_manager(self.name) and text(entry, "operation") == "Apply"
            for key in mapping(entry, "fieldsV1", "f:data")
        }

    def _configuration(self, change: SharingChange) -> str:
        """With the flags of the configuration that the node had before."""
        from kopt.formats.yaml_text import YamlError, load_yaml

        try:
            base = load_yaml(str(self._data.get(change.before.label or "default", "")))
        except YamlError:
            base = None
        return configuration_text(ReplicaSetting(change.after.mode, change.after.replicas), base)

    def unevictable(self) -> list[str]:
        """Pods with GPUs that a drain would not move, each with why."""
        from kopt.cluster.checkpoints.draining import unevictable

        return unevictable(self._pods)

    async def evict(self) -> list[str]:
        """Every pod with GPUs that does not end yet; what kept one from being evicted. Raises ApiError but where a
        disruption budget forbids it. A pod that writes a checkpoint is left until it has."""
        from kopt.cluster.checkpoints.draining import evict_pods

        return await evict_pods(self._kube, self._pods)

    async def check(self, change: SharingChange) -> None:
        """Whether the API server would take every write. Raises ApiError."""
        await self._apply({change.after.label or "": self._configuration(change), **self._own_before(change)}, True)
        changes = {"metadata": {"labels": {CONFIGURATION_LABEL: change.after.label}}, "spec": {"unschedulable": True}}
        await self._patch(changes, dry_run=True)

    async def record(self, change: SharingChange, further: "Object | None" = None) -> None:
        """Puts a change in place of the entry that began with it, beside ``further`` changes of the node."""
        from kopt.cluster.objects.annotations import AnnotationError
        from kopt.cluster.objects.sharing_changes import SHARING_CHANGES, sharing_changes_of, written_changes

        try:
            entries = [each for each in sharing_changes_of(self._node) if each.at_s != change.at_s]
        except AnnotationError:
            entries = []
        annotations = {SHARING_CHANGES: written_changes([change, *entries])}
        await self._patch({"metadata": {"annotations": annotations}, **(further or {})})

    async def cordon(self) -> None:
        await self._patch({"spec": {"unschedulable": True}})

    async def configure(self, change: SharingChange) -> None:
        """Adds the configuration, beside the one of ours that the node has."""
        await self._apply({change.after.label or "": self._configuration(change), **self._own_before(change)})

    async def release(self, change: SharingChange) -> None:
        """The API server removes the configuration unless another node, or somebody else, has it."""
        await self._apply(self._own_before(change))

    def _own_before(self, change: SharingChange) -> dict[str, str]:
        label = change.before.label
        return {label: self._data[label]} if label and is_own_configuration(label) and label in self._data else {}

    async def label(self, state: ReplicaState) -> None:
        await self._patch({"metadata": {"labels": {CONFIGURATION_LABEL: state.label}}})

    async def finish(self, change: SharingChange, outcome: ChangeOutcome, ended_s: float, reason: str) -> SharingChange:
        """Closes the record and lets pods come again, in one write."""
        ended = replace(change, outcome=outcome, ended_s=ended_s, reason=reason)
        await self.record(ended, {} if change.was_cordoned else {"spec": {"unschedulable": None}})
        return ended

    async def _patch(self, changes: "Object", *, dry_run: bool = False) -> None:
        from kopt.cluster.client.resources import NODES
        from kopt.cluster.runtime.audit import audit_patch

        read = self._node["metadata"]
        guard = {"uid": read["uid"], "resourceVersion": read["resourceVersion"]}
        body = {**changes, "metadata": {**changes.get("metadata", {}), **guard}}
        answer = await self._kube.patch(NODES, self.name, body, dry_run=dry_run)
        if not dry_run:
            audit_patch(NODES, self._node, changes)
            self._node = answer

    async def _apply(self, data: dict[str, str], dry_run: bool = False) -> None:
        """Server-side, without force: a configuration that others wrote otherwise is a Conflict."""
        from kopt.cluster.client.api import NotFound, Patch
        from kopt.cluster.client.resources import CONFIG_MAPS
        from kopt.cluster.runtime.audit import audit_write

        if self._config_map is None:
            raise NotFound(404, "NotFound", "the ConfigMap of the device plugin's configurations is gone")
        metadata = self._config_map["metadata"]
        own = {name: metadata[name] for name in ("namespace", "name", "uid")}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": own, "data": data}
        manager = field_manager(self.name)
        await self._kube.patch(
            CONFIG_MAPS, own["name"], body, own["namespace"], kind=Patch.APPLY, field_manager=manager, dry_run=dry_run
        )
        if not dry_run:
            audit_write("apply", CONFIG_MAPS, metadata, None, {"data": data})


def unfinished(changes: Sequence[SharingChange]) -> SharingChange | None:
    """The one that is under way, or was left."""
    return next((change for change in changes if change.outcome in UNFINISHED), None)
