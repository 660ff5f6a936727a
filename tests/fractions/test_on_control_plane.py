"""A share asked for in our words, from the API server through the webhook to the real kube-scheduler's books."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from admission.conftest import Webhooks
from controlplane.api import Api, Refused
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.objects.device_slices import API_VERSION, DevicePool, shared_gpus
from kopt.core.units import parse_bytes

from .conftest import Object, node, pod, template

DRIVER = "gpu.nvidia.com"
QUARTER = {"kaiwo.ai/gpu-fraction": "0.25", "kaiwo.ai/gpu-memory": "20480"}
EXECUTOR = "kaiwo.ai/gpu-executor"


@pytest.fixture(scope="module")
def enforcing(webhooks: Webhooks) -> Webhooks:
    webhooks.policy(mode="enforce", framework="Volcano", queues={"default": "team"})
    return webhooks


@pytest.fixture
def shared(enforcing: Webhooks) -> Iterator[str]:
    """A node with one GPU of 80 GiB that a driver lets claims divide."""
    with dividing(enforcing, 1) as name:
        yield name


@pytest.fixture
def shared_pair(enforcing: Webhooks) -> Iterator[str]:
    """The same with two."""
    with dividing(enforcing, 2) as name:
        yield name


@contextlib.contextmanager
def dividing(enforcing: Webhooks, gpus: int) -> Iterator[str]:
    api = enforcing.api
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    device_class = {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": {"name": DRIVER}}
    api.apply(device_class | {"spec": {"selectors": [selector]}})
    with node(api) as name:
        slices = DevicePool(DRIVER, name, shared_gpus(gpus, "H100", 80)).slices()
        for document in slices:
            api.replace(document)
        yield name
        for document in slices:
            api.delete(API_VERSION, "ResourceSlice", document["metadata"]["name"])


def known(webhooks: Webhooks, space: str, on: str, asked: dict[str, str]) -> None:
    """Until the webhook has seen the node and what is on it."""

    def tried() -> bool:
        try:
            found = webhooks.api.create(pod(space, "probe", on, asked), dryRun="All")
        except Refused:
            return False
        return EXECUTOR in found["metadata"]["annotations"]

    wait_for(tried)


def command(webhooks: Webhooks, *arguments: str) -> Object:
    """`kopt fractions …` in this process."""
    kubeconfig = ["--kubeconfig", str(webhooks.plane.kubeconfig)]
    done = CliRunner().invoke(app, ["fractions", *arguments, *kubeconfig, "-o", "json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def requested(claim_template: Object) -> tuple[int, str]:
    """Bytes and milli-GPU; the API server writes amounts in its own way."""
    amounts = claim_template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    return parse_bytes(amounts["memory"]), amounts["milliGPU"]


def reason_of(found: Object) -> str:
    conditions = found.get("status", {}).get("conditions") or []
    return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")


def test_four_quarters_are_bound_and_the_fifth_waits(enforcing: Webhooks, shared: str) -> None:
    api, space = enforcing.api, enforcing.namespace()
    known(enforcing, space, shared, QUARTER)
    assert not api.list(API_VERSION, "ResourceClaimTemplate", space), "a dry run creates nothing"
    made = [api.create(pod(space, f"quarter-{at}", shared, QUARTER)) for at in range(4)]
    assert {one["metadata"]["annotations"][EXECUTOR] for one in made} == {"dra"}
    for one in made:
        api.wait("v1", "Pod", one["metadata"]["name"], lambda found: found["spec"].get("nodeName"), space)
    api.create(pod(space, "fifth", shared, QUARTER))
    waiting = api.wait("v1", "Pod", "fifth", reason_of, space)
    assert "nodeName" not in waiting["spec"]
    assert "cannot allocate all claims" in reason_of(waiting)
    consumed = [
        result["consumedCapacity"]
        for claim in api.list(API_VERSION, "ResourceClaim", space)
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    ]
    assert [(each["milliGPU"], each["memory"]) for each in consumed] == [("250", "20Gi")] * 4
    api.delete("v1", "Pod", "quarter-0", space, gracePeriodSeconds=0)
    api.wait("v1", "Pod", "fifth", lambda found: found["spec"].get("nodeName"), space)


def test_halves_of_two_gpus_are_of_different_ones(enforcing: Webhooks, shared_pair: str) -> None:
    """kube-scheduler would give both halves of the first GPU to a claim that does not say so."""
    api, space = enforcing.api, enforcing.namespace()
    halves = {"kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-memory": "20480", "kaiwo.ai/gpu-count": "2"}
    known(enforcing, space, shared_pair, halves)
    api.create(pod(space, "beside", shared_pair, QUARTER))
    api.wait("v1", "Pod", "beside", lambda found: found["spec"].get("nodeName"), space)
    for name in ("first", "second"):
        api.create(pod(space, name, shared_pair, halves, limits={"nvidia.com/gpu": "2"}))
    api.wait("v1", "Pod", "first", lambda found: found["spec"].get("nodeName"), space)
    waiting = api.wait("v1", "Pod", "second", reason_of, space)
    assert "nodeName" not in waiting["spec"], "the first GPU has a quarter and a half"
    given = {
        name: [(each["device"], each["consumedCapacity"]["milliGPU"]) for each in results]
        for name, results in allocated(api, space).items()
    }
    assert given == {"beside": [("gpu-0", "250")], "first": [("gpu-0", "500"), ("gpu-1", "500")]}
    rows = command(enforcing, "list", "--node", shared_pair)["gpus"]
    assert [row["guaranteed_milli_gpu"] for row in rows] == [750, 500]
    api.delete("v1", "Pod", "beside", space, gracePeriodSeconds=0)
    api.wait("v1", "Pod", "second", lambda found: found["spec"].get("nodeName"), space)
    for name in ("first", "second"):
        api.delete("v1", "Pod", name, space, gracePeriodSeconds=0)


def allocated(api: Api, space: str) -> dict[str, list[Object]]:
    """Devices by the pod that has them."""
    claims = [claim for claim in api.list(API_VERSION, "ResourceClaim", space) if claim["status"].get("allocation")]
    return {
        claim["metadata"]["ownerReferences"][0]["name"]: claim["status"]["allocation"]["devices"]["results"]
        for claim in claims
    }


@pytest.mark.long
def test_a_template_belongs_to_its_workload_and_goes_with_it(enforcing: Webhooks, shared: str) -> None:
    api, space = enforcing.api, enforcing.namespace()
    known(enforcing, space, shared, QUARTER)
    made = api.create(pod(space, "one", shared, QUARTER))

    def owned() -> Any:
        templates = (item["metadata"] for item in api.list(API_VERSION, "ResourceClaimTemplate", space))
        return [metadata["ownerReferences"] for metadata in templates if "ownerReferences" in metadata]

    ((owner,),) = wait_for(owned)
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "one", made["metadata"]["uid"])
    events = wait_for(
        lambda: [
            event
            for event in api.list("events.k8s.io/v1", "Event", space)
            if event["reason"] == "GpuShareWritten" and event["regarding"]["uid"] == made["metadata"]["uid"]
        ]
    )
    assert "given by dra" in events[0]["note"]
    api.delete("v1", "Pod", "one", space, gracePeriodSeconds=0)
    wait_for(lambda: not api.list(API_VERSION, "ResourceClaimTemplate", space))


@pytest.mark.long
def test_pods_of_a_deployment_get_their_shares_after_we_are_gone(enforcing: Webhooks, shared: str) -> None:
    api, space = enforcing.api, enforcing.namespace()
    known(enforcing, space, shared, QUARTER)
    labels = {"app": "serve"}
    pods = template(shared, QUARTER)
    pods["metadata"]["labels"] = labels
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pods}
    metadata = {"name": "serve", "namespace": space}
    api.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    def bound(number: int) -> bool:
        found = api.list("v1", "Pod", space, fields="spec.nodeName!=")
        return len(found) == number and all(one["spec"]["resourceClaims"] for one in found)

    wait_for(lambda: bound(1))
    wait_for(lambda: api.list(API_VERSION, "ResourceClaimTemplate", space)[0]["metadata"].get("ownerReferences"))
    enforcing.clear()
    try:
        api.patch("apps/v1", "Deployment", "serve", {"spec": {"replicas": 4}}, space)
        wait_for(lambda: bound(4))
    finally:
        enforcing.start()
        enforcing.policy(mode="enforce", framework="Volcano", queues={"default": "team"})
    api.delete("apps/v1", "Deployment", "serve", space)
    wait_for(lambda: not api.list(API_VERSION, "ResourceClaimTemplate", space))


def test_the_commands_say_who_has_what_and_what_would_be_written(
    enforcing: Webhooks, shared: str, tmp_path: Path
) -> None:
    api, space = enforcing.api, enforcing.namespace()
    known(enforcing, space, shared, QUARTER)
    for name in ("one", "two"):
        api.create(pod(space, name, shared, QUARTER))
        api.wait("v1", "Pod", name, lambda found: found["spec"].get("nodeName"), space)
    (row,) = command(enforcing, "list", "--node", shared)["gpus"]
    assert (row["executor"], row["guaranteed_milli_gpu"], row["free_milli_gpu"], row["shares"]) == ("dra", 500, 500, 2)
    assert row["enforced"] == ["fraction", "memory"]
    manifest = tmp_path / "serve.yaml"
    manifest.write_text(yaml.safe_dump(pod(space, "third", shared, QUARTER)))
    (planned,) = command(enforcing, "plan", str(manifest))["shares"]
    made = api.create(pod(space, "third", shared, QUARTER))
    assert (planned["executor"], planned["nodes"]) == ("dra", 1)
    templates = api.list(API_VERSION, "ResourceClaimTemplate", space)
    (template_,) = planned["templates"]
    assert requested(template_) == (parse_bytes("20480Mi"), "250")
    assert [requested(item) for item in templates] == [requested(template_)] * 3
    paths = {operation["path"] for operation in planned["patch"]}
    assert {"/spec/resourceClaims", "/spec/containers/0/resources"} <= paths
    assert made["spec"]["resourceClaims"]
    for name in ("one", "two", "third"):
        api.delete("v1", "Pod", name, space, gracePeriodSeconds=0)


def test_what_cannot_be_enforced_is_refused_with_what_could(enforcing: Webhooks, shared: str) -> None:
    api, space = enforcing.api, enforcing.namespace()
    known(enforcing, space, shared, QUARTER)
    for more, words in (
        ({"kaiwo.ai/gpu-memory-limit": "40960"}, "memory-limit cannot be expressed; what could: mps"),
        ({"kaiwo.ai/gpu-isolation": "mps"}, "isolation mps is not what it does"),
        ({"kaiwo.ai/gpu-memory": "90000"}, "a GPU has 81920 MiB, less than 90000"),
        ({"kaiwo.ai/gpu-memory": "20Gi"}, "write 20480"),
    ):
        with pytest.raises(Refused) as refused:
            api.create(pod(space, "refused", shared, QUARTER | more))
        assert words in refused.value.message


REPLICAS = {
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.sharing-strategy": "mps",
}


@pytest.mark.long
def test_replicas_of_a_device_plugin_are_counted_by_kube_scheduler(enforcing: Webhooks) -> None:
    """Allocatable amounts and labels as the plugin and its feature discovery document them."""
    api, space = enforcing.api, enforcing.namespace()
    asked = QUARTER | {"kaiwo.ai/gpu-memory": "10240", "kaiwo.ai/gpu-memory-limit": "15360"}
    with node(api, REPLICAS, **{"nvidia.com/gpu.shared": "4"}) as name:
        known(enforcing, space, name, asked)
        made = [api.create(pod(space, f"replica-{at}", name, asked)) for at in range(5)]
        for one in made:
            container = one["spec"]["containers"][0]
            assert container["resources"]["limits"] == {"nvidia.com/gpu.shared": "1"}
            assert container["env"] == [{"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=15360M"}]
            assert one["metadata"]["annotations"]["kaiwo.ai/gpu-enforced"] == "fraction,memory,memory-limit"
        wait_for(lambda: len(api.list("v1", "Pod", space, fields="spec.nodeName!=")) == 4)
        (waiting,) = api.list("v1", "Pod", space, fields="spec.nodeName=")
        pending = api.wait("v1", "Pod", waiting["metadata"]["name"], reason_of, space)
        assert "Insufficient nvidia.com/gpu.shared" in reason_of(pending)
        for one in made:
            api.delete("v1", "Pod", one["metadata"]["name"], space, gracePeriodSeconds=0)
