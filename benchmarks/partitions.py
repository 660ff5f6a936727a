"""MIG partitions on a pool of GPUs: accepted requests and used slices, beside first fit, best fit and MFI.

``python -m benchmarks partitions``: 50 GPUs, Poisson arrivals, exponential stays, 20,000 requests for each of ten
seeds. The weights of the policy were chosen on the first three mixes with other seeds; the last
three were never looked at.
"""

import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.tables import markdown
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.policies.partitions.placement import POLICIES
from kopt.simulator.partitions import PartitionRun, PartitionStream, replay_all

_SEEDS = range(42, 52)
_GPUS = 50
_MOVES = 0.05
_MIXES: dict[str, tuple[str, dict[str, float]]] = {
    "all alike": ("h100-80gb", dict.fromkeys(("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"), 1)),
    "70 % 1g, 20 % 2g, 10 % 3g": ("h100-80gb", {"1g.10gb": 0.7, "2g.20gb": 0.2, "3g.40gb": 0.1}),
    "50 % 1g, 30 % 3g, 20 % 7g": ("h100-80gb", {"1g.10gb": 0.5, "3g.40gb": 0.3, "7g.80gb": 0.2}),
    "apart: 40 % 1g, 30 % 1g of 35 GB, 30 % 3g": ("h200", {"1g.18gb": 0.4, "1g.35gb": 0.3, "3g.71gb": 0.3}),
    "apart: 50 % 2g, 30 % 4g, 20 % 7g": ("a100-40gb", {"2g.10gb": 0.5, "4g.20gb": 0.3, "7g.40gb": 0.2}),
    "apart: 60 % 1g, 25 % 2g, 15 % 4g": ("a30", {"1g.6gb": 0.6, "2g.12gb": 0.25, "4g.24gb": 0.15}),
}


def main(arguments: Sequence[str] = ()) -> int:
    rows: list[tuple[object, ...]] = []
    for load in (0.85, 1.0, 1.2):
        for label, (model, mix) in _MIXES.items():
            stream = PartitionStream(mig_geometry(find_gpu(model)), _GPUS, mix, load)
            moved = PartitionStream(mig_geometry(find_gpu(model)), _GPUS, mix, load, _MOVES)
            runs = {name: replay_all(stream, [name], _SEEDS) for name in POLICIES}
            runs["kopt, moved"] = replay_all(moved, ["kopt"], _SEEDS)
            rows.append((f"{load:g}", label, *(_figures(runs[name]) for name in _ORDER)))
            print(f"{load:g} {label}", file=sys.stderr)
    print(markdown(("load", "mix", *_ORDER), rows))
    return 0


_ORDER = ("first-fit", "best-fit", "blocked-placements", "kopt", "kopt, moved")


def _figures(runs: Sequence[PartitionRun]) -> str:
    accepted, used = np.mean([run.accepted for run in runs]), np.mean([run.slices_used for run in runs])
    moves = np.mean([run.moves_per_request for run in runs])
    return f"{100 * accepted:.1f}; {100 * used:.0f}" + (f"; {moves:.3f}" if moves else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
