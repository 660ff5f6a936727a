"""Requests for parts of MI300X with and without modes: ``python -m benchmarks amd-modes``.

Mixes are drawn at random (Dirichlet), each for itself and as a mix that turns into another; seeds below 1000 are for
choosing by, those of the report are above.
"""

import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.tables import markdown
from kopt.simulator.amd_modes import DIES, ModeRun, ModeStream, Way, replay_modes

_NODES, _MIXES, _FIRST = 12, 6, 1000
_WAYS: tuple[Way, ...] = ("whole", "static", "idle", "drain")


def main(arguments: Sequence[str] = ()) -> int:
    first = int(arguments[0]) if arguments else _FIRST
    rows: list[tuple[str, ...]] = []
    for load in (0.8, 1.0):
        for label, turns in (("one mix", 1), ("a mix that turns", 2)):
            runs: dict[Way, list[ModeRun]] = {way: [] for way in _WAYS}
            for seed in range(first, first + _MIXES):
                random = np.random.default_rng(seed)
                mixes = [dict(zip(DIES, random.dirichlet(np.ones(len(DIES))), strict=True)) for _ in range(turns)]
                stream = ModeStream(_NODES, mixes, load)
                for way in _WAYS:
                    runs[way].append(replay_modes(stream, way, seed))
            rows.append((f"{load:g}", label, *(_words(runs[way]) for way in _WAYS), _changes(runs["drain"])))
    heads = (
        "load",
        "requests",
        "not divided",
        "divided once",
        "idle nodes change",
        "with draining",
        "changes; evictions",
    )
    print(markdown(heads, rows))
    return 0


def _words(runs: Sequence[ModeRun]) -> str:
    accepted, used = (100 * np.mean([getattr(run, name) for run in runs]) for name in ("accepted", "used"))
    return f"{accepted:.1f}; {used:.0f}"


def _changes(runs: Sequence[ModeRun]) -> str:
    changes, evictions = (np.mean([getattr(run, name) for run in runs]) for name in ("changes", "evictions"))
    return f"{changes:.0f}; {evictions:.0f}; {100 * np.mean([run.lost for run in runs]):.2f} % lost"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
