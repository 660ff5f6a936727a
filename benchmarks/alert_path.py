"""How long it takes from an XID in the driver until somebody is notified.

The path is that of ``tests/alerts/alert_path.py``, in which only the driver is made up. XIDs come one at a time at
moments that are independent of readings, scrapes and evaluations; each is of another GPU or code, so that each is an
alert of its own. Intervals are those of the chart's values and of the rules; Prometheus' own interval of evaluations
is the operator's default.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.processes import wait_for

from kopt.core.alerts.catalogue import alert_rules
from tests.alerts.alert_path import running_path

GPUS = 8
CODES = (48, 63, 64, 74, 79, 94, 95, 119, 120)
ALERT = "KoptGpuXidFatal"
EVALUATE_S = 30
VALUES = Path(__file__).parents[1] / "deploy" / "chart" / "values.yaml"


def main() -> int:
    # The agent runs in a folder of its own.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths if path)
    values = yaml.safe_load(VALUES.read_text())
    telemetry, monitoring = values["telemetry"], values["monitoring"]
    times = {
        "read_s": telemetry["intervalSeconds"],
        "fault_read_s": telemetry["faultIntervalSeconds"],
        "scrape_s": _seconds(monitoring["interval"]),
        "fault_scrape_s": _seconds(monitoring["faultInterval"]),
        "evaluate_s": EVALUATE_S,
    }
    (rule,) = (rule for rule in alert_rules() if rule.alert == ALERT)
    print("| XIDs looked for, scraped, evaluated every | XIDs | notified after, P50 | P95 | P99 | slowest |")
    print("|---|---|---|---|---|---|")
    for name, changed, count in (("the chart's", {}, 32), ("no faultInterval", {"fault_scrape_s": 0}, 8)):
        chosen = times | changed
        steps_s = [chosen["fault_read_s"], chosen["fault_scrape_s"] or chosen["scrape_s"], _seconds(rule.every)]
        took = sorted(_measured(chosen, sum(steps_s), count))
        cells = [f"{took[min(len(took) - 1, int(share * len(took)))]:.1f} s" for share in (0.5, 0.95, 0.99)]
        every = ", ".join(f"{step_s} s" for step_s in steps_s)
        print(f"| {every} ({name}) | {len(took)} | {' | '.join(cells)} | {took[-1]:.1f} s |", flush=True)
    return 0


def _seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


def _measured(times: Mapping[str, int], longest_s: int, count: int) -> list[float]:
    draws = random.Random(7)
    events = draws.sample([(gpu, code) for gpu in range(GPUS) for code in CODES], count)
    took = []
    with tempfile.TemporaryDirectory() as folder, running_path(Path(folder), gpus=GPUS, **times) as path:
        wait_for(lambda: "kopt_gpu_up" in path.metrics(), what="the agent reads the GPUs")
        for gpu, code in events:
            time.sleep(draws.uniform(0, longest_s))
            begin_s, before = time.time(), len(path.webhook.received)
            path.devices.xid(gpu, code)
            wait_for(
                lambda before=before: path.webhook.received[before:],  # type: ignore[misc]
                timeout_s=300,
                what="it is notified",
            )
            at_s, document = path.webhook.received[before]
            (item,) = document["alerts"]
            assert (item["labels"]["gpu"], item["labels"]["xid"]) == (f"{gpu}", f"{code}")
            assert item["labels"]["alertname"] == ALERT
            took.append(at_s - begin_s)
    return took
