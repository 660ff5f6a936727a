"""Latency of ``/v1/sizing`` through real Ray Serve and its HAProxy at a fixed rate, beside a floor in the same run.

The floor is ``/healthz`` of the same application on the same connection. One client (a process of its own on the
standard library) sends the cases in turn, in an order that is dealt anew for every round, one request every
``1 / RATE`` seconds; what else the machine does meets them all alike. "Known trace": the endpoint was sent before what
the script said on a fake device; that is what the target is about. With formulas nothing was sent before. "In the
replica" is the time that the answer itself names. Run by ``python -P -m benchmarks serving``.
"""

import http.client
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RATE = 50
"""Requests a second, all cases together."""
WARM_UP, ROUNDS = 50, 1000
SIZING, FLOOR = "/v1/sizing", "/healthz"
TARGET_P99_MS = 10.0
_SCRIPT = "import torch\n" * 200

Body = Callable[[int], dict[str, Any]]


def _script(text: str) -> dict[str, Any]:
    return {"workload": {"script": text, "arguments": ["--batch-size", "32"]}}


def _same(_: int) -> dict[str, Any]:
    return _script(_SCRIPT)


def _another(number: int) -> dict[str, Any]:
    return _script(f"# {number}\n{_SCRIPT}")


def _pod(number: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "team/train:1",
        "command": ["python", "train.py", "--seed", str(number)],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"workload": {"metadata": {"annotations": {}}, "spec": {"containers": [container]}}}


def _sent(number: int) -> dict[str, Any]:
    return _script(f"# sent {number}\n{_SCRIPT}") | {"trace": trace()}


def _formulas(number: int) -> dict[str, Any]:
    line = (
        "torchrun pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
        f"--max-position-embeddings 2048 --micro-batch-size 4 --bf16 --save {number}"
    )
    return {"workload": line}


KNOWN: dict[str, Body] = {
    "known trace, the same script": _same,
    "known trace, another script each time": _another,
    "known trace, another pod each time": _pod,
}
"""What the target is about."""
OTHERS: dict[str, Body] = {"a trace sent with the question": _sent, "formulas, another command each time": _formulas}


@dataclass(frozen=True)
class Row:
    """One case, in milliseconds; ``without_model``: answers that were fallbacks, refusals or without the trace."""

    name: str
    p50_ms: float
    p99_ms: float
    replica_p50_ms: float
    replica_p99_ms: float
    without_model: int = 0

    @property
    def reached(self) -> bool:
        return self.p99_ms <= TARGET_P99_MS and not self.without_model


def trace() -> dict[str, Any]:
    """What the benchmark's scripts said on a fake device."""
    from kopt.core.units import GIB, Bytes
    from kopt.core.workload.sizing import MemoryBreakdown, Method, TraceCoverage
    from kopt.models.sizing.code import CodeEstimate
    from kopt.models.sizing.trace_summary import summary

    parts = MemoryBreakdown(Bytes(GIB), Bytes(GIB), Bytes(2 * GIB), activations=Bytes(4 * GIB))
    return summary(CodeEstimate(Method.ABSTRACT, TraceCoverage.FULL, Bytes(8 * GIB), Bytes(9 * GIB), parts))


def send_traces(url: str, within_s: float = 60.0) -> None:
    """Tell the endpoint what the scripts of all known cases said, once its sizing model answers."""
    import httpx

    said = {"trace": trace()}
    end_s = time.monotonic() + within_s
    with httpx.Client(base_url=url, trust_env=False, timeout=30.0, headers={"x-kopt-deadline-ms": "30000"}) as http:
        while http.post(SIZING, json=_same(0) | said).json()["fallback"]:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{url} loads no sizing model")
            time.sleep(0.2)
        for number in range(WARM_UP + ROUNDS):
            for body in (_another, _pod):
                http.post(SIZING, json=body(number) | said).raise_for_status()


def measure(url: str) -> list[Row]:
    """The floor first, then the cases in their order; ``send_traces`` comes before."""
    bodies = {name: [json.dumps(body(n)) for n in range(WARM_UP + ROUNDS)] for name, body in (KNOWN | OTHERS).items()}
    return asked(url, SIZING, bodies, "KNOWN_TRACE", KNOWN)


def asked(url: str, path: str, bodies: Mapping[str, list[str]], code: str, known: Container[str]) -> list[Row]:
    """The floor, then each case's bodies sent to ``path``; answers of ``known`` cases are to have a reason ``code``."""
    with_floor = {"floor: /healthz of the same application": [""] * (WARM_UP + ROUNDS)} | dict(bodies)
    job = {"url": url, "path": path, "code": code, "bodies": with_floor, "rate": RATE, "warm_up": WARM_UP}
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).resolve())],
        input=json.dumps(job),
        text=True,
        capture_output=True,
        check=True,
    )
    return [_row(name, found, known) for name, found in json.loads(done.stdout).items()]


def report(rows: Sequence[Row]) -> bool:
    """Print the table, with the floor's multiples; whether all known cases reach the target."""
    floor = rows[0]
    print(
        f"\nSizing: {RATE} requests/s, all cases in turn on one connection; target for known traces: P99 ≤ "
        f"{TARGET_P99_MS:g} ms.\n"
    )
    print("| case | P50 ms | P99 ms | × the floor | in the replica P50 / P99 | without the trace | reached |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = f"{row.p50_ms / floor.p50_ms:.1f} / {row.p99_ms / floor.p99_ms:.1f}"
        inside = "" if row is floor else f"{row.replica_p50_ms:.2f} / {row.replica_p99_ms:.2f}"
        verdict = "" if row.name not in KNOWN else "yes" if row.reached else "no"
        print(
            f"| {row.name} | {row.p50_ms:.2f} | {row.p99_ms:.2f} | {ratio} | {inside} | {row.without_model} | "
            f"{verdict} |"
        )
    return all(row.reached for row in rows if row.name in KNOWN)


def _row(name: str, found: dict[str, list[float]], known: Container[str]) -> Row:
    import numpy as np

    times = [np.quantile(np.array(found[one]) * 1000, [0.5, 0.99]) for one in ("wire", "inside")]
    wire, inside = ((float(p50), float(p99)) for p50, p99 in times)
    strange = sum(found["strange"]) if name in known else 0
    return Row(name, *wire, *inside, int(strange))


def client(job: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """All rounds over one connection; seconds by case."""
    address = urlsplit(job["url"])
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    found: dict[str, dict[str, list[float]]] = {
        name: {"wire": [], "inside": [], "strange": []} for name in job["bodies"]
    }
    dealt, names = random.Random(1), list(job["bodies"])
    due_s, rounds = time.perf_counter(), len(next(iter(job["bodies"].values())))
    for number in range(rounds):
        dealt.shuffle(names)
        for name in names:
            due_s = max(due_s + 1 / job["rate"], time.perf_counter())
            time.sleep(max(0.0, due_s - time.perf_counter()))
            taken = _ask(connection, job["path"], job["bodies"][name][number], job["code"])
            if number >= job["warm_up"]:
                for column, value in zip(found[name].values(), taken, strict=True):
                    column.append(value)
    return found


def _ask(connection: http.client.HTTPConnection, path: str, body: str, code: str) -> tuple[float, float, float]:
    began = time.perf_counter()
    if body:
        connection.request("POST", path, body.encode(), {"content-type": "application/json"})
    else:
        connection.request("GET", FLOOR)
    reply = connection.getresponse()
    content = reply.read()
    taken = time.perf_counter() - began
    document = json.loads(content)
    told = {one["code"] for one in document.get("reasons", ())}
    strange = reply.status != 200 or document.get("fallback") is True or (bool(code) and code not in told)
    return taken, float(document.get("seconds", 0.0)), float(strange)


if __name__ == "__main__":
    json.dump(client(json.load(sys.stdin)), sys.stdout)
