"""A small sizing predictor and what to ask it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kopt.core.units import GIB, MIB, Bytes
from kopt.core.workload.sizing import AllocationKind, MemoryBreakdown, Method, TraceCoverage, WorkloadProfile
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.residual import ResidualSettings
from kopt.models.sizing.table import MeasuredQuestion, SizingQuestion, sizing_table

PREDICTOR = SizingPredictor
_SETTINGS = ResidualSettings(rounds=20, rows_in_leaf=3)


def make() -> SizingPredictor:
    return SizingPredictor(_SETTINGS)


def estimate(mib: int, *, method: Method = Method.ABSTRACT, convolutions: float = 0.0) -> CodeEstimate:
    """What the code says of a model that holds so many MiB."""
    part = Bytes(mib * MIB // 4)
    return CodeEstimate(
        method,
        TraceCoverage.FULL,
        Bytes(mib * MIB),
        Bytes(int(mib * MIB * 1.05)),
        MemoryBreakdown(weights=part, gradients=part, activations=Bytes(2 * part)),
        {"share_activations": 0.5, "convolutions_per_step": convolutions, "parameter_bytes": math.log2(1 + part)},
    )


def table() -> Any:
    """What there is to learn from."""
    return sizing_table(runs())


def runs() -> list[MeasuredQuestion]:
    """Processes that need 500 MiB more than the allocator, more with convolutions; allocator figures as they are."""
    rng = np.random.default_rng(5)
    rows = []
    for n in range(120):
        code = estimate(int(400 * 2 ** rng.uniform(0, 6)), convolutions=float(n % 3))
        metric = AllocationKind.PROCESS if n % 4 else AllocationKind.ALLOCATED
        extra = (500 + 200 * (n % 3)) * MIB if metric is AllocationKind.PROCESS else 0
        measured = Bytes(int((code.amount(metric) + extra) * math.exp(rng.normal(0, 0.01))))
        question = SizingQuestion(code, "A100-40GB" if n % 2 else "V100", metric=metric)
        rows.append(MeasuredQuestion(f"run-{n}", f"family-{n % 12}", f"source-{n % 3}", question, measured))
    return rows


def requests() -> list[SizingQuestion]:
    """Ordinary, tiny, huge, unfamiliar, formula-only and measured jobs."""
    plain = SizingQuestion(estimate(4000), "A100-40GB")
    steady = WorkloadProfile("A100-40GB", Bytes(5 * GIB), 300.0, 300, steady=True, activity=0.6, steps=100)
    return [
        plain,
        SizingQuestion(estimate(1), "V100"),
        SizingQuestion(estimate(300_000), "MI300X", world_size=8),
        SizingQuestion(estimate(4000, convolutions=2.0), "H100"),
        SizingQuestion(replace(estimate(9000, method=Method.ANALYTIC), spread=1.4), "A100-80GB"),
        replace(plain, metric=AllocationKind.RESERVED),
        replace(plain, profile=steady),
        replace(plain, profile=replace(steady, steady=False, peak_bytes=Bytes(9 * GIB))),
    ]


def refused() -> list[SizingQuestion]:
    """What no size can be told of."""
    return [
        SizingQuestion(replace(estimate(10), coverage=TraceCoverage.FAILED), "A100-40GB"),
        SizingQuestion(replace(estimate(10), reserved_bytes=Bytes(0)), "A100-40GB"),
        SizingQuestion(estimate(10), "abacus"),
    ]
