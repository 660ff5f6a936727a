"""From the log of rank 0 to pairs, and from a PairwiseBenchmark to the Job of a test."""

import os
from pathlib import Path
from typing import Any

import pytest

from kopt.cluster.objects.custom.node_bandwidth import NodeBandwidth, bandwidth_of, status_of
from kopt.controllers.pairwise.jobs import job_for, name_of, pair_of_job
from kopt.controllers.pairwise.results import failures, measured, software_of
from kopt.controllers.pairwise.spec import Benchmark, benchmark_of
from kopt.core.hardware.bandwidth import BandwidthError, Collective
from kopt.core.hardware.collectives import CollectiveLog
from kopt.core.hardware.pairwise import Health
from kopt.formats import topology
from kopt.policies.pairwise.fit import fit
from kopt.serving.contract.bandwidth.pairwise_answers import pairwise_request
from kopt.serving.contract.bandwidth.pairwise_schemas import PAIRWISE_REQUEST

from .conftest import benchmark as manifest
from .rendered import log

PAIR = ("node-a", "node-b")
AT_S = 1_800_000_000.0


def a_benchmark(**spec: Any) -> Benchmark:
    document = manifest("b", Path("shares"), **spec)
    document["metadata"]["uid"] = "uid"
    return benchmark_of(document)


def test_a_whole_log_is_a_healthy_pair() -> None:
    (found,) = measured(log(("x", "y")), a_benchmark(), PAIR, AT_S)
    assert (found.nodes, found.health, found.software, found.measured_at) == (PAIR, Health.HEALTHY, "nccl 2.27.3", AT_S)
    assert found.beta_gbps == pytest.approx(92, rel=1e-3)
    assert found.alpha_us == pytest.approx(25, rel=1e-2)
    assert [one.bytes for one in found.points] == [65536 << n for n in range(11)]


def test_several_collectives_are_several_results() -> None:
    asked = a_benchmark(collectives=["all_reduce", "all_gather", "broadcast"])
    found = measured(log(("x", "y")) + log(("x", "y"), collective="all_gather", beta_gbps=40), asked, PAIR, AT_S)
    assert [(one.collective.value, one.health, one.beta_gbps and round(one.beta_gbps)) for one in found] == [
        ("all_reduce", Health.HEALTHY, 92),
        ("all_gather", Health.HEALTHY, 40),
        ("broadcast", Health.FAILED, None),
    ]
    assert found[2].reason == "the log has no run of broadcast"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is nothing in it"),
        ("Segmentation fault", "not the output of a tool"),
        (log(("x", "y")).split("# Out")[0], "the log is cut"),
        (log(("x", "x")), "8 ranks on 1 hosts ran, not 8 on 2"),
        (log(("x", "y"), gpus=2), "4 ranks on 2 hosts ran, not 8 on 2"),
        (log(("x", "y"), wrong=3), "values of all_reduce"),
        (log(("x", "y"), collective="hypercube"), "hypercube"),
    ],
)
def test_anything_else_is_a_failed_pair_with_the_reason(text: str, reason: str) -> None:
    (found,) = measured(text, a_benchmark(), PAIR, AT_S)
    assert found.health is Health.FAILED
    assert reason in found.reason
    assert (found.points, found.alpha_us, found.beta_gbps) == ((), None, None)


@pytest.mark.parametrize(
    ("text", "software"),
    [
        ("NCCL version 2.27.3+cuda12.9", "nccl 2.27.3"),
        ("RCCL version : 2.22.3-develop:abc", "rccl 2.22.3"),
        ("# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807", "nccl 2.28.7"),
        ("rccl-tests: 2", ""),
    ],
)
def test_the_software_is_what_the_log_says(text: str, software: str) -> None:
    assert software_of(text) == software


def test_recorded_logs_give_lines_near_the_bandwidth_that_they_reached() -> None:
    """Of clusters of others, where KOPT_DATA_DIR has them."""
    folder = Path(os.environ.get("KOPT_DATA_DIR", "none")) / "topology" / "nccl_tests_log"
    if not folder.is_dir() and os.environ.get("KOPT_REQUIRE_DATA") != "1":
        pytest.skip("KOPT_DATA_DIR does not name a folder with topology/nccl_tests_log")
    runs = 0
    for path in sorted(folder.iterdir()):
        try:
            found = topology.parse(path.read_text(errors="replace"))
        except topology.FormatError:
            continue
        assert isinstance(found, CollectiveLog)
        for run in found.runs:
            what = Collective.ALL_REDUCE if not run.collective else topology_name(run.collective)
            line = fit([(float(row.bytes), row.latency_us) for row in run.rows if not row.in_place])
            assert line is not None
            best = max(row.busbw_gigabytes_per_s for row in run.rows)
            assert line.gigabytes_per_s(what.bus_factor(len(run.ranks))) == pytest.approx(best, rel=0.15), path.name
            runs += 1
    assert runs >= 15


def topology_name(name: str) -> Collective:
    from kopt.core.hardware.bandwidth import collective

    return collective(name)


def test_objects_and_the_endpoint_take_every_result() -> None:
    good = measured(log(PAIR), a_benchmark(), PAIR, AT_S)
    bad = failures(a_benchmark(collectives=["all_gather"]), PAIR, AT_S, "it did not end")
    held = NodeBandwidth("node-a", Health.SLOW, "why", AT_S, (*bad, *good))
    assert bandwidth_of({"metadata": {"name": "node-a"}, "status": status_of(held)}) == held
    body = pairwise_request("north", [*good, *bad], {}, {"node-a": ["block", "rack"]})
    request = PAIRWISE_REQUEST.validate_python(body)
    assert len(request.pairs) == 2
    with pytest.raises(BandwidthError, match="node-a"):
        bandwidth_of({"metadata": {"name": "node-a"}, "status": {"peers": [{"node": "node-b"}]}})


def test_a_job_has_one_pod_on_each_node_and_the_template_of_the_user() -> None:
    template = {
        "metadata": {"labels": {"team": "x"}},
        "spec": {
            "hostNetwork": True,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                        ]
                    }
                }
            },
            "containers": [
                {
                    "image": "i",
                    "env": [{"name": "KOPT_MIN_BYTES", "value": "64"}],
                    "resources": {"limits": {"rdma/hca": "1"}},
                }
            ],
        },
    }
    wanted = a_benchmark(template=template, priorityClassName="low")
    job = job_for(wanted, PAIR, "tests")
    assert pair_of_job(job) == PAIR
    assert name_of(wanted, PAIR) == job["metadata"]["name"] != name_of(wanted, ("node-a", "node-c"))
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (2, 2, 0)
    assert job["spec"]["activeDeadlineSeconds"] == 120
    pod = job["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [one["matchFields"][0]["values"] for one in terms] == [["node-a"], ["node-b"]]
    assert all(one["matchExpressions"][0]["key"] == "zone" for one in terms)
    assert (pod["dnsPolicy"], pod["priorityClassName"], pod["restartPolicy"]) == (
        "ClusterFirstWithHostNet",
        "low",
        "Never",
    )
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"rdma/hca": "1", "amd.com/gpu": "4"}
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["KOPT_MIN_BYTES"] == "64", "what the user says stands"
    assert env["KOPT_NODES"] == "node-a,node-b"
    first, second = env["KOPT_PEERS"].split(",")
    assert first.startswith(f"{job['metadata']['name']}-0.{pod['subdomain']}.tests")
    assert second.startswith(f"{job['metadata']['name']}-1.")
    assert "mpirun" in container["command"][2]
    assert {one["mountPath"] for one in container["volumeMounts"]} == {"/etc/kopt/ssh", "/dev/shm"}
    assert "volumes" not in template["spec"], "the user's own template stays as it is"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpusPerNode": 0}, "gpusPerNode"),
        ({"template": {"spec": {}}}, "no container"),
        ({"sizes": {"minBytes": 8, "maxBytes": 4}}, "below maxBytes"),
        ({"timeout": "soon"}, "spec.timeout"),
        ({"windows": [{"from": "24:00", "to": "06:00"}]}, "1440"),
        ({"collectives": ["gossip"]}, "gossip"),
    ],
)
def test_what_cannot_be_meant_is_said_by_its_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_benchmark(**changes)
