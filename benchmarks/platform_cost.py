"""What each process of the platform costs before it does anything: import time and resident memory.

The control plane's modules stand beside the serving and training ones, so that a heavy import in a light process shows.
"""

import statistics
import subprocess
import sys

MODULES = {
    "client of the endpoint": "kopt.serving.client.client",
    "command line": "kopt.cli.main",
    "controllers": "kopt.controllers",
    "agents": "kopt.agents",
    "policies": "kopt.policies.lending.policy",
    "pages": "kopt.dashboard.app",
    "demand predictor": "kopt.models.demand.predictor",
    "serving application": "kopt.serving.endpoint.app",
    "training pipeline": "kopt.training.pipeline.run",
}
_RUNS = 3
_PROBE = """
import resource, time
begin = time.process_time()
import {module}
print(time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(module: str) -> tuple[float, float]:
    """Median CPU seconds to import ``module`` in a fresh interpreter, and its peak resident MiB."""
    samples = []
    for _ in range(_RUNS):
        command = [sys.executable, "-P", "-c", _PROBE.format(module=module)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, mebibytes = map(float, done.stdout.split())
        samples.append((seconds, mebibytes))
    return statistics.median(s for s, _ in samples), statistics.median(m for _, m in samples)


def main() -> int:
    print("| process | module | CPU seconds to import | resident MiB |\n|---|---|---|---|")
    for name, module in MODULES.items():
        seconds, mebibytes = measure(module)
        print(f"| {name} | `{module}` | {seconds:.2f} | {mebibytes:.0f} |", flush=True)
    return 0
