"""Claims for MIG instances on the real kube-scheduler: how many are accepted with the webhook, and by slice order.

``python -m benchmarks devices``: H100s that are cut on demand, Poisson arrivals, exponential stays; a claim that finds
no room is withdrawn, as in ``partitions``. Both ways see the same requests in the same order, one event after another:
time is that of the stream. The simulator's acceptance of the same requests stands beside it. Also counts how often what
was selected is what was allocated.
"""

import argparse
import heapq
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tables import markdown
from kopt.cluster.objects.device_slices import API_VERSION, mig_device_name, mig_gpus
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.simulator.partitions import PartitionStream, replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from admission.conftest import Webhooks
    from controlplane.api import Api

Object = dict[str, Any]
DRIVER, CLASS, CHOICE = "gpu.nvidia.com", "mig.nvidia.com", "kaiwo.ai/device-choice"
_H100 = mig_geometry(find_gpu("h100-80gb"))
_NODES, _GPUS = 4, 2
_MIXES = {
    "all alike": dict.fromkeys(("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"), 1.0),
    "70 % 1g, 20 % 2g, 10 % 3g": {"1g.10gb": 0.7, "2g.20gb": 0.2, "3g.40gb": 0.1},
    "50 % 1g, 30 % 3g, 20 % 7g": {"1g.10gb": 0.5, "3g.40gb": 0.3, "7g.80gb": 0.2},
}


@dataclass
class Outcome:
    accepted: int = 0
    requests: int = 0
    as_selected: int = 0
    selected: int = 0
    accepted_slices: int = 0


@dataclass
class Cluster:
    """Pods with a claim each, in a namespace that is managed or not."""

    api: "Api"
    space: str
    outcome: Outcome = field(default_factory=Outcome)

    def run(self, stream: PartitionStream, seed: int) -> None:
        departures: list[tuple[float, str]] = []
        for number, (profile, at, stay) in enumerate(zip(*stream.draw(seed), strict=True)):
            while departures and departures[0][0] <= at:
                self._end(heapq.heappop(departures)[1])
            pod = f"p{seed}-{number}"
            if self._submit(pod, _H100.profiles[int(profile)].name):
                self.outcome.accepted_slices += _H100.profiles[int(profile)].compute_slices
                heapq.heappush(departures, (at + stay, pod))
            else:
                self._end(pod)
        for _, pod in departures:
            self._end(pod)

    def _submit(self, name: str, profile: str) -> bool:
        container = {"name": "main", "image": "team/infer:1", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": profile}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.space}, "spec": spec}
        self.api.create(body)
        from controlplane.processes import wait_for

        pod = wait_for(lambda: self._decided(name), what=f"{name} is decided", every_s=0.01)
        self.outcome.requests += 1
        if "nodeName" not in pod["spec"]:
            return False
        self.outcome.accepted += 1
        self._compare(pod)
        return True

    def _decided(self, name: str) -> Object | None:
        pod = self.api.get("v1", "Pod", name, self.space)
        conditions = pod["status"].get("conditions") or []
        messages = [item.get("message", "") for item in conditions if item["type"] == "PodScheduled"]
        no_room = any("cannot allocate all claims" in message for message in messages)
        return pod if pod["spec"].get("nodeName") or no_room else None

    def _compare(self, pod: Object) -> None:
        name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        claim = self.api.get(API_VERSION, "ResourceClaim", name, self.space)
        written = claim["metadata"]["annotations"].get(CHOICE)
        if written is None:
            return
        choice = json.loads(written)
        gpu = int(choice["gpu"].rpartition("-")[2])
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        wanted = choice["node"], mig_device_name(gpu, choice["profile"], choice["start"])
        self.outcome.selected += 1
        self.outcome.as_selected += wanted == (result["pool"], result["device"])

    def _end(self, pod: str) -> None:
        from controlplane.processes import wait_for

        self.api.delete("v1", "Pod", pod, self.space, gracePeriodSeconds=0)

        def is_free() -> bool:
            claims = self.api.list(API_VERSION, "ResourceClaim", self.space)
            return all(claim["metadata"]["ownerReferences"][0]["name"] != pod for claim in claims)

        wait_for(is_free, what=f"the device of {pod} is free", every_s=0.01)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks devices")
    parser.add_argument("--requests", type=int, default=400, help="of each stream")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(list(arguments))
    rows: list[tuple[object, ...]] = []
    with _webhooks() as webhooks:
        for label, mix in _MIXES.items():
            stream = PartitionStream(_H100, _NODES * _GPUS, mix, 1.0, requests=options.requests)
            seeds = range(42, 42 + options.seeds)
            outcomes = {managed: _replayed(webhooks, stream, seeds, managed) for managed in (False, True)}
            simulated = [
                sum(replay(stream, policy, seed).accepted for seed in seeds) / len(seeds)
                for policy in ("first-fit", "kopt")
            ]
            rows.append(
                (label, *_figures(outcomes[False], outcomes[True]), *(f"{100 * each:.1f}" for each in simulated))
            )
            print(rows[-1], file=sys.stderr, flush=True)
    head = ("mix", "requests", "slice order", "webhook", "as selected", "simulated first fit", "simulated kopt")
    print(markdown(head, rows))
    return 0


def _figures(order: Outcome, webhook: Outcome) -> tuple[str, ...]:
    shares = [f"{100 * each.accepted / each.requests:.1f}" for each in (order, webhook)]
    return str(order.requests), *shares, f"{webhook.as_selected} of {webhook.selected}"


def _replayed(webhooks: "Webhooks", stream: PartitionStream, seeds: range, managed: bool) -> Outcome:
    from admission.submitting import labelled

    space = webhooks.namespace(managed=managed)
    if managed:
        webhooks.seen(space, labelled)
    for profile in stream.mix:
        where = f'device.attributes["{DRIVER}"].profile == "{profile}"'
        exactly = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": where}}]}
        template = {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": profile, "namespace": space},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
        webhooks.api.create(template)
    cluster = Cluster(webhooks.api, space)
    for seed in seeds:
        cluster.run(stream, seed)
    return cluster.outcome


@contextmanager
def _webhooks() -> "Iterator[Webhooks]":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from admission.conftest import CRD, SYSTEM, Webhooks
    from controlplane.plane import ControlPlane

    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder:
        plane = ControlPlane(Path(folder))
        try:
            plane.apply_crds([CRD])
            plane.api.namespace(SYSTEM)
            for at in range(_NODES):
                _make_node(plane.api, f"node-{at}")
            of_driver = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "mig"'
            selectors = {"selectors": [{"cel": {"expression": of_driver}}]}
            metadata = {"name": CLASS}
            plane.api.create(
                {"apiVersion": API_VERSION, "kind": "DeviceClass", "metadata": metadata, "spec": selectors}
            )
            webhooks = Webhooks(plane)
            webhooks.start()
            webhooks.policy(mode="enforce", queues={"default": "rest"})
            yield webhooks
        finally:
            plane.stop()


def _make_node(api: "Api", name: str) -> None:
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": ""}
    status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}}
    api.patch("v1", "Node", name, status, subresource="status")
    api.wait("v1", "Node", name, lambda node: not node["spec"].get("taints"))
    for document in mig_gpus(DRIVER, name, _GPUS, _H100).slices():
        api.create(document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
