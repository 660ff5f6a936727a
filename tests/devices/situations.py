"""What the product relies on in dynamic resource allocation, one situation each.

A new version of Kubernetes that allocates otherwise shows here first.
"""

from dataclasses import replace
from typing import Any

import pytest
from controlplane.api import Refused
from controlplane.processes import wait_for

from kopt.cluster.objects.device_slices import (
    API_VERSION,
    Capacity,
    Device,
    DevicePool,
    Taint,
    gpu_uuid,
    mi300x_gpus,
    mig_device_name,
    mig_gpus,
    shared_gpus,
    whole_gpus,
)
from kopt.cluster.workloads.requests.devices import choice_selector, set_selector, with_choice
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry

from .bench import (
    AnyOf,
    Bench,
    Object,
    Pool,
    Request,
    Situation,
    Step,
    frees,
    gets,
    refused,
    slice_refused,
    taints,
    then_gets,
    waits,
)

H100 = mig_geometry(find_gpu("h100-80gb"))
PER_GPU = sum(len(profile.starts) for profile in H100.profiles) + 1


def mig(profile: str, *where: str, **options: Any) -> Request:
    text = f'device.attributes["DRIVER"].type == "mig" && device.attributes["DRIVER"].profile == "{profile}"'
    return Request((text, *where), options=options)


def at(profile: str, start: int, gpu: int = 0) -> str:
    return mig_device_name(gpu, profile, start)


GPU = Request(('device.attributes["DRIVER"].type == "gpu"',))
ANY = Request()


def h100s(count: int = 1, *, last: bool = False) -> Pool:
    return lambda driver, node: mig_gpus(driver, node, count, H100, last_start_first=last)


def mi300xs(count: int) -> Pool:
    return lambda driver, node: mi300x_gpus(driver, node, count)


def plain(*devices: Device) -> Pool:
    return lambda driver, node: DevicePool(driver, node, devices)


def whole(count: int) -> Pool:
    return plain(*whole_gpus(count, "H100", 80))


def shared(count: int) -> Pool:
    return plain(*shared_gpus(count, "H100", 80))


def share(memory: str, milli: str) -> Request:
    return Request(options={"capacity": {"requests": {"memory": memory, "milliGPU": milli}}})


def mode(name: str, partitions: int | None = None) -> Request:
    capacity = {"capacity": {"requests": {"partitions": str(partitions)}}} if partitions else {}
    return Request((f'device.attributes["DRIVER"].mode == "{name}"',), options=capacity)


ONE, TWO, THREE, FOUR, SEVEN = "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"
MIG = (
    Situation(
        "seven small instances fill a GPU and the eighth waits",
        (h100s(),),
        (*(gets(mig(ONE), devices=at(ONE, start)) for start in range(7)), waits(mig(ONE))),
    ),
    Situation(
        "an instance in the first slot leaves the second half alone",
        (h100s(),),
        (gets(mig(ONE), devices=at(ONE, 0)), waits(mig(FOUR)), gets(mig(THREE), devices=at(THREE, 4))),
    ),
    Situation(
        "devices from the last start on keep the first half whole",
        (h100s(last=True),),
        (
            gets(mig(ONE), devices=at(ONE, 6)),
            gets(mig(FOUR), devices=at(FOUR, 0)),
            gets(mig(ONE), devices=at(ONE, 5)),
            gets(mig(ONE), devices=at(ONE, 4)),
            waits(mig(ONE)),
        ),
    ),
    Situation(
        "two halves use all memory and leave a compute slice that nothing can have",
        (h100s(),),
        (
            gets(mig(THREE), devices=at(THREE, 0)),
            gets(mig(THREE), devices=at(THREE, 4)),
            waits(mig(ONE)),
        ),
    ),
    Situation(
        "a large and a medium instance share a GPU",
        (h100s(),),
        (gets(mig(FOUR), devices=at(FOUR, 0)), gets(mig(THREE), devices=at(THREE, 4)), waits(mig(ONE))),
    ),
    Situation(
        "the largest instance leaves nothing, and gives all back",
        (h100s(),),
        (
            gets(mig(SEVEN), devices=at(SEVEN, 0)),
            waits(mig(ONE)),
            frees(0),
            then_gets(1, at(ONE, 0)),
        ),
    ),
    Situation(
        "a whole GPU and instances exclude each other",
        (h100s(2),),
        (
            gets(GPU, devices="gpu-0"),
            gets(mig(ONE), devices=at(ONE, 0, gpu=1)),
            waits(GPU),
            gets(mig(ONE), devices=at(ONE, 1, gpu=1)),
        ),
    ),
    Situation(
        "four instances of two memory slots",
        (h100s(),),
        (*(gets(mig("1g.20gb"), devices=at("1g.20gb", start)) for start in (0, 2, 4, 6)), waits(mig("1g.20gb"))),
    ),
    Situation(
        "three instances of two slices and one more of one",
        (h100s(),),
        (
            *(gets(mig(TWO), devices=at(TWO, start)) for start in (0, 2, 4)),
            waits(mig(TWO)),
            gets(mig(ONE), devices=at(ONE, 6)),
        ),
    ),
    Situation(
        "a hole is filled again",
        (h100s(),),
        (
            *(gets(mig(ONE), devices=at(ONE, start)) for start in range(3)),
            frees(1),
            gets(mig(ONE), devices=at(ONE, 1)),
        ),
    ),
    Situation(
        "a full GPU sends the next instance to the second",
        (h100s(2),),
        (gets(mig(SEVEN), devices=at(SEVEN, 0)), gets(mig(FOUR), devices=at(FOUR, 0, gpu=1))),
    ),
    Situation(
        "two instances of one claim on one GPU",
        (h100s(2),),
        (
            gets(mig(FOUR), devices=at(FOUR, 0)),
            gets(
                mig(FOUR).named("large"),
                mig(ONE).named("small"),
                constraints=[{"matchAttribute": "DRIVER/parentUUID"}],
                devices=f"{at(FOUR, 0, gpu=1)} {at(ONE, 4, gpu=1)}",
            ),
        ),
    ),
    Situation(
        "instances that cannot be on one GPU wait",
        (h100s(2),),
        (
            waits(
                mig(SEVEN).named("large"),
                mig(ONE).named("small"),
                constraints=[{"matchAttribute": "DRIVER/parentUUID"}],
            ),
        ),
    ),
    Situation(
        "several instances of one request",
        (h100s(),),
        (
            gets(mig(TWO, count=3), devices=" ".join(at(TWO, start) for start in (0, 2, 4))),
            waits(mig(ONE, count=2)),
            gets(mig(ONE), devices=at(ONE, 6)),
        ),
    ),
    Situation(
        "a selector names the memory slots of an instance",
        (h100s(),),
        (
            gets(mig(ONE, '"memorySlice4" in device.capacity["DRIVER"]'), devices=at(ONE, 4)),
            gets(mig(THREE), devices=at(THREE, 0)),
        ),
    ),
    Situation(
        "a selector names the GPU of an instance",
        (h100s(2),),
        (gets(mig(ONE, 'device.attributes["DRIVER"].parentUUID.endsWith("-1")'), devices=at(ONE, 0, gpu=1)),),
    ),
)
ALTERNATIVES = (
    Situation(
        "the first alternative that fits",
        (h100s(),),
        (
            gets(mig(ONE), devices=at(ONE, 0)),
            gets(AnyOf((mig(SEVEN).named("large"), mig(TWO).named("small"))), devices=at(TWO, 2)),
        ),
    ),
    Situation(
        "the first alternative where all fit",
        (h100s(),),
        (gets(AnyOf((mig(SEVEN).named("large"), mig(TWO).named("small"))), devices=at(SEVEN, 0)),),
    ),
    Situation(
        "the allocation names the alternative",
        (h100s(),),
        (
            gets(mig(SEVEN), devices=at(SEVEN, 0)),
            waits(AnyOf((mig(FOUR).named("large"), mig(TWO).named("small")))),
            frees(0),
            then_gets(1, at(FOUR, 0)),
            lambda bench: _same(bench.results(bench.claims[1])[0]["request"], "gpu/large"),
        ),
    ),
    Situation(
        "an alternative is preferred over a node that has a worse one",
        (h100s(),),
        (
            gets(mig(ONE), on=0, devices=at(ONE, 0)),
            gets(AnyOf((mig(SEVEN).named("large"), mig(TWO).named("small"))), devices=at(SEVEN, 0)),
        ),
        nodes=2,
    ),
)


def _same(value: object, expected: object) -> None:
    assert value == expected, value


def _scaled(bench: Bench) -> None:
    """19.5 GiB are 20, and 120 milli-GPU 150."""
    consumed = bench.results(bench.claims[0])[0]["consumedCapacity"]
    assert consumed == {"memory": "20Gi", "milliGPU": "150"}, consumed


def _two_shares(bench: Bench) -> None:
    shares = {bench.results(claim)[0]["shareID"] for claim in bench.claims}
    assert len(shares) == 2


CAPACITY = (
    Situation(
        "four quarters share a GPU and the fifth waits",
        (shared(1),),
        (*(gets(share("20Gi", "250"), devices="gpu-0") for _ in range(4)), waits(share("20Gi", "250"))),
    ),
    Situation(
        "a request is rounded up to whole steps",
        (shared(1),),
        (gets(share("19968Mi", "120"), devices="gpu-0"), _scaled),
    ),
    Situation(
        "rounding counts: four times 19.5 GiB and then nothing",
        (shared(1),),
        (*(gets(share("19968Mi", "50"), devices="gpu-0") for _ in range(4)), waits(share("1Gi", "50"))),
    ),
    Situation(
        "without an amount a claim has the whole",
        (shared(2),),
        (
            gets(ANY, devices="gpu-0"),
            gets(share("1Gi", "50"), devices="gpu-1"),
            waits(ANY),
        ),
    ),
    Situation(
        "a GPU that lacks memory is passed over for all its compute",
        (shared(2),),
        (
            gets(share("60Gi", "100"), devices="gpu-0"),
            gets(share("30Gi", "100"), devices="gpu-1"),
            gets(share("20Gi", "100"), devices="gpu-0"),
        ),
    ),
    Situation(
        "shares of one claim on different GPUs",
        (shared(2),),
        (
            gets(
                share("10Gi", "100").named("left"),
                share("10Gi", "100").named("right"),
                constraints=[{"distinctAttribute": "DRIVER/index"}],
                devices="gpu-0 gpu-1",
            ),
        ),
    ),
    Situation("more than a GPU has waits", (shared(2),), (waits(share("81Gi", "50")),)),
    Situation(
        "each share has an identity",
        (shared(1),),
        (gets(share("1Gi", "50"), devices="gpu-0"), gets(share("1Gi", "50"), devices="gpu-0"), _two_shares),
    ),
    Situation(
        "a share that ends can be had again",
        (shared(1),),
        (
            gets(share("40Gi", "500"), devices="gpu-0"),
            gets(share("40Gi", "500"), devices="gpu-0"),
            waits(share("40Gi", "500")),
            frees(0),
            then_gets(2, "gpu-0"),
        ),
    ),
)
MODES = (
    Situation(
        "an MI300X is in one mode at a time",
        (mi300xs(2),),
        (
            *(gets(mode("cpx"), devices="gpu-0-cpx") for _ in range(3)),
            gets(mode("spx"), devices="gpu-1-spx"),
            waits(mode("spx")),
            gets(mode("cpx"), devices="gpu-0-cpx"),
        ),
    ),
    Situation(
        "eight partitions in CPX, and the ninth on the next GPU",
        (mi300xs(2),),
        (*(gets(mode("cpx"), devices="gpu-0-cpx") for _ in range(8)), gets(mode("cpx"), devices="gpu-1-cpx")),
    ),
    Situation(
        "the mode can change once the last partition is free",
        (mi300xs(1),),
        (
            gets(mode("cpx"), devices="gpu-0-cpx"),
            gets(mode("cpx"), devices="gpu-0-cpx"),
            waits(mode("spx")),
            frees(0),
            frees(1),
            then_gets(2, "gpu-0-spx"),
        ),
    ),
    Situation(
        "two partitions in DPX",
        (mi300xs(1),),
        (gets(mode("dpx"), devices="gpu-0-dpx"), gets(mode("dpx"), devices="gpu-0-dpx"), waits(mode("dpx"))),
    ),
    Situation(
        "a claim for several partitions",
        (mi300xs(1),),
        (
            gets(mode("cpx", 6), devices="gpu-0-cpx"),
            waits(mode("cpx", 3)),
            gets(mode("cpx", 2), devices="gpu-0-cpx"),
        ),
    ),
)
BAD, NOTE = Taint("gpu.test/ecc", "NoSchedule"), Taint("gpu.test/ecc", "None")
FATAL = Taint("gpu.test/xid", "NoExecute", "79")


def _evicted(number: int) -> Step:
    def step(bench: Bench) -> None:
        name = bench.claims[number]
        bench.api.wait("v1", "Pod", bench.claims[1 - number], lambda pod: pod["spec"].get("nodeName"), bench.space)
        _gone(bench, name)

    return step


def _gone(bench: Bench, name: str) -> None:
    wait_for(lambda: bench.api.find("v1", "Pod", name, bench.space) is None, what=f"{name} is evicted")


TOLERATED = [{"key": "gpu.test/ecc", "operator": "Exists", "effect": "NoSchedule"}]
TAINTS = (
    Situation(
        "NoSchedule keeps new claims away and what runs goes on",
        (whole(2),),
        (
            gets(GPU, devices="gpu-0"),
            taints("gpu-0", BAD),
            gets(GPU, devices="gpu-1"),
            frees(0),
            waits(GPU),
            lambda bench: _same(len(bench.results(bench.claims[1])), 1),
        ),
    ),
    Situation(
        "NoExecute evicts the pod of the device and no other",
        (whole(2),),
        (gets(GPU, devices="gpu-0"), gets(GPU, devices="gpu-1"), taints("gpu-0", FATAL), _evicted(0)),
    ),
    Situation(
        "who tolerates a taint gets the device",
        (plain(whole_gpus(1, "H100", 80)[0].tainted(BAD)),),
        (waits(GPU), gets(GPU.with_options(tolerations=TOLERATED), devices="gpu-0")),
    ),
    Situation(
        "a taint without effect is a note",
        (plain(whole_gpus(1, "H100", 80)[0].tainted(NOTE)),),
        (gets(GPU, devices="gpu-0"),),
    ),
    Situation(
        "a taint that is lifted lets the claim in",
        (plain(whole_gpus(1, "H100", 80)[0].tainted(BAD)),),
        (waits(GPU), taints("gpu-0"), then_gets(0, "gpu-0")),
    ),
    Situation(
        "a tainted instance is passed over",
        (h100s(),),
        (taints(at(ONE, 0), BAD), gets(mig(ONE), devices=at(ONE, 1))),
    ),
)


def _reversed(pool: Pool) -> Pool:
    return lambda driver, node: replace(made := pool(driver, node), devices=made.devices[::-1])


def _without(bench: Bench, number: int) -> Object:
    """A slice of the pool is deleted, and given back for later."""
    document = next(iter(bench.pools.values())).slices()[number]
    bench.api.delete(API_VERSION, "ResourceSlice", document["metadata"]["name"])
    return document


def _completed(bench: Bench) -> None:
    document = _without(bench, 1)
    claim = bench.ask((mig(ONE),))
    assert "nodeName" not in bench.outcome(claim)["spec"]
    bench.put(document)


def _new_generation(bench: Bench) -> None:
    """Only one of the two GPUs is in the newer generation; the older slice of another name stays behind."""
    pool = next(iter(bench.pools.values()))
    (newer,) = replace(pool, devices=pool.devices[1:], generation=2).slices()
    newer["metadata"]["name"] += "-newer"
    bench.put(newer)


def _renamed(bench: Bench) -> None:
    """Two slices of the same pool have a device of one name."""
    first, second = next(iter(bench.pools.values())).slices()[1:]
    second["spec"]["devices"][0]["name"] = first["spec"]["devices"][0]["name"]
    bench.put(second)


def _mixed(slices: list[Object]) -> Object:
    slices[1]["spec"]["sharedCounters"] = slices[0]["spec"]["sharedCounters"]
    return slices[1]


def _crowded(slices: list[Object]) -> Object:
    devices = slices[1]["spec"]["devices"]
    slices[1]["spec"]["devices"] = [*devices, *({**item, "name": f"{item['name']}-x"} for item in devices)]
    return slices[1]


def _doubled(slices: list[Object]) -> Object:
    slices[0]["spec"]["devices"].append(slices[0]["spec"]["devices"][0])
    return slices[0]


def _uncounted(bench: Bench) -> None:
    """Devices consume counters of a set that no slice has."""
    document = next(iter(bench.pools.values())).slices()[0]
    document["spec"]["sharedCounters"][0]["name"] = "other"
    bench.put(document)


INVALID = "invalid resource pools"
SPLIT = 64 // PER_GPU
"""The GPU of which the instances are in two slices."""
SLICES = (
    Situation(
        "the order of devices is that of allocation",
        (_reversed(whole(4)),),
        (
            gets(GPU, devices="gpu-3"),
            gets(GPU, devices="gpu-2"),
        ),
    ),
    Situation(
        "slices of a pool go by their names",
        (plain(*(Device(f"gpu-{gpu}", {"type": "gpu"}, {}, None, False, (NOTE,)) for gpu in range(70))),),
        (gets(GPU.with_options(count=3), devices="gpu-0 gpu-1 gpu-2"),),
    ),
    Situation(
        "the first eight in their order",
        (whole(8),),
        (
            gets(GPU.with_options(count=4), devices="gpu-0 gpu-1 gpu-2 gpu-3"),
            gets(GPU.with_options(count=4), devices="gpu-4 gpu-5 gpu-6 gpu-7"),
            waits(GPU),
        ),
    ),
    Situation(
        "instances of a GPU in two slices share its counters",
        (h100s(SPLIT + 1),),
        (
            gets(mig(ONE, f'device.attributes["DRIVER"].parentIndex == {SPLIT}'), devices=at(ONE, 0, gpu=SPLIT)),
            waits(mig(SEVEN, f'device.attributes["DRIVER"].parentIndex == {SPLIT}')),
            gets(mig(THREE, f'device.attributes["DRIVER"].parentIndex == {SPLIT}'), devices=at(THREE, 4, gpu=SPLIT)),
        ),
    ),
    Situation("a pool is used once it is complete", (h100s(),), (_completed, then_gets(0, at(ONE, 0)))),
    Situation(
        "only the newest generation counts",
        (whole(2),),
        (
            _new_generation,
            gets(GPU, devices="gpu-1"),
            waits(GPU),
        ),
    ),
    Situation(
        "a device named twice in a pool makes it invalid",
        (h100s(SPLIT + 1),),
        (_renamed, waits(mig(ONE), message=INVALID)),
        is_disruptive=True,
    ),
    Situation(
        "counters that no slice has make a pool invalid",
        (h100s(),),
        (_uncounted, waits(mig(ONE), message=INVALID)),
        is_disruptive=True,
    ),
    Situation("counters and devices in one slice are refused", (h100s(),), (slice_refused(_mixed, "only one of"),)),
    Situation("more than 64 devices with counters are refused", (h100s(2),), (slice_refused(_crowded, "Too many"),)),
    Situation("a device named twice in a slice is refused", (whole(1),), (slice_refused(_doubled, "Duplicate"),)),
    Situation(
        "a step beyond the capacity is refused",
        (whole(1),),
        (
            slice_refused(
                lambda slices: DevicePool(
                    slices[0]["spec"]["driver"],
                    slices[0]["spec"]["nodeName"],
                    (Device("gpu-0", {}, {"partitions": Capacity("1", step="1")}, None, True),),
                ).slices()[0],
                "larger than capacity",
            ),
        ),
    ),
)


def _immutable(bench: Bench) -> None:
    selectors = [{"cel": {"expression": "true"}}]
    requests = [{"name": "gpu", "exactly": {"deviceClassName": bench.drivers[0], "selectors": selectors}}]
    change = {"spec": {"devices": {"requests": requests}}}
    with pytest.raises(Refused, match="immutable"):
        bench.api.patch(API_VERSION, "ResourceClaim", bench.claims[0], change, bench.space)


def _all_are_had(bench: Bench) -> None:
    """Not at once: while the pool of any driver on any node is being published, claims for all devices wait."""
    claim = bench.ask((GPU.with_options(allocationMode="All"),))
    bench.bound(claim)
    assert [result["device"] for result in bench.results(claim)] == ["gpu-0", "gpu-1"]


CEL = (
    Situation(
        "a selector compares capacities",
        (plain(*whole_gpus(1, "A100", 40), replace(whole_gpus(1, "H100", 80)[0], name="gpu-1")),),
        (
            gets(
                Request(('device.capacity["DRIVER"].memory.compareTo(quantity("60Gi")) >= 0',)),
                devices="gpu-1",
            ),
        ),
    ),
    Situation(
        "a selector that nothing meets",
        (whole(1),),
        (waits(Request(('device.attributes["DRIVER"].productName == "B200"',))),),
    ),
    Situation(
        "an attribute that a device lacks is an error and not a match",
        (whole(1),),
        (
            waits(Request(('device.attributes["DRIVER"].profile == "1g.10gb"',)), message="no such key"),
            gets(Request(('"profile" in device.attributes["DRIVER"] || true',)), devices="gpu-0"),
        ),
    ),
    Situation(
        "a selector that does not compile is refused",
        (whole(1),),
        (refused(Request(("device.nothing == 1",)), message="undefined field"),),
    ),
    Situation("a claim cannot be changed", (whole(1),), (gets(GPU, devices="gpu-0"), _immutable)),
    Situation(
        "all devices, or none",
        (whole(2),),
        (
            _all_are_had,
            waits(GPU),
            frees(0),
            then_gets(1, "gpu-0"),
            waits(GPU.with_options(allocationMode="All"), message=""),
        ),
    ),
)


def _extended(bench: Bench) -> None:
    driver = bench.drivers[0]
    resource = f"{bench.prefix}.test/gpu"
    bench.api.patch(API_VERSION, "DeviceClass", driver, {"spec": {"extendedResourceName": resource}})
    for number in range(3):
        name = f"{bench.prefix}-{number}"
        bench.claims.append(name)
        bench.pod(name, None, limits={resource: "1"})
        pod = bench.outcome(name)
        assert bool(pod["spec"].get("nodeName")) is (number < 2), reason(pod)
    claims = [
        claim
        for claim in bench.api.list(API_VERSION, "ResourceClaim", bench.space)
        if claim["metadata"]["name"].startswith(f"{bench.prefix}-")
    ]
    devices = {result["device"] for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]}
    assert devices == {"gpu-0", "gpu-1"}


def reason(pod: Object) -> str:
    return str(pod.get("status", {}))


def _admin(bench: Bench) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    bench.api.patch("v1", "Namespace", bench.space, label)
    name = bench.ask((GPU.with_options(adminAccess=True),))
    assert bench.outcome(name)["spec"].get("nodeName")
    assert bench.results(name)[0] | {"pool": ""} == {
        "request": "gpu",
        "driver": bench.drivers[0],
        "pool": "",
        "device": "gpu-0",
        "adminAccess": True,
    }


def _template(bench: Bench, count: int) -> None:
    """Pods that each get a claim from a template, over two nodes with two GPUs each."""
    claim = bench.claim(f"{bench.prefix}-gpu", (GPU,))
    template = {**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}
    bench.api.create(template)
    for number in range(count):
        name = f"{bench.prefix}-pod-{number}"
        bench.claims.append(name)
        bench.pod(name, {"resourceClaimTemplateName": f"{bench.prefix}-gpu"})


def _gang(bench: Bench) -> None:
    _template(bench, 4)
    nodes = [bench.bound(claim)["spec"]["nodeName"] for claim in bench.claims]
    assert sorted(nodes) == sorted(bench.nodes * 2)


def _prefers(node: int, gpu: int, start: int, devices: str) -> Step:
    """A claim as the webhook writes it: one instance before all others."""

    def step(bench: Bench) -> None:
        driver = bench.drivers[0]
        selector = choice_selector(driver, gpu_uuid(bench.nodes[node], gpu), start)
        name = f"{bench.prefix}-{len(bench.claims)}"
        bench.claims.append(name)
        claim = bench.claim(name, (mig(ONE),))
        claim["spec"]["devices"]["requests"] = [with_choice(claim["spec"]["devices"]["requests"][0], selector)]
        bench.api.create(claim)
        bench.pod(name, {"resourceClaimName": name})
        pod = bench.bound(name)
        (result,) = bench.results(name)
        assert (pod["spec"]["nodeName"], result["device"]) == (bench.nodes[node], devices)

    return step


def _prefers_set(node: int, gpus: tuple[int, ...], devices: str) -> Step:
    """A claim for several whole GPUs as the webhook writes it: one set of one node before all others."""

    def step(bench: Bench) -> None:
        selector = set_selector(bench.drivers[0], [gpu_uuid(bench.nodes[node], gpu) for gpu in gpus])
        name = f"{bench.prefix}-{len(bench.claims)}"
        bench.claims.append(name)
        claim = bench.claim(name, (GPU.with_options(allocationMode="ExactCount", count=len(gpus)),))
        claim["spec"]["devices"]["requests"] = [with_choice(claim["spec"]["devices"]["requests"][0], selector)]
        bench.api.create(claim)
        bench.pod(name, {"resourceClaimName": name})
        bench.bound(name)
        given = [(result["pool"], result["device"]) for result in bench.results(name)]
        expected = [each.partition("/") for each in devices.split()]
        assert sorted(given) == [(bench.nodes[int(number)], device) for number, _, device in expected], given

    return step


def _one_claim_for_two(bench: Bench) -> None:
    claim = bench.ask((GPU,))
    node = bench.bound(claim)["spec"]["nodeName"]
    bench.claims.append(f"{bench.prefix}-mate")
    bench.pod(bench.claims[-1], {"resourceClaimName": claim})
    assert bench.bound(bench.claims[-1])["spec"]["nodeName"] == node
    assert len(bench.results(claim)) == 1


def _configured(bench: Bench) -> None:
    (config,) = bench.api.get(API_VERSION, "ResourceClaim", bench.claims[0], bench.space)["status"]["allocation"][
        "devices"
    ]["config"]
    assert config["source"] == "FromClaim"
    assert config["opaque"]["parameters"] == {"kind": "MpsConfig"}


def _fabric(bench: Bench) -> None:
    """A pool without a node, whose devices either node can have."""
    (document,) = DevicePool(bench.drivers[0], bench.nodes[0], whole_gpus(1, "remote", 80), generation=2).slices()
    del document["spec"]["nodeName"]
    hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": bench.nodes}
    document["spec"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
    document["spec"]["pool"]["name"] = f"{bench.prefix}-fabric"
    document["metadata"]["name"] = f"{bench.prefix}-fabric"
    bench.put(document)


def nics(driver: str, node: str) -> DevicePool:
    roots = ("0000:80", "0000:00")
    return DevicePool(
        driver,
        node,
        tuple(Device(f"nic-{at}", {"resource.kubernetes.io/numa": root}, {}) for at, root in enumerate(roots)),
    )


def gpus_by_root(driver: str, node: str) -> DevicePool:
    devices = whole_gpus(2, "H100", 80)
    roots = ("0000:00", "0000:80")
    return DevicePool(
        driver,
        node,
        tuple(
            replace(device, attributes={**device.attributes, "resource.kubernetes.io/numa": root})
            for device, root in zip(devices, roots, strict=True)
        ),
    )


MPS = [{"requests": ["gpu"], "opaque": {"driver": "gpu.test", "parameters": {"kind": "MpsConfig"}}}]
PODS = (
    Situation("an extended resource of a class", (whole(2),), (_extended,)),
    Situation("admin access sees a device that is allocated", (whole(1),), (gets(GPU, devices="gpu-0"), _admin)),
    Situation("admin access needs the namespace's label", (whole(1),), (lambda bench: refused_in_default(bench),)),
    Situation("pods of a gang each get a GPU from a template", (whole(2),), (_gang,), nodes=2),
    Situation(
        "an instance that is preferred decides over node and order",
        (h100s(2),),
        (_prefers(2, 1, 4, at(ONE, 4, gpu=1)), _prefers(2, 1, 3, at(ONE, 3, gpu=1)), _prefers(0, 0, 6, at(ONE, 6))),
        nodes=4,
    ),
    Situation(
        "where the preferred instance is in use another one is allocated",
        (h100s(),),
        (_prefers(0, 0, 4, at(ONE, 4)), _prefers(0, 0, 4, at(ONE, 0))),
    ),
    Situation(
        "a set of whole GPUs is preferred over all others",
        (h100s(4),),
        (_prefers_set(1, (1, 3), "1/gpu-1 1/gpu-3"),),
        nodes=2,
    ),
    Situation(
        "where one GPU of a preferred set is in use as many others are allocated",
        (h100s(4),),
        (_prefers_set(0, (0, 1), "0/gpu-0 0/gpu-1"), _prefers_set(0, (1, 2), "0/gpu-2 0/gpu-3")),
    ),
    Situation("two pods share a claim and so a node", (whole(1),), (_one_claim_for_two,), nodes=2),
    Situation(
        "a GPU and the NIC at its root, of two drivers",
        (gpus_by_root, nics),
        (
            gets(
                ANY.named("gpu"),
                Request(driver=1, name="nic"),
                constraints=[{"matchAttribute": "resource.kubernetes.io/numa"}],
                devices="gpu-0 nic-1",
            ),
            gets(
                ANY.named("gpu"),
                Request(driver=1, name="nic"),
                constraints=[{"matchAttribute": "resource.kubernetes.io/numa"}],
                devices="gpu-1 nic-0",
            ),
        ),
    ),
    Situation(
        "settings for the driver are passed on",
        (whole(1),),
        (
            gets(GPU, devices="gpu-0", config=MPS),
            _configured,
        ),
    ),
    Situation(
        "devices beside the nodes",
        (plain(),),
        (
            _fabric,
            gets(GPU, devices="gpu-0", on=1),
            waits(GPU, on=0),
        ),
        nodes=2,
    ),
    Situation(
        "the node that is named decides over the first fit",
        (whole(1),),
        (
            gets(GPU, devices="gpu-0", on=1),
            waits(GPU, on=1),
            gets(GPU, devices="gpu-0", on=0),
        ),
        nodes=2,
    ),
)


def refused_in_default(bench: Bench) -> None:
    space, bench.space = bench.space, "default"
    try:
        refused(GPU.with_options(adminAccess=True), message="admin-access")(bench)
    finally:
        bench.space = space


SITUATIONS = (*MIG, *ALTERNATIVES, *CAPACITY, *MODES, *TAINTS, *SLICES, *CEL, *PODS)
