"""Logs as nccl-tests prints them between two nodes; run as a program it is rank 0 or 1 of a test.

``KOPT_NODES`` names the pair; a file ``SHARES`` has, by node, which share of the bandwidth its pairs keep, and lines
such as ``a,b never`` for what becomes of a pair: ``never`` ends, ``garbage``, ``cut``, ``broken`` (exit code 3).
"""

import os
import sys
import time
from pathlib import Path

GPUS, BETA_GBPS, ALPHA_US = 4, 92.0, 25.0


def log(
    nodes: tuple[str, str],
    gpus: int = GPUS,
    collective: str = "all_reduce",
    beta_gbps: float = BETA_GBPS,
    version: str = "2.27.3",
    wrong: int = 0,
) -> str:
    """Sizes from 64 KiB to 64 MiB of one run; ``beta_gbps`` is the bus bandwidth of large messages."""
    ranks = 2 * gpus
    factor = 2 * (ranks - 1) / ranks if collective == "all_reduce" else (ranks - 1) / ranks
    figure = "   time   algbw   busbw  #wrong"
    lines = [
        f"# Collective test starting: {collective}_perf",
        "# nThread 1 nGpus 1 minBytes 65536 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    for n in range(ranks):
        where = f"on {nodes[n // gpus]} device {n % gpus:2} [0000:{0x11 + n % gpus:02x}:00] AMD Instinct MI300X"
        lines.append(f"#  Rank {n:2} Group  0 Pid {4000 + n} {where}")
    lines += [
        f"NCCL version {version}+cuda12.9",
        "#",
        f"#       size         count      type   redop    root  {figure}  {figure}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
    ]
    total, count, size = 0.0, 0, 65536
    while size <= 67108864:
        taken = round(ALPHA_US + size * factor / beta_gbps / 1000, 2)
        algbw = size / taken / 1000
        figures = f"{taken:10.2f} {algbw:7.2f} {algbw * factor:7.2f} {wrong:7}"
        lines.append(f"{size:12} {size // 4:13}     float     sum      -1 {figures} {figures}")
        total, count, size = total + round(algbw * factor, 2), count + 1, size * 2
    lines += [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {total / count:.6g} ",
        "#",
        f"# Collective test concluded: {collective}_perf",
    ]
    return "\n".join(lines) + "\n"


def main(shares: Path) -> int:
    nodes = tuple(os.environ["KOPT_NODES"].split(","))
    if os.environ["KOPT_RANK"] != "0":
        # As sshd does: until somebody ends it.
        time.sleep(600)
    told = dict(line.split() for line in shares.read_text().splitlines())
    fate = told.get(",".join(nodes), "")
    if fate == "never":
        time.sleep(600)
    if fate == "broken":
        sys.stdout.write("NCCL WARN Cuda failure 'out of memory'\n")
        return 3
    share = min(float(told.get(name, 1.0)) for name in nodes)
    text = log(nodes, int(os.environ["KOPT_GPUS_PER_NODE"]), beta_gbps=BETA_GBPS * share)  # type: ignore[arg-type]
    time.sleep(float(told.get("seconds", 0.1)))
    sys.stdout.write({"garbage": "Segmentation fault\n", "cut": text[: text.index("# Out of")]}.get(fate, text))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
