"""The best splits of a job: those likely to fit, by the time of a step over the probability to fit.

from kopt.models.parallelism.advice import Advisor
advisor = Advisor.load()
print(advisor.advise(job).splits[0].split)
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.peak_compute import peak_compute
from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.core.settings import Settings as MachineSettings
from kopt.core.units import format_bytes
from kopt.core.workload.split import Matmul, Split, SplitAdvice, SplitEstimate, TrainingJob
from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.parallelism.communication import ClusterDescription, Wires, step_communication
from kopt.models.parallelism.efficiency import PRODUCTS_DEVIATION, Efficiency, shipped_efficiency
from kopt.models.parallelism.flags import plan_of, settings_of
from kopt.models.parallelism.splits import splits_of
from kopt.models.parallelism.step_time import StepRow, step_row
from kopt.models.parallelism.work import StepWork, step_work
from kopt.models.sizing.analytic import estimate_plan
from kopt.models.sizing.estimate import load_sizing
from kopt.models.sizing.plans import from_plan
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.table import SizingQuestion

LIKELY = 0.95
"""Splits that fit with less probability are not advised."""
MOST_SPLITS = 20_000
_BILLION = 1e9
_HOUR_SECONDS = 3600.0
_STEP_PROBABILITY = 0.8
_WITHIN_80 = 1.2816
"""Standard deviations that hold 80 % on either side."""
_HOPELESS = 1.6
"""Times the GPU's memory: what formulas alone put so far above does not fit."""
_LOW_Z, _HIGH_Z = 1.881, 2.054
"""Standard deviations of the sizing predictor's interval, which .03 of runs lie below and .02 above."""
_NETWORKS = (
    (("V100",), "4x EDR IB"),
    (("A100", "A30", "A40", "A10"), "8x HDR200 IB"),
    (("GB200", "GB300", "GH200"), "4x NDR400 IB"),
    (("MI",), "8x 400G RoCE"),
)
_USUAL_NETWORK = "8x NDR400 IB"


@dataclass(frozen=True)
class _Candidate:
    split: Split
    plan: TrainingPlan
    work: StepWork
    row: StepRow
    seconds: float
    spread: float


@dataclass(frozen=True)
class Correction:
    """What a job's own runs say: step times are ``factors`` times those predicted, by number of GPUs (between two of
    them by the logarithm, beyond them as at the nearest), and within ``spread`` of it in logarithms with 80 %; None: as
    wide as without them."""

    factors: Mapping[int, float] = field(default_factory=dict)
    spread: float | None = None

    def at(self, gpus: int) -> float:
        """The factor on so many GPUs; 1 without runs."""
        if not self.factors:
            return 1.0
        counts = sorted(self.factors)
        logs = [math.log(self.factors[count]) for count in counts]
        return math.exp(float(np.interp(math.log(gpus), [math.log(count) for count in counts], logs)))


_NO_RUNS = Correction()


@dataclass(frozen=True)
class Advisor:
    """The predictors that advice rests on."""

    bandwidth: BandwidthPredictor
    sizing: SizingPredictor
    efficiency: Efficiency

    @classmethod
    def load(cls, settings: MachineSettings | None = None) -> "Advisor":
        """Those of this machine's registry, else the shipped ones."""
        return cls(load_bandwidth("champion", settings), load_sizing("champion", settings), shipped_efficiency())

    def advise(
        self, job: TrainingJob, *, count: int = 3, likely: float = LIKELY, correction: Correction = _NO_RUNS
    ) -> SplitAdvice:
        """The ``count`` best splits that fit with probability ``likely`` or more.

        Raises UnknownGpuError for a GPU that is not in the catalogue, PlanError where no split divides or there are
        too many.
        """
        job, assumed = _with_network(replace(job, gpu=find_gpu(job.gpu).name))
        candidates = self._candidates(job, correction)
        if not candidates:
            raise PlanError(
                f"no split of {job.gpus} GPUs divides {job.model.name}'s {job.model.layers} layers, {job.model.heads} "
                f"heads and a batch of {job.global_batch}; give another batch or number of GPUs"
            )
        best, most = self._best(job, candidates, count, likely)
        reasons = [*_reasons(job, best, most, likely, len(candidates)), *assumed, *self._unmeasured(job)]
        return SplitAdvice(job, best, len(candidates), tuple(reasons))

    def _unmeasured(self, job: TrainingJob) -> tuple[Reason, ...]:
        if self.efficiency.knows(job.gpu):
            return ()
        text = (
            f"No training step on {job.gpu} was measured: what it reaches of its peak is taken from single kernels or "
            "like GPUs, so intervals are wider. A step's time of your own (--measured) narrows them."
        )
        return (Reason("UNMEASURED_GPU", text),)

    def _candidates(self, job: TrainingJob, correction: Correction = _NO_RUNS) -> list[_Candidate]:
        cluster = cluster_of(job)
        wires = Wires(cluster, self.bandwidth)
        combined: list[tuple[Split, TrainingPlan, StepWork, StepRow]] = []
        for split in splits_of(job):
            if len(combined) == MOST_SPLITS:
                raise PlanError(f"{job.gpus} GPUs can be split in more than {MOST_SPLITS:,} ways; ask for fewer")
            plan = plan_of(job, split)
            work = step_work(plan)
            row = step_row(plan, cluster, work, step_communication(plan, wires), job.matmul.value)
            combined.append((split, plan, work, row))
        if not combined:
            return []
        rows = [row for _, _, _, row in combined]
        seconds, spreads = correction.at(job.gpus) * self.efficiency.seconds(rows), self.efficiency.spreads(rows)
        if not self.efficiency.knows(job.gpu):
            spreads = np.hypot(spreads, _WITHIN_80 * PRODUCTS_DEVIATION)
        if correction.spread is not None:
            spreads = np.minimum(spreads, correction.spread)
        made = [
            _Candidate(*each, float(time), float(spread))
            for each, time, spread in zip(combined, seconds, spreads, strict=True)
        ]
        return sorted(made, key=lambda candidate: candidate.seconds)

    def _best(
        self, job: TrainingJob, candidates: Sequence[_Candidate], count: int, likely: float
    ) -> tuple[tuple[SplitEstimate, ...], float]:
        """The best splits of different degrees, and the largest probability to fit among those not likely enough."""
        best: dict[tuple[object, ...], tuple[float, _Candidate, Prediction, float]] = {}
        unlikely = 0.0
        for candidate, memory, probability in self._sized(job, candidates):
            # All that follow take longer, even if they are certain to fit.
            if len(best) >= count and candidate.seconds >= sorted(each[0] for each in best.values())[count - 1]:
                break
            if probability < likely:
                unlikely = max(unlikely, probability)
                continue
            rated = (candidate.seconds / probability, candidate, memory, probability)
            key = _degrees(candidate.split)
            if key not in best or rated[0] < best[key][0]:
                best[key] = rated
        ordered = sorted(best.values(), key=lambda each: each[0])
        return tuple(self._estimate(job, *each[1:]) for each in ordered[:count]), unlikely

    def _sized(
        self, job: TrainingJob, candidates: Sequence[_Candidate]
    ) -> Iterator[tuple[_Candidate, Prediction, float]]:
        usable = int(find_gpu(job.gpu).usable_bytes)
        for candidate in candidates:
            if estimate_plan(candidate.plan, gpu_bytes=usable).worst.total > _HOPELESS * usable:
                continue
            code = from_plan(candidate.plan, gpu_bytes=usable)
            memory = self.sizing.predict(SizingQuestion(code, job.gpu, job.gpus))[0]
            yield candidate, memory, fit_probability(memory, usable)

    def _estimate(
        self, job: TrainingJob, candidate: _Candidate, memory: Prediction, probability: float
    ) -> SplitEstimate:
        seconds, width = candidate.seconds, math.exp(candidate.spread)
        hours = job.gpus * seconds / _HOUR_SECONDS / job.tokens * _BILLION
        peak = peak_compute(find_gpu(job.gpu))
        flops = peak.eight_bits if job.matmul is Matmul.FP8 else peak.half
        predicted = {name: float(values[0]) for name, values in self.efficiency.parts([candidate.row]).items()}
        factor = seconds / sum(predicted.values())
        return SplitEstimate(
            candidate.split,
            probability,
            memory.value or 0.0,
            memory.low or 0.0,
            memory.high or 0.0,
            seconds,
            seconds / width,
            seconds * width,
            _STEP_PROBABILITY,
            candidate.work.model_flops / job.gpus / seconds / flops,
            job.tokens / seconds,
            hours,
            None if job.price is None else hours * job.price,
            {name: factor * value for name, value in predicted.items() if value > 0},
            settings_of(job, candidate.split),
        )


def _degrees(split: Split) -> tuple[object, ...]:
    """Splits that differ in nothing else are variants of one, of which the best is enough."""
    return split.tensor, split.pipeline, split.expert, split.sharding


def cluster_of(job: TrainingJob) -> ClusterDescription:
    """The job's nodes as the bandwidth predictor reads them."""
    link = "NVL72" if job.gpu.startswith(("GB200", "GB300")) else ""
    return ClusterDescription(job.gpu, job.gpus_per_node, job.network if job.nodes > 1 else "", link)


def fit_probability(memory: Prediction, usable_bytes: float) -> float:
    """That a process of this predicted peak fits; its logarithm is taken for normal on either side of the centre."""
    if memory.value is None or memory.low is None or memory.high is None or memory.value <= 0:
        return 0.0
    distance = math.log(usable_bytes / memory.value)
    if distance >= 0:
        deviation = max(1e-6, math.log(max(memory.high, memory.value) / memory.value) / _HIGH_Z)
    else:
        deviation = max(1e-6, math.log(memory.value / max(1.0, min(memory.low, memory.value))) / _LOW_Z)
    return 0.5 * math.erfc(-distance / deviation / math.sqrt(2))


def _with_network(job: TrainingJob) -> tuple[TrainingJob, tuple[Reason, ...]]:
    """Cards that such GPUs usually have where none are named and nodes must talk, and that this was assumed."""
    if job.network or job.nodes == 1:
        return job, ()
    usual = next((network for starts, network in _NETWORKS if job.gpu.startswith(starts)), _USUAL_NETWORK)
    text = f"The nodes' network is not given: {usual} is assumed; name it (--nics), as it decides between splits."
    return replace(job, network=usual), (Reason("NETWORK_ASSUMED", text, {"network": usual}),)


def _reasons(
    job: TrainingJob, best: Sequence[SplitEstimate], unlikely: float, likely: float, considered: int
) -> Iterator[Reason]:
    usable = format_bytes(int(find_gpu(job.gpu).usable_bytes))
    if not best:
        text = (
            f"None of {considered:,} splits fits {job.gpus} {job.gpu} of {usable} with {likely:.0%} or more; the "
            f"likeliest does with {unlikely:.0%}. Take more GPUs, larger ones, or shorter sequences."
        )
        yield Reason("NO_SPLIT_FITS", text, {"splits": considered, "likeliest": unlikely})
        return
    first = best[0]
    largest = sorted(first.parts.items(), key=lambda part: -part[1])[:3]
    shares = ", ".join(f"{name} {value / first.step_seconds:.0%}" for name, value in largest)
    text = (
        f"The best of {considered:,} splits takes {first.step_seconds:.3g} s a step ({shares}) and fits {usable} with "
        f"{first.fit_probability:.0%}."
    )
    yield Reason("BEST_SPLIT", text, {"splits": considered, "step_seconds": first.step_seconds})
    if not np.isclose(job.model.doubt, 1.0):
        text = f"The dimensions of {job.model.name[:80]!r} are derived from the size in its name; give its config.json."
        yield Reason("SHAPE_FROM_NAME", text, {"factor": job.model.doubt})
