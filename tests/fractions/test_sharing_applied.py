"""``kopt fractions sharing apply`` on a real API server; a task of the test stands for the plugin of the node.

With NVIDIA's own plugin and config-manager it runs in ``test_sharing_with_plugin.py``.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from controlplane.plane import ControlPlane

from kopt.cli.errors import Refused
from kopt.cli.output import Answer
from kopt.cli.sharing.apply import ApplySettings
from kopt.cli.sharing.changing import applied, undone
from kopt.cluster.client.api import Kube, connect
from kopt.cluster.client.resources import CONFIG_MAPS, EVENTS, NODES, PODS, Object
from kopt.cluster.objects.sharing_changes import SHARING_CHANGES, sharing_changes_of
from kopt.core.sharing.change import ChangeOutcome, SharingChange
from kopt.core.sharing.modes import SharingMode
from kopt.formats.sharing_terms import CONFIGURATION_LABEL, ReplicaSetting, read_plugin_configuration
from tests.mortal import Met, Mortal

from .conftest import node

GPU = "nvidia.com/gpu"
TURNS = ReplicaSetting(SharingMode.TIME_SLICING, 4)
SETTINGS = ApplySettings(drain_s=3, settle_s=0, in_force_s=3, poll_s=0.02, outage_s=3)
DEFAULT = "version: v1\nflags: {plugin: {passDeviceSpecs: true}}\n"


class Plugin:
    """A node with four GPUs, and what its device plugin does: to offer what the configuration of its label says."""

    def __init__(self, kube: Kube, name: str, space: str, *, discovers: bool = False) -> None:
        self.kube, self.name, self.key = kube, name, (space, "configurations")
        self.knows = lambda _: True
        self._discovers = discovers

    async def run(self) -> None:
        while True:
            document = await self.kube.get(NODES, self.name)
            label = document["metadata"]["labels"].get(CONFIGURATION_LABEL, "default")
            data = (await self.kube.get(CONFIG_MAPS, self.key[1], self.key[0]))["data"]
            setting = read_plugin_configuration(yaml.safe_load(data[label])) if label in data else None
            offered = str(4 * setting.replicas if setting and self.knows(label) else 0)
            if document["status"]["allocatable"].get(GPU) != offered:
                amounts = {"status": {"allocatable": {GPU: offered}, "capacity": {GPU: offered}}}
                await self.kube.patch(NODES, self.name, amounts, subresource="status")
                if self._discovers and setting is not None:
                    strategy = "none" if setting.replicas == 1 else str(setting.mode)
                    labels = {f"{GPU}.sharing-strategy": strategy, f"{GPU}.replicas": str(setting.replicas)}
                    labels[f"{GPU}.count"] = "4"
                    await self.kube.patch(NODES, self.name, {"metadata": {"labels": labels}})
            await asyncio.sleep(0.02)

    async def state(self) -> tuple[str | None, bool, set[str], str]:
        """Label, whether it is cordoned, configurations, and what it offers."""
        document = await self.kube.get(NODES, self.name)
        data = (await self.kube.get(CONFIG_MAPS, self.key[1], self.key[0]))["data"]
        label = document["metadata"]["labels"].get(CONFIGURATION_LABEL)
        return label, "unschedulable" in document["spec"], set(data), document["status"]["allocatable"][GPU]

    async def apply(self, kube: Kube | None = None, setting: ReplicaSetting = TURNS, **changed: Any) -> SharingChange:
        result = await applied(
            kube or self.kube, self.name, self.key, setting, replace(SETTINGS, **changed), dry_run=False
        )
        assert isinstance(result, SharingChange)
        return result

    async def undo(self, **changed: Any) -> SharingChange:
        return await undone(self.kube, self.name, self.key, replace(SETTINGS, **changed))

    async def pod(self, name: str, *, owned: bool = False) -> None:
        container = {"name": "main", "image": "x", "resources": {"limits": {GPU: "1"}}}
        spec = {"nodeName": self.name, "terminationGracePeriodSeconds": 0, "containers": [container]}
        # It has to be there, or the garbage collector ends the pod, and of no kind whose pods Kueue looks at.
        uid = (await self.kube.get(CONFIG_MAPS, self.key[1], self.key[0]))["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self.key[1], "uid": uid, "controller": True}
        metadata: Object = {"name": name, "namespace": self.key[0], "ownerReferences": [owner] if owned else []}
        await self.kube.create(PODS, {"metadata": metadata, "spec": spec})


AS_BEFORE = (None, False, {"default"}, "4")
APPLIED = ("kopt-time-slicing-4", False, {"default", "kopt-time-slicing-4"}, "16")


@contextlib.asynccontextmanager
async def started(
    control_plane: ControlPlane, kube: Kube, space: str, *, discovers: bool = False
) -> AsyncIterator[Plugin]:
    with node(control_plane.api, **{GPU: "4"}) as name:
        result = Plugin(kube, name, space, discovers=discovers)
        running = asyncio.create_task(result.run())
        yield result
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.fixture
async def plugin(control_plane: ControlPlane) -> AsyncIterator[Plugin]:
    space = control_plane.api.space("sharing-applied")
    async with connect(control_plane.kubeconfig) as kube:
        metadata = {"name": "configurations", "namespace": space}
        await kube.create(CONFIG_MAPS, {"metadata": metadata, "data": {"default": DEFAULT}})
        async with started(control_plane, kube, space) as result:
            yield result


async def test_it_is_applied_recorded_and_taken_back(plugin: Plugin) -> None:
    steps = await applied(plugin.kube, plugin.name, plugin.key, TURNS, SETTINGS, dry_run=True)
    assert isinstance(steps, Answer)
    assert [row.step for row in steps.rows] == ["cordon", "configure", "label", "wait", "finish"]
    assert await plugin.state() == AS_BEFORE

    assert (await plugin.apply()).outcome is ChangeOutcome.APPLIED
    assert await plugin.state() == APPLIED
    config_map = await plugin.kube.get(CONFIG_MAPS, plugin.key[1], plugin.key[0])
    assert yaml.safe_load(config_map["data"]["kopt-time-slicing-4"])["flags"] == {"plugin": {"passDeviceSpecs": True}}
    assert (await plugin.undo()).outcome is ChangeOutcome.UNDONE
    assert await plugin.state() == AS_BEFORE
    (recorded,) = sharing_changes_of(await plugin.kube.get(NODES, plugin.name))
    assert (recorded.outcome, recorded.reason) == (ChangeOutcome.UNDONE, "Taken back by hand.")
    with pytest.raises(Refused, match="no change of"):
        await plugin.undo()
    events = (await plugin.kube.list(EVENTS, "default")).items
    assert {"SharingApplied", "SharingUndone"} <= {
        event["reason"] for event in events if event["regarding"]["name"] == plugin.name
    }


def kind_of(method: str, path: str, body: Any) -> str:
    """Of a write, by what it changes."""
    if method != "PATCH":
        return ""
    if "configmaps" in path:
        return "configuration"
    written = body.get("metadata", {}).get("annotations", {}).get(SHARING_CHANGES)
    outcome = json.loads(written)[0]["outcome"] if written else ""
    return " ".join([outcome, *sorted(body.get("metadata", {}).get("labels", {})), *sorted(body.get("spec", {}))])


class Killed(Mortal):
    """Dies at writes alone, and not where it only asks whether it could write."""

    async def request(self, method: str, path: str, **options: Any) -> Object:
        if "dryRun" in (options.get("query") or {}):
            return await Kube.request(self, method, path, **options)
        return await super().request(method, path, **options)


@pytest.mark.long
@pytest.mark.parametrize("recovers", ["apply", "undo"])
async def test_killed_before_and_after_each_write_it_goes_on_or_is_taken_back(
    plugin: Plugin, control_plane: ControlPlane, recovers: str
) -> None:
    met: Met = set()
    while True:
        killed = Killed(control_plane.kubeconfig, met, kind_of)
        with contextlib.suppress(asyncio.CancelledError):
            await plugin.apply(killed)
        await killed.close()
        if not killed.dead:
            break
        if recovers == "apply":
            with contextlib.suppress(Refused):  # it was killed after its last write
                await plugin.apply()
            assert await plugin.state() == APPLIED, met
        with contextlib.suppress(Refused):  # it was killed before its first one
            await plugin.undo()
        assert await plugin.state() == AS_BEFORE, met
        # Changes are told apart by the second in which they began.
        await plugin.kube.patch(NODES, plugin.name, {"metadata": {"annotations": {SHARING_CHANGES: None}}})
    assert len(met) == 2 * len({"open", "cordon", "configuration", "label", "applied"})


async def test_interrupted_or_never_in_force_it_is_taken_back(plugin: Plugin) -> None:
    plugin.knows = lambda label: label == "default"
    change = await plugin.apply(in_force_s=0.3)
    assert (change.outcome, change.reason.partition(":")[2]) == (ChangeOutcome.UNDONE, " 0 of 16 are allocatable.")
    assert await plugin.state() == AS_BEFORE

    running = asyncio.create_task(plugin.apply())
    while (await plugin.state())[0] is None:
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await plugin.state() == AS_BEFORE


async def test_of_two_commands_the_one_that_takes_back_wins(plugin: Plugin) -> None:
    plugin.knows = lambda label: label == "default"
    running = asyncio.create_task(plugin.apply(in_force_s=60))
    while (await plugin.state())[0] is None:
        await asyncio.sleep(0.02)
    await plugin.undo()
    with pytest.raises(Refused, match="another command"):
        await running
    assert await plugin.state() == AS_BEFORE


async def test_pods_with_gpus_refuse_it_or_are_evicted(plugin: Plugin) -> None:
    await plugin.pod("alone")
    with pytest.raises(Refused, match=r"which they would lose: .*/alone"):
        await plugin.apply()
    with pytest.raises(Refused, match="nothing would create it anew"):
        await plugin.apply(drain=True)
    assert await plugin.state() == AS_BEFORE
    await plugin.kube.delete(PODS, "alone", plugin.key[0])
    await plugin.pod("owned", owned=True)
    assert (await plugin.apply(drain=True)).outcome is ChangeOutcome.APPLIED
    assert await plugin.state() == APPLIED


async def test_a_configuration_goes_with_the_last_node_that_has_it(plugin: Plugin, control_plane: ControlPlane) -> None:
    async with started(control_plane, plugin.kube, plugin.key[0], discovers=True) as other:
        await asyncio.gather(plugin.apply(), other.apply())
        await plugin.undo()
        assert await plugin.state() == (None, False, {"default", "kopt-time-slicing-4"}, "4")
        assert await other.state() == APPLIED
        # From one of ours to another the one of before stays, as it is to be put back.
        await other.apply(setting=ReplicaSetting(SharingMode.TIME_SLICING, 2))
        assert (await other.state())[2:] == ({"default", "kopt-time-slicing-2", "kopt-time-slicing-4"}, "8")
        await other.undo()
        assert await other.state() == APPLIED
        # Without feature discovery nobody knows how many GPUs 16 replicas are.
        await plugin.apply()
        with pytest.raises(Refused, match="is not known"):
            await plugin.apply(setting=ReplicaSetting(SharingMode.TIME_SLICING, 2))


async def test_what_others_wrote_stays_theirs(plugin: Plugin) -> None:
    theirs = {"data": {"kopt-time-slicing-4": "version: v1\n"}}
    await plugin.kube.patch(CONFIG_MAPS, plugin.key[1], theirs, plugin.key[0])
    with pytest.raises(Refused, match="nothing was changed: 409"):
        await plugin.apply()
    assert sharing_changes_of(await plugin.kube.get(NODES, plugin.name)) == []
    assert (await plugin.apply(setting=ReplicaSetting(SharingMode.TIME_SLICING, 2))).outcome is ChangeOutcome.APPLIED
    label = {"metadata": {"labels": {CONFIGURATION_LABEL: "default"}}}
    await plugin.kube.patch(NODES, plugin.name, label)
    with pytest.raises(Refused, match="others have set the label"):
        await plugin.undo()
    with pytest.raises(Refused, match=r"ConfigMap .* name it by --config-map"):
        await undone(plugin.kube, plugin.name, ("kube-system", "coredns"), SETTINGS)
