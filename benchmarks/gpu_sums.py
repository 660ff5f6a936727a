"""How fast Prometheus adds up a cluster of 1,250 nodes with 8 GPUs: from the series of each GPU, and from the sums that
the chart's rules record, in one run of one Prometheus.

It scrapes what the telemetry agents and kube-state-metrics would show, and evaluates all of the product's rules. Both
ways are asked in turn, and have to give the same.
"""

import json
import math
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.processes import wait_for
from exposition_server import serving
from prometheus_server import RunningPrometheus

from kopt.core.alerts.catalogue import rule_groups
from kopt.data.demand.prometheus import Server
from kopt.data.gpu_hours import read_gpu_hours

NODES, GPUS, HELD = 1250, 8, 6
NAMESPACES = 20
EVERY_S = 30
SPAN_S = 120
ROUNDS = 30
_BUSY, _SUM, _COUNT = "kopt_gpu_busy_ratio{pod!=''}", "node:kopt_gpu_busy_ratio:sum", "node:kopt_gpu_busy_ratio:count"
_REQUESTS = "kube_pod_container_resource_requests{resource='nvidia_com_gpu', node!=''}"
PAIRS = {
    "mean busy of the cluster": (f"avg({_BUSY})", f"sum({_SUM}) / sum({_COUNT})"),
    "whole GPUs that are busy": (f"sum({_BUSY})", f"sum({_SUM})"),
    "median GPU": (
        f"quantile(0.5, {_BUSY})",
        "histogram_quantile(0.5, sum by (le) (namespace:kopt_gpu_busy_ratio:bucket))",
    ),
    "mean busy by namespace": (
        f"avg by (namespace) ({_BUSY})",
        "namespace:kopt_gpu_busy_ratio:sum / on (namespace) namespace:kopt_gpu_busy_ratio:bucket{le='+Inf'}",
    ),
    "GPUs of pods by namespace": (
        f"sum by (namespace) ({_REQUESTS})",
        "sum by (namespace) (namespace_kind_queue:kopt_gpus_allocated:sum)",
    ),
    "busy GPUs by kind of job": (
        f"sum by (owner_kind) ({_BUSY} * on (namespace, pod) group_left (owner_kind) kube_pod_owner)",
        "sum by (kind) (namespace_kind_queue:kopt_gpu_busy_ratio:sum)",
    ),
    "power by node, the ten highest": (
        "topk(10, sum by (node) (kopt_gpu_power_watts))",
        "topk(10, node:kopt_gpu_power_watts:sum)",
    ),
}
_MEDIAN_ERROR = 0.05
"""A bucket of the histogram: that much its percentiles may differ."""


def main() -> int:
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        target = parts.enter_context(serving([*_telemetry(), *_objects()]))
        (folder / "rules.yaml").write_text(json.dumps({"groups": rule_groups()}))
        prometheus = RunningPrometheus(folder, configuration=_configuration(target))
        parts.callback(prometheus.stop)
        last = PAIRS["power by node, the ten highest"][1]
        wait_for(lambda: _values(prometheus.url, last), timeout_s=300, what="rules are evaluated")
        time.sleep(SPAN_S)
        print(f"{NODES} nodes x {GPUS} GPUs; milliseconds until the last byte, median and highest of {ROUNDS}:\n")
        print("| question | each GPU, now | recorded, now | each GPU, 5 points | recorded, 5 points | difference |")
        print("|---|---|---|---|---|---|")
        slowest = max(_compared(prometheus.url, name, *pair) for name, pair in PAIRS.items())
        print(f"\nslowest median of a recorded one, now: {slowest:.1f} ms")
        print(
            "evaluating rules, s: "
            + ", ".join(f"{name} {spent_s:.2f}" for name, spent_s in _evaluation(prometheus.url))
        )
        with Server(prometheus.url) as server:
            begin_s = time.perf_counter()
            history = read_gpu_hours(server, SPAN_S)
        efficiencies = [hours.efficiency for hours in history.by_workload.values()]
        print(f"kopt efficiency reads {len(efficiencies)} workloads in {time.perf_counter() - begin_s:.2f} s")
    return 0


def _compared(url: str, name: str, raw: str, recorded: str) -> float:
    """Prints a row; the median of the recorded one in milliseconds."""
    took: dict[tuple[str, bool], list[float]] = {}
    for query in (raw, recorded):
        _get(url, query)
    for _ in range(ROUNDS):
        for query in (raw, recorded):
            for is_range in (False, True):
                begin_s = time.perf_counter()
                _get(url, query, is_range=is_range)
                took.setdefault((query, is_range), []).append((time.perf_counter() - begin_s) * 1e3)
    answers = [_values(url, query) for query in (raw, recorded)]
    # Equal values make any ten of the nodes the highest, so values are compared.
    difference = max(abs(left - right) for left, right in zip(*answers, strict=True))
    if difference > (_MEDIAN_ERROR if "quantile" in raw else 1e-6 * max(1.0, *answers[0])):
        raise AssertionError(f"{name}: {answers[0][:3]} is not {answers[1][:3]}")
    cells = [took[query, is_range] for is_range in (False, True) for query in (raw, recorded)]
    texts = [f"{statistics.median(cell):.1f}, {max(cell):.0f}" for cell in cells]
    print(f"| {name} | {' | '.join(texts)} | {difference:.2g} |", flush=True)
    return statistics.median(took[recorded, False])


def _pods() -> Iterator[tuple[int, int, str, str]]:
    """Node, GPU, namespace and name of each; a GPU each."""
    for node in range(NODES):
        for gpu in range(HELD):
            yield node, gpu, f"team-{(node * 3 + gpu) % NAMESPACES}", f"p-{node}-{gpu}"


def _telemetry() -> Iterator[str]:
    held = {(node, gpu): (namespace, pod) for node, gpu, namespace, pod in _pods()}
    for metric in (
        "kopt_gpu_busy_ratio",
        "kopt_gpu_power_watts",
        "kopt_gpu_memory_used_bytes",
        "kopt_gpu_memory_total_bytes",
    ):
        yield f"# TYPE {metric} gauge"
        for node in range(NODES):
            for gpu in range(GPUS):
                namespace, pod = held.get((node, gpu), ("", ""))
                own = f'node="n{node}",gpu="{gpu}",uuid="GPU-{node}-{gpu}",model="H100"'
                labels = f'{own},namespace="{namespace}",pod="{pod}"'
                yield f"{metric}{{{labels}}} {(math.sin(node * GPUS + gpu) + 1) / 2:.4f}"


def _objects() -> Iterator[str]:
    """What kube-state-metrics shows."""
    kinds = ("Job", "ReplicaSet", "PyTorchJob", "StatefulSet")
    of_pods: dict[str, list[str]] = {"requests": [], "owner": [], "phase": []}
    for node, gpu, namespace, pod in _pods():
        own = f'namespace="{namespace}",pod="{pod}"'
        resource = 'container="main",resource="nvidia_com_gpu",unit="integer"'
        of_pods["requests"].append(f'kube_pod_container_resource_requests{{{own},node="n{node}",{resource}}} 1')
        owner = f'owner_kind="{kinds[gpu % 4]}",owner_name="w",owner_is_controller="true"'
        of_pods["owner"].append(f"kube_pod_owner{{{own},{owner}}} 1")
        of_pods["phase"].append(f'kube_pod_status_phase{{{own},phase="Running"}} 1')
    for lines in of_pods.values():
        yield f"# TYPE {lines[0].partition('{')[0]} gauge"
        yield from lines
    for what in ("capacity", "allocatable"):
        yield f"# TYPE kube_node_status_{what} gauge"
        yield from (
            f'kube_node_status_{what}{{node="n{node}",resource="nvidia_com_gpu"}} {GPUS}' for node in range(NODES)
        )


def _configuration(target: str) -> str:
    return f"""
global: {{scrape_interval: {EVERY_S}s, scrape_timeout: {EVERY_S}s, evaluation_interval: {EVERY_S}s}}
rule_files: [rules.yaml]
scrape_configs:
- job_name: cluster
  honor_labels: true
  static_configs: [{{targets: ['{target}']}}]
- job_name: prometheus
  static_configs: [{{targets: ['PROMETHEUS']}}]
"""


def _get(url: str, query: str, *, is_range: bool = False) -> bytes:
    now_s = time.time()
    path, more = "query", {}
    if is_range:
        path, more = "query_range", {"start": f"{now_s - SPAN_S}", "end": f"{now_s}", "step": f"{EVERY_S}"}
    with urllib.request.urlopen(
        f"{url}/api/v1/{path}?{urllib.parse.urlencode({'query': query, **more})}", timeout=60
    ) as answer:
        return bytes(answer.read())


def _values(url: str, query: str) -> list[float]:
    return sorted(float(item["value"][1]) for item in json.loads(_get(url, query))["data"]["result"])


def _evaluation(url: str) -> Iterator[tuple[str, float]]:
    """How many seconds the rules of each group took last, sums apart from what they are made of."""
    with urllib.request.urlopen(f"{url}/api/v1/rules", timeout=10) as answer:
        groups = json.loads(answer.read())["data"]["groups"]
    rules = [(group["name"], rule) for group in groups for rule in group["rules"]]
    spent_s: dict[str, float] = {}
    for name, rule in rules:
        is_sum = rule["type"] == "recording" and not rule["name"].startswith("kopt:")
        key = f"{name}, sums" if is_sum else name
        spent_s[key] = spent_s.get(key, 0.0) + rule["evaluationTime"]
    return iter(sorted(spent_s.items()))


if __name__ == "__main__":
    raise SystemExit(main())
