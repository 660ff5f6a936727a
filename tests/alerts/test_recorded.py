"""What recorded sums say of a small cluster, as promtool evaluates them."""

from pathlib import Path

import pytest
import yaml

from kopt.core.alerts.catalogue import rule_groups
from tests.alerts.test_rules import promtool

_GPU = 'resource="nvidia_com_gpu"'
_REQUESTS = "kube_pod_container_resource_requests"
SERIES = {
    # A training with two GPUs, a notebook that has one, a pod that waits for four, and one that has ended.
    f'{_REQUESTS}{{namespace="research",pod="train-0",node="a",container="c",{_GPU}}}': "2x60",
    f'{_REQUESTS}{{namespace="research",pod="notebook",node="b",container="c",{_GPU}}}': "1x60",
    f'{_REQUESTS}{{namespace="serving",pod="chat-x",node="",container="c",{_GPU}}}': "4x60",
    f'{_REQUESTS}{{namespace="serving",pod="done",node="b",container="c",{_GPU}}}': "8x60",
    'kube_pod_status_phase{namespace="serving",pod="done",phase="Succeeded"}': "1x60",
    'kube_pod_status_phase{namespace="research",pod="train-0",phase="Succeeded"}': "0x60",
    'kube_pod_owner{namespace="research",pod="train-0",owner_kind="Job",owner_is_controller="true"}': "1x60",
    'kube_pod_owner{namespace="research",pod="train-0",owner_kind="Other",owner_is_controller="false"}': "1x60",
    'kube_pod_owner{namespace="research",pod="notebook",owner_kind="",owner_is_controller=""}': "1x60",
    'kube_pod_owner{namespace="serving",pod="chat-x",owner_kind="ReplicaSet",owner_is_controller="true"}': "1x60",
    'kube_pod_labels{namespace="research",pod="train-0",label_kueue_x_k8s_io_queue_name="main"}': "1x60",
    f'kube_node_status_capacity{{node="a",{_GPU}}}': "8x60",
    f'kube_node_status_allocatable{{node="a",{_GPU}}}': "7x60",
    **{f'kube_node_status_{what}{{node="b",{_GPU}}}': "4x60" for what in ("capacity", "allocatable")},
    **{f'kube_node_status_{what}{{node="c",{_GPU}}}': "2x60" for what in ("capacity", "allocatable")},
    'kube_node_spec_unschedulable{node="c"}': "1x60",
    'kube_node_status_condition{node="b",condition="Ready",status="false"}': "0x60",
    'kopt_gpu_busy_ratio{node="a",gpu="0",namespace="research",pod="train-0"}': "0.9x60",
    'kopt_gpu_busy_ratio{node="a",gpu="1",namespace="research",pod="train-0"}': "0.6x60",
    'kopt_gpu_busy_ratio{node="a",gpu="2"}': "0x60",
    'kopt_gpu_busy_ratio{node="b",gpu="0",namespace="research",pod="notebook"}': "0.04x60",
    'kopt_gpu_power_watts{node="a",gpu="0"}': "700x60",
    'DCGM_FI_DEV_POWER_USAGE{Hostname="a",gpu="0"}': "699x60",
    'DCGM_FI_DEV_POWER_USAGE{Hostname="b",gpu="0"}': "300x60",
}
SUMS = {
    "node:kopt_gpus_installed:sum": {"a": 8.0, "b": 4.0, "c": 2.0},
    "node:kopt_gpus_available:sum": {"a": 7.0, "b": 4.0},
    "node:kopt_gpus_allocated:sum": {"a": 2.0, "b": 1.0},
    "node:kopt_gpu_busy_ratio:sum": {"a": 1.5, "b": 0.04},
    "node:kopt_gpu_busy_ratio:count": {"a": 2.0, "b": 1.0},
    "node:kopt_gpu_power_watts:sum": {"a": 700.0, "b": 300.0},
    "node:kopt_gpus_idle1h:count": {"b": 1.0},
}
JOB, BARE, SERVICE = (
    'kind="Job", namespace="research", queue="main"',
    'namespace="research"',
    'kind="ReplicaSet", namespace="serving"',
)
BY_WORKLOAD = {
    "kopt_gpus_requested:sum": {JOB: 2.0, BARE: 1.0, SERVICE: 4.0},
    "kopt_gpus_allocated:sum": {JOB: 2.0, BARE: 1.0},
    "kopt_gpu_busy_ratio:sum": {JOB: 1.5, BARE: 0.04},
    "kopt_gpu_busy_ratio:count": {JOB: 2.0, BARE: 1.0},
}


def _case(name: str, values: dict[str, float]) -> dict[str, object]:
    samples = [{"labels": f"{name}{{{labels}}}", "value": value} for labels, value in values.items()]
    return {"expr": name, "eval_time": "55m", "exp_samples": samples}


@pytest.mark.services
def test_sums_by_node_and_workload(tmp_path: Path) -> None:
    cases = [_case(name, {f'node="{node}"': value for node, value in values.items()}) for name, values in SUMS.items()]
    cases += [_case(f"namespace_kind_queue:{name}", values) for name, values in BY_WORKLOAD.items()]
    median = {"expr": "histogram_quantile(0.5, sum by (le) (namespace:kopt_gpu_busy_ratio:bucket))", "eval_time": "55m"}
    # Of 14 GPUs 11 can be used; three are held, and four more are asked for.
    cases += [_case("cluster:kopt_gpus_unavailable:sum", {"": 3.0}), _case("cluster:kopt_gpus_wanted:sum", {"": 4.0})]
    # Of .04, .6 and .9 the second, in the middle of its bucket, which ends at .6, as Prometheus interpolates.
    cases.append({**median, "exp_samples": [{"labels": "{}", "value": 0.575}]})
    evaluated(tmp_path, SERIES, cases)


def evaluated(folder: Path, series: dict[str, str], cases: list[dict[str, object]]) -> None:
    """As promtool does, with a sample a minute."""
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": cases,
            }
        ],
    }
    recorded = [group for group in rule_groups() if group["name"].startswith("kopt-recorded")]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": recorded}))
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "test.yaml", folder=folder)


def _request(pod: str, node: str, gpus: str, resource: str = "nvidia_com_gpu", **more: str) -> dict[str, str]:
    labels = {"namespace": "team", "pod": pod, "node": node, "container": "c", "resource": resource, **more}
    written = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return {f"{_REQUESTS}{{{written}}}": gpus}


def _offers(node: str, gpus: int, resource: str = "nvidia_com_gpu") -> dict[str, str]:
    return {
        f'kube_node_status_{what}{{node="{node}",resource="{resource}"}}': f"{gpus}x80"
        for what in ("capacity", "allocatable")
    }


def _busy(node: str, gpu: int, pod: str, values: str, partition: str = "") -> dict[str, str]:
    labels = f'node="{node}",gpu="{gpu}",partition="{partition}",namespace="team",pod="{pod}"'
    return {f"kopt_gpu_busy_ratio{{{labels}}}": values}


AGREEING: dict[str, tuple[dict[str, str], str, dict[str, float]]] = {
    "what pods have on a node that is lost is allocated, and not unavailable beside": (
        {
            **_offers("a", 8),
            **_offers("lost", 8),
            'kube_node_status_condition{node="lost",condition="Ready",status="unknown"}': "1x80",
            **_request("p", "a", "4x80"),
            **_request("q", "lost", "6x80"),
        },
        "cluster:kopt_gpus_unavailable:sum",
        {"": 2.0},
    ),
    "what they have there leaves free GPUs of other nodes to those who wait": (
        {
            **_offers("a", 8),
            **_offers("lost", 8),
            'kube_node_status_condition{node="lost",condition="Ready",status="unknown"}': "1x80",
            **_request("q", "lost", "8x80"),
            **_request("waits", "", "8x80"),
        },
        "cluster:kopt_gpus_wanted:sum",
        {"": 8.0},
    ),
    "without a node that takes pods nothing is free": (
        {**_offers("a", 8), 'kube_node_spec_unschedulable{node="a"}': "1x80", **_request("waits", "", "8x80")},
        "cluster:kopt_gpus_wanted:sum",
        {"": 0.0},
    ),
    "what one resource lacks is not taken from another": (
        {
            **_offers("a", 8),
            **_offers("a", 7, "nvidia_com_mig_1g_10gb"),
            **_request("p", "a", "6x80"),
            **_request("q", "a", "10x80", "nvidia_com_mig_1g_10gb"),
        },
        "node:kopt_gpus_free:sum",
        {'node="a"': 2.0},
    ),
    "two replicas of kube-state-metrics say the same": (
        {**_request("p", "a", "4x80", instance="x"), **_request("p", "a", "4x80", instance="y")},
        "node:kopt_gpus_allocated:sum",
        {'node="a"': 4.0},
    ),
    "replicas of shared GPUs that are called so count": (
        {**_offers("a", 32, "nvidia_com_gpu_shared"), **_request("p", "a", "3x80", "nvidia_com_gpu_shared")},
        "node:kopt_gpus_installed:sum - node:kopt_gpus_allocated:sum",
        {'node="a"': 29.0},
    ),
    "each partition of a GPU that a pod has is measured": (
        {**_busy("a", 0, "p", "0.5x80", "1"), **_busy("a", 0, "p", "0.7x80", "2")},
        "node:kopt_gpu_busy_ratio:count",
        {'node="a"': 2.0},
    ),
    "pods whose owners control nothing are in no sum less": (
        {
            **_request("p", "a", "4x80"),
            'kube_pod_owner{namespace="team",pod="p",owner_kind="Backup",owner_is_controller="false"}': "1x80",
        },
        "sum by (namespace) (namespace_kind_queue:kopt_gpus_allocated:sum)",
        {'namespace="team"': 4.0},
    ),
    "GPUs of pods that have ended are not held and idle": (
        {**_busy("a", 0, "p", "0x60 stale"), **_busy("a", 1, "p", "0x80")},
        "node:kopt_gpus_idle1h:count",
        {'node="a"': 1.0},
    ),
    "nor are those of pods that have just begun": (
        {**_busy("a", 0, "p", "0x70 stale"), **_busy("a", 0, "q", "_x71 0x9"), **_busy("a", 1, "p", "0x80")},
        "node:kopt_gpus_idle1h:count",
        {'node="a"': 1.0},
    ),
    "an exporter that is scraped twice draws power once": (
        {f'kopt_gpu_power_watts{{node="a",gpu="0",instance="{each}"}}': "700x80" for each in "xy"},
        "node:kopt_gpu_power_watts:sum",
        {'node="a"': 700.0},
    ),
}


@pytest.mark.services
@pytest.mark.parametrize("what", AGREEING)
def test_every_gpu_counts_once_and_as_what_it_is(what: str, tmp_path: Path) -> None:
    series, expr, values = AGREEING[what]
    samples = [{"labels": f"{{{labels}}}", "value": value} for labels, value in values.items()]
    if " " not in expr:
        samples = [{**each, "labels": f"{expr}{each['labels']}"} for each in samples]
    evaluated(tmp_path, series, [{"expr": expr, "eval_time": "78m", "exp_samples": samples}])
