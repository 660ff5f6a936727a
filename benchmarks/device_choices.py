"""How long the choice of GPUs for a generated claim takes in a large cluster: ``python -m benchmarks device-choices``.

Every claim that was given a choice is allocated as selected, and one in two of those that run ends, so that between two
choices the books change as informers would change them. Times are CPU of this process; changes are counted apart.
"""

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.tables import markdown
from kopt.cluster.client.resources import Key, Object
from kopt.cluster.objects.device_slices import DevicePool, mig_device_name, mig_gpus, whole_gpus
from kopt.cluster.workloads.requests.devices import DeviceRequest, ObservedClaim, read_slice
from kopt.controllers.devices.books import AnySelection, Books, Selection
from kopt.controllers.devices.open_nodes import OpenNodes
from kopt.controllers.devices.sets import LinkedGpus, linked_gpus
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry

DRIVER = "gpu.nvidia.com"
GPUS_PER_NODE, NODES_PER_RACK = 8, 50
_H100 = mig_geometry(find_gpu("h100-80gb"))
_TAINT: Object = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
_TOLERATION: Object = {"key": "nvidia.com/gpu", "operator": "Exists"}


@dataclass(frozen=True)
class Demand:
    """``pod``: what of a spec says on which nodes it may run."""

    name: str
    requests: Sequence[DeviceRequest]
    pod: Object


def _sets(*counts: int) -> list[DeviceRequest]:
    return [DeviceRequest(DRIVER, {"type": "gpu"}, count) for count in counts]


def _demands(is_mig: bool) -> list[Demand]:
    tolerates: Object = {"tolerations": [_TOLERATION]}
    instances = [DeviceRequest(DRIVER, {"type": "mig", "profile": profile.name}) for profile in _H100.profiles]
    requests, what = (instances, "instances") if is_mig else (_sets(1, 2, 4, 8), "sets of 1, 2, 4 and 8")
    return [
        Demand(f"{what}, any node", requests, tolerates),
        Demand(f"{what}, one rack", requests, tolerates | {"nodeSelector": {"rack": "7"}}),
        Demand(f"{what}, no node", requests, {}),
    ]


def _name(node: int) -> str:
    return f"node-{node:05}"


def pool_of(node: int, is_mig: bool) -> DevicePool:
    name = _name(node)
    if is_mig:
        return mig_gpus(DRIVER, name, GPUS_PER_NODE, _H100)
    uuids = [f"GPU-{name}-{gpu}" for gpu in range(GPUS_PER_NODE)]
    return DevicePool(DRIVER, name, whole_gpus(GPUS_PER_NODE, "NVIDIA L40S", 48, uuid=uuids))


def links_of_node(node: int) -> LinkedGpus:
    """Four linked GPUs, twice."""
    gpus = [{"index": at, "name": "NVIDIA", "uuid": f"GPU-{_name(node)}-{at}"} for at in range(GPUS_PER_NODE)]
    links = [
        {"a": a, "b": b, "type": "NVLINK", "count": 4} for b in range(GPUS_PER_NODE) for a in range(b) if a % 2 == b % 2
    ]
    return linked_gpus({"metadata": {"name": _name(node)}, "spec": {"gpus": gpus, "links": links}})


def devices_of(selection: AnySelection) -> tuple[tuple[str, str, str], ...]:
    """The names that a driver has for what was selected."""
    if isinstance(selection, Selection):
        names = [mig_device_name(int(selection.gpu.rpartition("-")[2]), selection.profile, selection.start)]
    else:
        names = [f"gpu-{gpu.rpartition('-')[2]}" for gpu in selection.gpus]
    return tuple((DRIVER, selection.node, name) for name in names)


@dataclass
class Times:
    """CPU in milliseconds."""

    first: float = 0.0
    """All nodes read, before the first choice."""
    choices: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    selected: int = 0


def measured(nodes: int, demand: Demand, choices: int, *, is_mig: bool, seed: int) -> Times:
    random_numbers, times, books = random.Random(seed), Times(), Books(linked=_links(nodes))
    for node in range(nodes):
        for document in pool_of(node, is_mig).slices():
            books.put_slice(("", document["metadata"]["name"]), read_slice(document))
    open_nodes = OpenNodes(
        {("", _name(node)): ({"rack": str(node // NODES_PER_RACK)}, [_TAINT]) for node in range(nodes)}
    )
    times.first = _cpu_ms(books.settle)
    running: deque[Key] = deque()
    for number in range(choices):
        request, key = random_numbers.choice(demand.requests), f"uid-{number}/gpus"
        start_s = time.process_time()
        selection = books.select(request, key, open_nodes.of(demand.pod))
        times.choices.append(1000 * (time.process_time() - start_s))
        times.selected += selection is not None
        if selection is not None:
            claim = ObservedClaim(key, devices_of(selection), "")
            running.append(("team", key))
            times.changes.append(_cpu_ms(lambda claim=claim: books.put_claim(running[-1], claim)))  # type: ignore[misc]
        if running and random_numbers.random() < 0.5:
            books.put_claim(running.popleft(), None)
    return times


def _links(nodes: int) -> dict[Key, LinkedGpus]:
    return {("", _name(node)): links_of_node(node) for node in range(nodes)}


def _cpu_ms(action: Callable[[], None]) -> float:
    start_s = time.process_time()
    action()
    return 1000 * (time.process_time() - start_s)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks device-choices")
    parser.add_argument("--nodes", type=int, default=1250, help="of eight GPUs")
    parser.add_argument("--choices", type=int, default=2000, help="of each kind")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args(list(arguments))
    rows = []
    for is_mig in (False, True):
        for demand in _demands(is_mig):
            times = measured(options.nodes, demand, options.choices, is_mig=is_mig, seed=options.seed)
            median, late, longest = np.quantile(times.choices, (0.5, 0.99, 1.0))
            change = np.mean(times.changes) if times.changes else 0.0
            figures = [f"{each:.2f}" for each in (median, late, longest, change)]
            rows.append((demand.name, f"{times.selected} of {options.choices}", *figures, f"{times.first:.0f}"))
            print(rows[-1], file=sys.stderr, flush=True)
    print(markdown(("claims", "selected", "median", "P99", "longest", "a change", "all nodes at first"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
