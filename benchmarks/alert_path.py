"""How long it takes from an XID in the driver until somebody is notified.

The path is that of ``tests/alerts/alert_path.py``, in which only the driver is made up. XIDs come one at a time at
moments that are independent of readings, scrapes and evaluations; each is of another GPU or code, so that each is an
alert of its own.
"""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.processes import wait_for

from tests.alerts.alert_path import running_path

GPUS = 8
CODES = (48, 63, 64, 74, 79, 94, 95, 119, 120)
SETTINGS = ((1, 2, 2, 48), (2, 5, 5, 32), (10, 30, 30, 8))
"""Seconds between readings of the agent, scrapes and evaluations, and how many XIDs."""
ALERT = "KoptGpuXidFatal"


def main() -> int:
    # The agent runs in a folder of its own.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths if path)
    print("| readings, scrapes, evaluations every | XIDs | notified after, P50 | P95 | P99 | slowest |")
    print("|---|---|---|---|---|---|")
    for read_s, scrape_s, evaluate_s, count in SETTINGS:
        took = sorted(_measured(read_s, scrape_s, evaluate_s, count))
        cells = [f"{took[min(len(took) - 1, int(share * len(took)))]:.1f} s" for share in (0.5, 0.95, 0.99)]
        every = f"{read_s} s, {scrape_s} s, {evaluate_s} s"
        print(f"| {every} | {len(took)} | {' | '.join(cells)} | {took[-1]:.1f} s |", flush=True)
    return 0


def _measured(read_s: int, scrape_s: int, evaluate_s: int, count: int) -> list[float]:
    draws = random.Random(7)
    events = draws.sample([(gpu, code) for gpu in range(GPUS) for code in CODES], count)
    took = []
    with tempfile.TemporaryDirectory() as folder:
        times = {"read_s": read_s, "scrape_s": scrape_s, "evaluate_s": evaluate_s}
        with running_path(Path(folder), gpus=GPUS, **times) as path:
            wait_for(lambda: "kopt_gpu_up" in path.metrics(), what="the agent reads the GPUs")
            for gpu, code in events:
                time.sleep(draws.uniform(0, read_s + scrape_s + evaluate_s) / 2)
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
