"""Step times of distributed training against published ones: ``published_step_times.csv``.

*Families held out*: a source's rows of one model are answered by a fit without them. *Sources held out*: all rows of
who measured are. Families kept apart, a quarter by the hash of their name, are answered by the shipped parameters,
which never saw them. *Small* steps are those whose micro-batches are so small that the host sets the pace: tests of
continuous integration, mostly; they are told apart as nobody pays for them.

``python -m benchmarks.step_time refit`` fits the shipped parameters again.
"""

import hashlib
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.hardware.peak_compute import peak_of_name
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.parallelism import efficiency
from kopt.models.parallelism.efficiency import Numbers, shipped_efficiency
from kopt.models.parallelism.fitting import errors_of, family_weights, fit, held_out, quantile, rows_of
from kopt.models.parallelism.measured_steps import MeasuredStep, read_measured_steps
from kopt.models.parallelism.step_time import StepRow
from kopt.models.parallelism.work import step_work
from kopt.models.registry.loading import SHIPPED

PUBLISHED = Path(__file__).with_name("published_step_times.csv")
_GOAL_MEDIAN, _GOAL_P90, _GOAL_TOP_THREE = 0.15, 0.35, 0.9
_TIED = 0.02
"""Steps of one source differ by as much from one day to another."""


def main(arguments: Sequence[str] = ()) -> int:
    every = [step for step in read_measured_steps(PUBLISHED) if step.stable]
    bandwidth = load_bandwidth(SHIPPED)
    made, apart = ([step for step in every if step.apart is kept] for kept in (False, True))
    if "refit" in arguments:
        return _refit(made)
    rows = rows_of(made, bandwidth)
    families = held_out(made, rows, lambda step: step.family).errors
    sources = held_out(made, rows, lambda step: step.organisation).errors
    apart_rows = rows_of(apart, bandwidth)
    shipped = errors_of(shipped_efficiency().parameters, apart, apart_rows)
    print(f"{len(made)} steps of {len({s.family for s in made})} families, {len(apart)} of families kept apart.\n")
    lines = []
    small_made = np.array([row.small for row in rows])
    known = _known_frameworks(made)
    for title, steps, asked, errors, of in (
        ("families held out", made, rows, families, np.ones(len(made), bool)),
        ("of them, frameworks of other families", made, rows, families, known),
        ("of them, a framework never seen", made, rows, families, ~known),
        ("sources held out", made, rows, sources, np.ones(len(made), bool)),
        ("kept apart", apart, apart_rows, shipped, np.ones(len(apart), bool)),
    ):
        own = "organisation" if title.startswith("sources") else "family"
        for small in (False, True):
            which = of & np.array([row.small is small for row in asked])
            if not which.any():
                continue
            selected = _of(steps, which)
            others = made if own == "organisation" else _of(made, small_made == small)
            answers = {
                "kopt": errors[which],
                "constant model FLOP rate": _constant_rate(selected, others, own),
                "nearest configuration": _nearest(selected, others, own),
            }
            lines += [_line(title, name, small, each, selected) for name, each in answers.items()]
    head = ("", "", "steps", "median error", "p90", "families alike: median", "p90", "80 % interval holds")
    print(markdown(head, lines) + "\n")
    for title, steps, asked, errors in (
        ("families held out", made, rows, families),
        ("kept apart", apart, apart_rows, shipped),
    ):
        for small in (False, True):
            which = np.array([row.small is small for row in asked])
            _tell_ranks(f"{title}{', small' * small}", _of(steps, which), errors[which])
    print(_by_family(made, rows, families))
    return 0


def _known_frameworks(steps: Sequence[MeasuredStep]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether other families were trained by the same framework."""
    families: dict[str, set[str]] = defaultdict(set)
    for step in steps:
        families[step.plan.framework].add(step.family)
    return np.array([len(families[step.plan.framework]) > 1 for step in steps])


def _refit(made: Sequence[MeasuredStep]) -> int:
    result = fit(made, load_bandwidth(SHIPPED))
    document = {
        "fitted_on": {
            "file": f"benchmarks/{PUBLISHED.name}",
            "sha256": hashlib.sha256(PUBLISHED.read_bytes()).hexdigest(),
            "steps": len(made),
            "families": len({step.family for step in made}),
        },
        "spread": _up(result.spread),
        "host_spread": _up(result.host_spread),
        "own_spread": _up(result.own_spread),
        "measured_gpus": sorted(result.measured_gpus),
        "parameters": {name: float(f"{value:.4g}") for name, value in result.parameters.items()},
    }
    target = Path(efficiency.__file__).with_name("efficiency.json")
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{target.name}: {document['fitted_on']}")
    return 0


def _up(spread: float) -> float:
    """Four digits, never fewer than held the steps that it was measured on."""
    return math.ceil(spread * 1e4) / 1e4


def _of(steps: Sequence[MeasuredStep], which: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[MeasuredStep]:
    return [step for step, use in zip(steps, which, strict=True) if use]


def _line(title: str, name: str, small: bool, errors: Numbers, steps: Sequence[MeasuredStep]) -> tuple[str, ...]:
    shares = np.abs(np.expm1(errors))
    weights = family_weights(steps)
    alone = np.ones(len(steps))
    shipped = shipped_efficiency()
    spread = shipped.host_spread if small else shipped.spread
    inside = f"{np.average(np.abs(errors) <= spread, weights=weights):.0%}" if name == "kopt" else "–"
    figures = [quantile(shares, each, at) for each in (alone, weights) for at in (0.5, 0.9)]
    goals = ("", "") if small else (f" (goal {_GOAL_MEDIAN:.0%})", f" (goal {_GOAL_P90:.0%})")
    texts = [f"{value:.1%}{goal if name == 'kopt' else ''}" for value, goal in zip(figures, goals * 2, strict=True)]
    return (f"{title}{', small' * small}", name, str(len(steps)), *texts, inside)


def _peak(step: MeasuredStep) -> float:
    peaks = peak_of_name(step.cluster.gpu)
    assert peaks is not None
    by_format = {"fp8": peaks.eight_bits, "mxfp8": peaks.eight_bits, "nvfp4": peaks.four_bits}
    return by_format.get(step.matmul, peaks.half)


def _flops_per_gpu(step: MeasuredStep) -> float:
    return step_work(step.plan).model_flops / step.plan.parallel.world


def _rate(step: MeasuredStep) -> float:
    """Model FLOPs utilisation as measured."""
    return _flops_per_gpu(step) / step.seconds / _peak(step)


def _constant_rate(steps: Sequence[MeasuredStep], others: Sequence[MeasuredStep], own: str) -> Numbers:
    """The median utilisation of the same GPU and format in other families, else of all others."""
    rates = [_rate(other) for other in others]
    errors = []
    for step in steps:
        rest = [(o, rate) for o, rate in zip(others, rates, strict=True) if getattr(o, own) != getattr(step, own)]
        alike = [rate for o, rate in rest if o.cluster.gpu == step.cluster.gpu and o.matmul == step.matmul]
        rate = statistics.median(alike or [rate for _, rate in rest])
        errors.append(np.log(_rate(step) / rate))
    return np.array(errors)


def _nearest(steps: Sequence[MeasuredStep], others: Sequence[MeasuredStep], own: str) -> Numbers:
    """The utilisation of the most alike configuration of another family: GPU and format first, then sizes."""
    rates, sizes = np.array([_rate(other) for other in others]), np.log2([_sizes(other) for other in others])
    kinds = [(o.cluster.gpu, o.matmul, o.plan.model.experts is None) for o in others]
    groups = np.array([getattr(other, own) for other in others])
    errors = []
    for step in steps:
        kind = (step.cluster.gpu, step.matmul, step.plan.model.experts is None)
        unlike = np.array([[10.0 * (a != b) for a, b in zip(kind, other, strict=True)] for other in kinds]).sum(axis=1)
        distance = unlike + np.abs(sizes - np.log2(_sizes(step))).sum(axis=1)
        distance[groups == getattr(step, own)] = np.inf
        errors.append(np.log(_rate(step) / rates[int(np.argmin(distance))]))
    return np.array(errors)


def _sizes(step: MeasuredStep) -> Numbers:
    plan, parallel = step.plan, step.plan.parallel
    return np.array(
        [
            plan.model.active_parameters(),
            plan.sequence,
            plan.micro_batch,
            plan.accumulation,
            parallel.tensor,
            parallel.pipeline,
            parallel.context,
            parallel.expert,
            parallel.data,
        ],
        dtype=float,
    )


def _tell_ranks(title: str, steps: Sequence[MeasuredStep], errors: Numbers) -> None:
    """Of groups in which one source measured several splits of one model and batch on as many GPUs."""
    for least in (2, 4):
        groups = [group for group in _groups(steps, errors) if len(group) >= least]
        if not groups:
            continue
        strict = [_best_of(group, 3) <= 0 for group in groups]
        tied = [_best_of(group, 3) <= _TIED for group in groups]
        lost = [_best_of(group, 1) for group in groups]
        print(
            f"{title}: in {len(groups)} groups of {least} splits or more the best measured is among the first three in "
            f"{np.mean(strict):.0%} (goal {_GOAL_TOP_THREE:.0%}), or within {_TIED:.0%} of it in {np.mean(tied):.0%}; "
            f"the first loses {np.median(lost):.1%} against the best at the median, {np.mean(lost):.1%} in the mean.\n"
        )


def _best_of(group: Mapping[object, tuple[float, float]], count: int) -> float:
    """How much longer the best of the first ``count`` by prediction takes than the best measured."""
    first = sorted(group.values(), key=lambda pair: pair[1])[:count]
    return min(measured for measured, _ in first) / min(measured for measured, _ in group.values()) - 1


def _groups(steps: Sequence[MeasuredStep], errors: Numbers) -> Iterator[dict[object, tuple[float, float]]]:
    """Measured and predicted seconds by split; the median where a split was measured again."""
    groups: dict[object, dict[object, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for step, error in zip(steps, errors, strict=True):
        plan, parallel = step.plan, step.plan.parallel
        batch = plan.micro_batch * plan.accumulation * parallel.data
        question = (step.family, plan.model, step.cluster, parallel.world, batch, plan.sequence, step.matmul)
        split = (parallel, plan.recompute, plan.micro_batch)
        groups[question][split].append((step.seconds, step.seconds * float(np.exp(error))))
    for splits in groups.values():
        yield {
            split: (statistics.median(m for m, _ in times), statistics.median(p for _, p in times))
            for split, times in splits.items()
        }


def _by_family(steps: Sequence[MeasuredStep], rows: Sequence[StepRow], errors: Numbers) -> str:
    parts: dict[str, list[float]] = defaultdict(list)
    for step, row, error in zip(steps, rows, errors, strict=True):
        if not row.small:
            parts[step.family].append(float(error))
    lines = [
        (family, str(len(each)), f"{np.median(np.abs(np.expm1(each))):.1%}", f"{np.expm1(np.median(each)):+.1%}")
        for family, each in sorted(parts.items())
    ]
    return markdown(("family held out", "steps", "median error", "predicted against measured"), lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
