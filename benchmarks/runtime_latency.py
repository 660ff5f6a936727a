"""Latency of ``/v1/runtime`` through real Ray Serve and its HAProxy, warm, beside a floor in the same run.

The endpoint has been sent ``RUNS`` runs of a generated cluster (eight queues, names and users, 400 of them still
running). One client asks at a fixed rate about another job each time, in turn with the floor (``/healthz``), as
``benchmarks.sizing_latency`` does: before it runs, while it runs, and with the steps of its log. "In the replica" is
not told by these answers. Prints Markdown; returns 1 when the target is missed.

    python -P -m benchmarks runtime-latency
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.sizing_latency import RATE, ROUNDS, WARM_UP, Row, asked
from benchmarks.tables import markdown

RUNS, RUNNING = 10_000, 400
RUNTIME = "/v1/runtime"
TARGET_P99_MS = 10.0
_SPAN_S = 30 * 86_400.0
_BATCH = 2_000
BEFORE, WHILE, STEPS = "before it runs", "while it runs", "with the steps of its log"


def main() -> int:
    """Print the table; 0 when every case reaches the target."""
    from kopt.core.settings import Settings
    from kopt.serving.endpoint import deploy

    now_s = time.time()
    runs = _runs(random.Random(5), now_s)
    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as folder:
        settings = Settings(home=Path(folder), api_port=0)
        deploy.prepare_environment(settings)
        with deploy.running(settings) as running:
            first_s = _sent(running.url, runs, now_s)
            rows = asked(running.url, RUNTIME, _bodies(runs, now_s), "", ())
    print(
        f"{RUNS:,} runs of 8 queues known; the first answer after a start took {first_s:.1f} s. {RATE} requests/s, all "
        f"cases in turn on one connection; target: P99 ≤ {TARGET_P99_MS:g} ms.\n"
    )
    print(markdown(("case", "P50 ms", "P99 ms", "× the floor", "reached"), [_line(row, rows[0]) for row in rows]))
    return 0 if all(row.p99_ms <= TARGET_P99_MS for row in rows[1:]) else 1


def _line(row: Row, floor: Row) -> tuple[str, ...]:
    ratio = f"{row.p50_ms / floor.p50_ms:.1f} / {row.p99_ms / floor.p99_ms:.1f}"
    reached = "" if row is floor else "yes" if row.p99_ms <= TARGET_P99_MS else "no"
    return row.name, f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", ratio, reached


def _runs(rng: random.Random, now_s: float) -> list[dict[str, Any]]:
    """Starts over a month; the last of them still run."""
    result = []
    for number in range(RUNS):
        started_s = now_s - _SPAN_S + number * (_SPAN_S - 3600) / RUNS
        ended_s = None if number >= RUNS - RUNNING else min(now_s, started_s + rng.lognormvariate(8.5, 1.5))
        kind = {"queue": f"queue-{rng.randrange(8)}", "gpus": rng.choice((1, 1, 2, 4, 8, 16))}
        named = {"name": f"train-{rng.randrange(60)}", "user": f"user-{rng.randrange(30)}"}
        result.append({"job": f"job-{number}", "started_s": started_s, "ended_s": ended_s} | kind | named)
    return result


def _sent(url: str, runs: list[dict[str, Any]], now_s: float, within_s: float = 120.0) -> float:
    """Seconds that the first answer took, once the runs are there and the model is."""
    import httpx

    headers = {"x-kopt-deadline-ms": "60000"}
    with httpx.Client(base_url=url, trust_env=False, timeout=70.0, headers=headers) as http:
        end_s = time.monotonic() + within_s
        for at in range(0, len(runs), _BATCH):
            http.post(f"{RUNTIME}/runs", json={"runs": runs[at : at + _BATCH]}).raise_for_status()
        began_s = time.perf_counter()
        while (reply := http.post(RUNTIME, json=_question(runs[0], now_s))).status_code != httpx.codes.OK:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{url} gives no run time: {reply.text[:300]}")
            time.sleep(0.2)
        return time.perf_counter() - began_s


def _question(run: dict[str, Any], now_s: float) -> dict[str, Any]:
    return {name: run[name] for name in ("queue", "gpus", "name", "user")} | {"at_s": now_s}


def _bodies(runs: list[dict[str, Any]], now_s: float) -> dict[str, list[str]]:
    rng = random.Random(6)
    running = runs[-RUNNING:]
    result: dict[str, list[str]] = {BEFORE: [], WHILE: [], STEPS: []}
    for number in range(WARM_UP + ROUNDS):
        result[BEFORE].append(json.dumps(_question(rng.choice(runs), now_s)))
        run = rng.choice(running)
        of_run = _question(run, now_s) | {"job": run["job"], "started_s": run["started_s"]}
        result[WHILE].append(json.dumps(of_run))
        steps = [rng.uniform(0.8, 1.2) for _ in range(20)]
        progress = {"step": number + 1, "steps": 5_000, "at_s": now_s, "step_seconds": steps}
        result[STEPS].append(json.dumps(of_run | {"progress": progress}))
    return result


if __name__ == "__main__":
    sys.exit(main())
