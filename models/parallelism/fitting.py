"""The efficiency's parameters from measured step times: damped least squares of logarithms around the priors.

Families of models, not rows, are what is sampled: each row weighs by the root of how many its family has, and errors
are those on families that were left out.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.parallelism.communication import ClusterDescription, Wires, step_communication
from kopt.models.parallelism.efficiency import PRIORS, Efficiency, Numbers, Table, parts_of, sum_of_parts
from kopt.models.parallelism.measured_steps import MeasuredStep
from kopt.models.parallelism.step_time import StepRow, chip_of, step_row
from kopt.models.parallelism.work import step_work

_NAMES = tuple(PRIORS)
_USUAL_ERROR = 0.1
"""Errors of logarithms beyond it count by their size rather than its square."""
_PRIOR_WEIGHT = 0.15
"""A deviation of one standard deviation of a prior costs as much as one family's error of so much."""
_DIFFERENCE, _LONGEST_STEP = 1e-4, 0.5
_ROUNDS, _ATTEMPTS = 25, 8
_PROBABILITY = 0.8
_SEVERAL = 4


@dataclass(frozen=True)
class HeldOut:
    """Logarithms of predicted by measured times, by a fit without the row's family."""

    steps: tuple[MeasuredStep, ...]
    rows: tuple[StepRow, ...]
    errors: Numbers


def rows_of(steps: Sequence[MeasuredStep], bandwidth: BandwidthPredictor) -> tuple[StepRow, ...]:
    """Measured steps as questions."""
    wires: dict[ClusterDescription, Wires] = {}
    rows = []
    for step in steps:
        on = wires.setdefault(step.cluster, Wires(step.cluster, bandwidth))
        communication = step_communication(step.plan, on)
        rows.append(step_row(step.plan, step.cluster, step_work(step.plan), communication, step.matmul))
    return tuple(rows)


def fit(steps: Sequence[MeasuredStep], bandwidth: BandwidthPredictor) -> Efficiency:
    """Parameters from all steps, spreads from families left out in turn. Raises ValueError without two families."""
    if len({step.family for step in steps}) < 2:
        raise ValueError("step times of two families of models or more are needed")
    rows = rows_of(steps, bandwidth)
    held = held_out(steps, rows, lambda step: step.family)
    small = np.array([row.small for row in rows])
    parameters = fit_parameters(steps, rows)
    gpus = frozenset(chip_of(step.cluster.gpu) for step in steps)
    own = _own_spread(held, ~small)
    return Efficiency(parameters, _spread(held, ~small), _spread(held, small), own, gpus)


def held_out(steps: Sequence[MeasuredStep], rows: Sequence[StepRow], group: Callable[[MeasuredStep], str]) -> HeldOut:
    """Every step answered by a fit without its group."""
    groups = np.array([group(step) for step in steps])
    errors = np.zeros(len(steps))
    for name in sorted(set(groups.tolist())):
        others = [index for index in range(len(steps)) if groups[index] != name]
        own = [index for index in range(len(steps)) if groups[index] == name]
        parameters = fit_parameters([steps[index] for index in others], [rows[index] for index in others])
        errors[own] = errors_of(parameters, [steps[index] for index in own], [rows[index] for index in own])
    return HeldOut(tuple(steps), tuple(rows), errors)


def errors_of(parameters: Mapping[str, float], steps: Sequence[MeasuredStep], rows: Sequence[StepRow]) -> Numbers:
    """Logarithms of predicted by measured times."""
    predicted = sum_of_parts(parts_of(parameters, Table.of(rows)))
    errors: Numbers = np.log(predicted) - np.log([step.seconds for step in steps])
    return errors


def family_weights(steps: Sequence[MeasuredStep]) -> Numbers:
    """Weights with which every family counts the same."""
    count = Counter(step.family for step in steps)
    return np.array([1 / count[step.family] for step in steps])


def quantile(values: Numbers, weights: Numbers, at: float) -> float:
    """The smallest value that ``at`` of the weight does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(len(values) - 1, int(np.searchsorted(reached, at)))])


def _spread(held: HeldOut, which: NDArray[np.bool_]) -> float:
    if not which.any():
        return math.log(2.0)
    selected = [step for step, use in zip(held.steps, which, strict=True) if use]
    return quantile(np.abs(held.errors[which]), family_weights(selected), _PROBABILITY)


def _own_spread(held: HeldOut, which: NDArray[np.bool_]) -> float:
    """Of errors around the median of their family, where a family has enough steps to have one."""
    families: dict[str, list[float]] = defaultdict(list)
    for step, error, use in zip(held.steps, held.errors.tolist(), which, strict=True):
        if use:
            families[step.family].append(error)
    several = [np.array(errors) for errors in families.values() if len(errors) >= _SEVERAL]
    if not several:
        return _spread(held, which)
    around = np.concatenate([np.abs(errors - np.median(errors)) for errors in several])
    weights = np.concatenate([np.full(len(errors), 1 / len(errors)) for errors in several])
    return quantile(around, weights, _PROBABILITY)


def fit_parameters(steps: Sequence[MeasuredStep], rows: Sequence[StepRow]) -> dict[str, float]:
    """Levenberg-Marquardt on the logarithms of parameters, robust against single wrong rows."""
    table = Table.of(rows)
    measured = np.log([step.seconds for step in steps])
    weights = np.sqrt(family_weights(steps))
    centre = np.array([math.log(PRIORS[name][0]) for name in _NAMES])
    precision = (_PRIOR_WEIGHT / np.array([PRIORS[name][1] for name in _NAMES])) ** 2

    def errors(logs: Numbers) -> Numbers:
        named = dict(zip(_NAMES, np.exp(logs).tolist(), strict=True))
        lacking: Numbers = np.log(sum_of_parts(parts_of(named, table))) - measured
        return lacking

    def cost(lacking: Numbers, logs: Numbers) -> float:
        soft = 2 * _USUAL_ERROR**2 * (np.sqrt(1 + (lacking / _USUAL_ERROR) ** 2) - 1)
        return float(weights @ soft + precision @ (logs - centre) ** 2)

    logs, damping = centre.copy(), 1e-2
    lacking = errors(logs)
    least = cost(lacking, logs)
    for _ in range(_ROUNDS):
        moved = [errors(logs + _DIFFERENCE * unit) for unit in np.eye(len(logs))]
        slopes = np.stack([(each - lacking) / _DIFFERENCE for each in moved], axis=1)
        robust = weights / np.sqrt(1 + (lacking / _USUAL_ERROR) ** 2)
        curvature = slopes.T @ (robust[:, None] * slopes) + np.diag(precision)
        gradient = slopes.T @ (robust * lacking) + precision * (logs - centre)
        for _ in range(_ATTEMPTS):
            step = -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
            tried = logs + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            result = errors(tried)
            if cost(result, tried) < least:
                break
            damping *= 4
        else:
            break
        before, least = least, cost(result, tried)
        logs, lacking, damping = tried, result, max(damping / 5, 1e-6)
        if before - least < 1e-5 * before:
            break
    return dict(zip(_NAMES, np.exp(logs).tolist(), strict=True))
