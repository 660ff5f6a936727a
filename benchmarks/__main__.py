"""Runs the benchmarks: ``python -m benchmarks [NAME …]``; without a name all of them."""

import importlib
import sys

from kopt.models.predictors import predictor_names

BENCHMARKS = {name: f"benchmarks.{name}" for name in predictor_names()} | {
    "anomalies": "benchmarks.anomalies",
    "checkpoint-files": "benchmarks.checkpoint_files",
    "checkpoint-seeds": "benchmarks.checkpoint_seeds",
    "cost": "benchmarks.cost",
    "backfilling": "benchmarks.backfilling",
    "demand-stress": "benchmarks.demand_stress",
    "density": "benchmarks.density",
    "devices": "benchmarks.devices",
    "device-choices": "benchmarks.device_choices",
    "lending": "benchmarks.lending",
    "serving": "benchmarks.serving_latency",
    "gangs": "benchmarks.gangs",
    "health": "benchmarks.health",
    "framework-flags": "benchmarks.framework_flags",
    "gpu-map": "benchmarks.gpu_map",
    "alert-path": "benchmarks.alert_path",
    "gpu-sums": "benchmarks.gpu_sums",
    "gpu-telemetry": "benchmarks.gpu_telemetry",
    "ingest": "benchmarks.ingest",
    "decisions": "benchmarks.decisions",
    "extender": "benchmarks.extender",
    "extender-cluster": "benchmarks.extender_cluster",
    "meshes": "benchmarks.extender_meshes",
    "live-checkpoints": "benchmarks.live_checkpoints.run",
    "platform": "benchmarks.platform_cost",
    "partitions": "benchmarks.partitions",
    "amd-modes": "benchmarks.amd_modes",
    "partition-plans": "benchmarks.partition_plans",
    "placement": "benchmarks.placement",
    "preemption": "benchmarks.preemption",
    "priorities": "benchmarks.priorities",
    "widths": "benchmarks.widths",
    "order-reactions": "benchmarks.order_reactions",
    "published-commands": "benchmarks.published_commands",
    "drawn-commands": "benchmarks.drawn_commands",
    "queues": "benchmarks.queues",
    "reactions": "benchmarks.reactions",
    "proposed-reservations": "benchmarks.proposed_reservations",
    "reclaims": "benchmarks.reclaims",
    "replayed-day": "benchmarks.replayed_day",
    "replicas": "benchmarks.replicas",
    "reservations": "benchmarks.reservations",
    "rightsizing": "benchmarks.rightsizing",
    "runtime-latency": "benchmarks.runtime_latency",
    "runtime-telemetry": "benchmarks.runtime_telemetry",
    "suite": "benchmarks.suite_estimates",
    "sharing": "benchmarks.sharing",
    "shared-links": "benchmarks.shared_links",
    "spot": "benchmarks.spot",
    "start-times": "benchmarks.start_times",
    "staging": "benchmarks.staging",
    "staging-controller": "benchmarks.staging_controller",
    "step-time": "benchmarks.step_time",
    "topology": "benchmarks.topology_placement",
    "webhook": "benchmarks.webhook",
    "what-if": "benchmarks.what_if",
    "why": "benchmarks.why",
}
"""Every predictor has one of its own name."""


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    failures = 0
    for name in names or list(BENCHMARKS):
        print(f"\n## {name}\n", flush=True)
        failures += bool(importlib.import_module(BENCHMARKS[name]).main())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
