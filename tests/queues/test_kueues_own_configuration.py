"""Whether weights count is read from Kueue's own configuration, and where it cannot be, that is what is written."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cli.queues.fair_sharing import requirements
from kopt.cluster.client.errors import ApiError, Unauthorized
from kopt.cluster.workloads.kueue.own_configuration import FairSharing, FairSharingState, fair_sharing, fair_sharing_of
from kopt.core.scheduling.queue_tree import GPU, Engine, KaiwoQueue, Share
from kopt.policies.queues import QueueTree, compile_tree

V1, V2 = "config.kueue.x-k8s.io/v1beta1", "config.kueue.x-k8s.io/v1beta2"


def config_map(text: str, file: str = "controller_manager_config.yaml") -> dict[str, Any]:
    metadata = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {file: text}}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (f"apiVersion: {V2}\nfairSharing: {{preemptionStrategies: [LessThanInitialShare]}}", FairSharing.ON),
        (f"apiVersion: {V2}\n", FairSharing.OFF),
        (f"apiVersion: {V2}\nfairSharing:\n", FairSharing.OFF),
        (f"apiVersion: {V1}\nfairSharing: {{enable: true}}", FairSharing.ON),
        (f"apiVersion: {V1}\nfairSharing: {{enable: false}}", FairSharing.OFF),
        (f"apiVersion: {V1}\nfairSharing: {{preemptionStrategies: [LessThanInitialShare]}}", FairSharing.OFF),
        ("apiVersion: v1\nfairSharing: {enable: true}", FairSharing.UNKNOWN),
        ("{", FairSharing.UNKNOWN),
        ("- a list", FairSharing.UNKNOWN),
        ("", FairSharing.UNKNOWN),
    ],
)
def test_each_version_of_the_configuration_is_read_in_its_own_way(text: str, state: FairSharing) -> None:
    read = fair_sharing_of([config_map(text)])
    assert read.state is state
    assert "kueue-system/kueue-manager-config" in read.reason


def test_where_there_is_none_or_more_than_one_it_is_not_known() -> None:
    good = config_map(f"apiVersion: {V2}\nfairSharing: {{}}")
    assert fair_sharing_of([good]).state is FairSharing.ON
    assert fair_sharing_of([]).state is FairSharing.UNKNOWN
    assert fair_sharing_of([good, good]).state is FairSharing.UNKNOWN
    assert fair_sharing_of([config_map("", "other.yaml")]).state is FairSharing.UNKNOWN


@pytest.mark.parametrize("error", [ApiError(503, "ServiceUnavailable", "busy"), Unauthorized(401, "Unauthorized", "")])
def test_a_failure_to_read_it_stops_nothing_and_is_the_reason(error: ApiError) -> None:
    class Failing:
        async def get(self, *_: object) -> None:
            raise error

    read = asyncio.run(fair_sharing(Failing()))  # type: ignore[arg-type]
    assert read.state is FairSharing.UNKNOWN
    assert str(error) in read.reason


def test_a_tree_with_weights_warns_where_they_do_not_count() -> None:
    tree = QueueTree.of([KaiwoQueue("a", "all", pools={"default": {GPU: Share(4000, weight=2000)}})])
    compiled = compile_tree(tree, Engine.KUEUE)
    (unread,) = requirements(compiled, None)
    assert unread.startswith("Needs Kueue: `fairSharing")
    assert not requirements(compiled, FairSharingState(FairSharing.ON, "there"))
    (off,) = requirements(compiled, FairSharingState(FairSharing.OFF, "ConfigMap a/b"))
    assert off.startswith("Weights do not count: ConfigMap a/b has no fair sharing. Needs Kueue")
    (unknown,) = requirements(compiled, FairSharingState(FairSharing.UNKNOWN, "you may not read it"))
    assert unknown.endswith("not known: you may not read it.")
    plain = compile_tree(QueueTree.of([KaiwoQueue("a", pools={"default": {GPU: Share(4000)}})]), Engine.KUEUE)
    assert not requirements(plain, FairSharingState(FairSharing.OFF, "there"))


def test_a_plan_without_a_cluster_says_what_weights_need(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    gpu = "{quota: 4, overQuotaWeight: 2}"
    path.write_text(
        "apiVersion: kaiwo.ai/v1alpha2\nkind: KaiwoQueue\nmetadata: {name: a}\n"
        f"spec: {{parentQueue: all, resources: {{gpu: {gpu}}}}}\n"
    )
    done = CliRunner().invoke(app, ["queues", "plan", "-f", str(path), "--engine", "kueue"])
    assert done.exit_code == 0, done.output
    assert "Needs Kueue: `fairSharing" in " ".join((done.stdout + done.stderr).split())
