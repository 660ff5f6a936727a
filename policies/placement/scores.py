"""What ranks the nodes that can take a pod: one list, and how much each part counts.

A score is in GPUs: fragmentation is the usable GPUs that a placement costs; a weight says how many GPUs a whole unit
of another score is worth. Weight 0 keeps a score out whose source does not exist yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.node_selection import SelectionWeights
from kopt.core.scheduling.placement import PodRequest
from kopt.core.units import WHOLE_GPU
from kopt.policies.placement.state import FleetState

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NEGLIGIBLE = 1e-4
"""GPUs; prices below it are left out."""


@dataclass(frozen=True)
class Scored:
    """What the scores may look at: the rows that can take the pod, and the fragmentation loss of each (milli-GPU).

    ``broken`` (N, K) counts the sites of each size that the pod breaks up, ``prices`` (K,) are theirs in GPUs.
    """

    state: FleetState
    request: PodRequest
    rows: Ints
    loss: Floats
    broken: NDArray[np.int16]
    prices: Floats
    topology: Floats | float = 0.0
    """How well the best free GPUs of each row keep the topology preference, 0-1."""
    beside: Floats | float = 0.0
    """1 where a row has another replica of the pod's service."""


Score = Callable[[Scored], Floats | float]
"""One value per row, or one for all."""


def fragmentation(scored: Scored) -> Floats:
    """GPUs of expected fill that the placement takes away beyond the pod's own, negated."""
    return -scored.loss / WHOLE_GPU


def reserve(scored: Scored) -> Floats | float:
    """GPUs of room for pods on several GPUs that would be missing, negative."""
    priced = np.flatnonzero(scored.prices > NEGLIGIBLE)
    if not len(priced):
        return 0.0
    missing = np.zeros(len(scored.rows))
    for size in priced:
        missing -= scored.prices[size] * scored.broken[scored.rows, size]
    return missing


def topology(scored: Scored) -> Floats | float:
    """How well the best free GPUs keep the preferred topology; 0 where the node's is unknown."""
    return scored.topology


def apart(scored: Scored) -> Floats | float:
    """-1 for a node that has another replica of the pod's service: both would be gone with it."""
    return 0.0 - scored.beside


def utilisation(scored: Scored) -> Floats:
    """Idle share of the node's GPUs as measured, 0-1."""
    return 1 - scored.state.utilisation[scored.rows]


def cost(scored: Scored) -> Floats:
    """Cheaper nodes first: cost relative to the dearest among the candidates, -1 to 0."""
    costs = scored.state.cost[scored.rows]
    highest = costs.max(initial=0.0)
    relative: Floats = -costs / max(highest, 1e-12)
    return relative


def health(scored: Scored) -> Floats:
    """1 for a node without complaints."""
    return scored.state.health[scored.rows]


def fit(scored: Scored) -> Floats:
    """Best fit: the fuller node first; breaks ties."""
    state, rows = scored.state, scored.rows
    cpu = state.cpu_free_milli[rows] / max(1, state.largest_cpu_milli)
    gpu = state.gpu_free_total[rows] / (WHOLE_GPU * max(1, state.slots))
    fullness: Floats = -(cpu + gpu) / 2
    return fullness


def cpu_fit(scored: Scored) -> Floats | float:
    """For pods without GPUs: the node with the least CPU left first, so that large CPU requests still find room."""
    state, rows = scored.state, scored.rows
    if scored.request.gpus.count:
        return 0.0
    fullness: Floats = -state.cpu_free_milli[rows] / max(1, state.largest_cpu_milli)
    return fullness


SCORES: Mapping[str, Score] = {
    "fragmentation": fragmentation,
    "reserve": reserve,
    "topology": topology,
    "apart": apart,
    "utilisation": utilisation,
    "cost": cost,
    "health": health,
    "fit": fit,
    "cpu_fit": cpu_fit,
}


def weights_of(selection: SelectionWeights) -> Mapping[str, float]:
    """The weights of all scores, by the name in `SCORES`, under a NodeSelectionPolicy."""
    return {
        "fragmentation": 1.0,
        "reserve": 0.2,
        "topology": selection.topology,
        "apart": selection.distribution,
        "utilisation": selection.utilisation_history,
        "cost": 0.0,
        "health": selection.health,
        "fit": 1e-3,
        "cpu_fit": 0.2,
    }


WEIGHTS = weights_of(SelectionWeights())


def weigh(scored: Scored, weights: Mapping[str, float]) -> tuple[Floats, dict[str, Floats | float]]:
    """The weighted sum (rows,) and its parts. Raises ValueError for weights of unknown scores."""
    if unknown := set(weights) - set(SCORES):
        raise ValueError(f"no score {sorted(unknown)[0]!r}; there are {', '.join(SCORES)}")
    parts = {name: weight * SCORES[name](scored) for name, weight in weights.items() if weight}
    total = np.zeros(len(scored.rows))
    for part in parts.values():
        total += part
    return total, parts
