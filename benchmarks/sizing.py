"""Accuracy of sizes on published measurements, families and sources held out whole; beside simpler ways to size a job.

    python -m benchmarks.sizing [--runs 300] [--full] [--doubtful] [--shipped] [--python PATH]

Image models run abstractly (in the environment of ``--python``, KOPT_TRAINER_PYTHON, or ``scripts/trainer-env.sh
newest``), traces are kept in KOPT_HOME/traces; trainers of language models are read by formulas. Runs whose figure
other batch sizes of the same model contradict are left out unless ``--doubtful`` is given. Every run is predicted by a
model that has not seen its family, in whatever source. A quarter of the families (by a hash of their names) is reported
apart. It is no clean holdout of the present settings: rounds, margins and bounds of the interval were chosen
by figures over all families. ``--shipped`` asks the model of the package instead, as a user does, for each family.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import markdown
from kopt.core.gpu_catalogue import gpu_catalogue
from kopt.core.workload.sizing import AllocationKind, Method
from kopt.data.memory import MemoryRun, read_memory_runs
from kopt.models.registry.shipped import shipped_folder
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.residual import ResidualSettings
from kopt.models.sizing.table import MeasuredQuestion, sizing_table
from kopt.tracing.trace import TraceCache
from kopt.training.sizing.runs import ImageTracer, NotAnswerable, measured_question, sample_images

Array = NDArray[np.float64]

_FOLDS = 8
_CARDS = ("T4", "A10", "RTX-3090", "V100-SXM2-32GB", "A100-SXM4-40GB", "L40S", "A100-SXM4-80GB")
_PUBLISHED = (
    ("xMem (CPU run, replayed allocator)", "3.6 %", "8.9 %"),
    ("SchedTune (learned, static)", "13.8 %", "54 %"),
    ("Horus (formula)", "25 %", "51 %"),
    ("DNNMem-style static analysis", "77 %", "66 %"),
)
"""As published with xMem on its own runs: another data set, so an orientation only."""


@dataclass(frozen=True)
class Case:
    """A measured run, the question about it, and how long its script ran on the fake device (0: read by formulas)."""

    run: MemoryRun
    asked: MeasuredQuestion

    @property
    def family(self) -> str:
        """Image models of one name are kin in every source."""
        return self.run.family if self.abstract else f"{self.run.source}/{self.run.family}"

    @property
    def held_back(self) -> bool:
        return hashlib.sha256(self.family.encode()).digest()[0] % 4 == 0

    @property
    def abstract(self) -> bool:
        return self.asked.question.code.method is Method.ABSTRACT


@dataclass(frozen=True)
class Figures:
    """One way to size, on some runs: ``centre`` and ``high`` in bytes, (n,)."""

    name: str
    centre: Array
    high: Array


def collect(
    data: Path, tracer: ImageTracer | None, runs: int, *, doubtful: bool = False
) -> tuple[list[Case], dict[str, tuple[int, int]], int]:
    """Cases; by source how many were asked and answered; and how many image scripts failed."""
    table = read_memory_runs(data)
    timm = sample_images(table.runs, runs) if tracer is not None else []
    others = [one for one in table.runs if "model" not in one.arguments or one.source != "itu-rad/GPUMemNet"]
    cases, asked, failed = [], dict[str, tuple[int, int]](), 0
    for n, run in enumerate([*timm, *others]):
        if run.measured is None or run.crashed or run.censored or run.metric is None or (run.doubt and not doubtful):
            continue
        total, answered = asked.get(run.source, (0, 0))
        try:
            cases.append(Case(run, measured_question(run, tracer, doubtful=doubtful)))
            answered += 1
        except NotAnswerable as error:
            failed += n < len(timm)
            if n < len(timm):
                print(f"{run.name}: {error}", file=sys.stderr)
        asked[run.source] = (total + 1, answered)
    return cases, asked, failed


def out_of_fold(cases: Sequence[Case]) -> Figures:
    """Every case by a model that has not seen its family."""
    table = sizing_table([one.asked for one in cases])
    families = np.array([one.family for one in cases])
    names = np.unique(families)
    order = np.random.default_rng(3).permutation(len(names))
    said = np.zeros((len(cases), 3))
    for k in range(_FOLDS):
        out = np.isin(families, names[order[k::_FOLDS]])
        if not out.any() or out.all():
            continue
        model = SizingPredictor(ResidualSettings()).fit(table.where(~out))
        tested = table.where(out)
        said[out] = model.intervals(tested.questions)
    return Figures("kopt", said[:, 0], said[:, 2])


def as_shipped(cases: Sequence[Case]) -> Figures:
    """Every case as the package answers it. Its model has seen licensed sources: of those this is no holdout."""
    model = SizingPredictor.load(shipped_folder("sizing"))
    answers = [model.predict(case.asked.question)[0] for case in cases]
    return Figures(
        "shipped",
        np.array([answer.value or np.nan for answer in answers]),
        np.array([answer.high or np.nan for answer in answers]),
    )


def by_family(cases: Sequence[Case], ours: Figures) -> str:
    """Image models by source and family, with the median of signed errors."""
    measured = np.array([float(case.asked.measured) for case in cases])
    keys = [f"{case.run.source} {case.run.category.value} {case.family}" if case.abstract else "" for case in cases]
    rows = []
    for key in sorted({*keys} - {""}):
        own = np.array([each == key for each in keys])
        bias = np.median(ours.centre[own] / measured[own] - 1)
        rows.append([*row(Figures(key, ours.centre, ours.high), cases, own), f"{bias:+.1%}"])
    return markdown((*HEAD, "median bias"), rows)


def baselines(cases: Sequence[Case]) -> list[Figures]:
    """Simpler ways on the same runs; a way that cannot say anything of a run says NaN."""
    sixteen = np.array([_parameters_by_16(one) for one in cases])
    naive = np.array([float(one.run.published.get("naive fake tensors, bwd", np.nan)) for one in cases])
    plain = np.array([float(one.asked.question.amount) for one in cases])
    return [
        Figures("parameters x 16 B", sixteen, sixteen),
        Figures("naive fake tensors (published)", naive, naive),
        Figures("code alone: simulated allocator or formula", plain, plain),
        _vertical_autoscaler(cases),
    ]


def _parameters_by_16(case: Case) -> float:
    code = case.asked.question.code
    if "parameter_bytes" in code.inputs:
        return 4.0 * (2 ** code.inputs["parameter_bytes"] - 1)
    if "plan_log_parameters" in code.inputs:
        return 16.0 * float(np.exp(code.inputs["plan_log_parameters"])) / max(1, case.run.gpus)
    return float("nan")


def _vertical_autoscaler(cases: Sequence[Case]) -> Figures:
    """The p95 of other families of the category plus 15 %, as the vertical pod autoscaler would recommend."""
    measured = np.array([float(one.asked.measured) for one in cases])
    families, kinds = np.array([one.family for one in cases]), np.array([one.run.category.value for one in cases])
    said = np.full(len(cases), np.nan)
    for n in range(len(cases)):
        others = measured[(kinds == kinds[n]) & (families != families[n])]
        said[n] = 1.15 * np.quantile(others, 0.95) if len(others) else np.nan
    return Figures("p95 of its category + 15 % (VPA)", said, said)


def row(figures: Figures, cases: Sequence[Case], mask: NDArray[np.bool_]) -> list[str]:
    """Name, runs, median and p90 error, P(under), mean and median slack."""
    measured = np.array([float(one.asked.measured) for one in cases])
    use = mask & np.isfinite(figures.centre) & (figures.centre > 0)
    if not use.any():
        return [figures.name, "0", "", "", "", "", ""]
    error = np.abs(figures.centre[use] / measured[use] - 1)
    slack = np.maximum(0.0, figures.high[use] / measured[use] - 1)
    shares = (
        np.median(error),
        np.quantile(error, 0.9),
        np.mean(measured[use] > figures.high[use]),
        slack.mean(),
        np.median(slack),
    )
    return [figures.name, str(int(use.sum())), *(f"{share:.1%}" for share in shares)]


HEAD = ("", "runs", "median error", "p90", "P(under)", "mean slack", "median slack")


def by_kind(cases: Sequence[Case], ours: Figures) -> str:
    """Our figures per category and metric, of the families worked with and of those set apart."""
    rows = []
    back = np.array([one.held_back for one in cases])
    kinds = [(one.run.category.value, one.run.metric.value if one.run.metric else "") for one in cases]
    for kind in sorted(set(kinds)):
        own = np.array([one == kind for one in kinds])
        for label, mask in (("", own & ~back), (", set apart", own & back)):
            if mask.any():
                rows.append(row(Figures(f"{kind[0]}, {kind[1]}{label}", ours.centre, ours.high), cases, mask))
    abstract = np.array([one.abstract for one in cases])
    for label, mask in (
        ("single-GPU eager training, worked with", abstract & ~back),
        ("single-GPU eager training, set apart", abstract & back),
        ("read by formulas", ~abstract),
        ("all", np.ones(len(cases), bool)),
    ):
        rows.append(row(Figures(label, ours.centre, ours.high), cases, mask))
    return markdown(HEAD, rows)


def beside(cases: Sequence[Case], ours: Figures) -> str:
    """Ours and the baselines on the same runs, for image models and for all."""
    abstract = np.array([one.abstract for one in cases])
    rows = []
    for label, mask in (("image models", abstract), ("trainers of language models", ~abstract)):
        for one in (ours, *baselines(cases)):
            found = row(one, cases, mask)
            if found[1] != "0":
                rows.append([f"{label}: {found[0]}", *found[1:]])
    rows += [[f"published: {name}", "", error, "", under, "", ""] for name, error, under in _PUBLISHED]
    return markdown(HEAD, rows)


def out_of_memory(cases: Sequence[Case], ours: Figures) -> str:
    """Would it fit a card? Over processes measured and cards, by the centre of the estimate."""
    process = [n for n, one in enumerate(cases) if one.run.metric is AllocationKind.PROCESS]
    rows = []
    for card in _CARDS:
        usable = gpu_catalogue()[card].usable_bytes
        truth = np.array([float(cases[n].asked.measured) > usable for n in process])
        said = np.array([ours.centre[n] > usable for n in process])
        rows.append([card, *_confusion(truth, said)])
    truth = np.array([cases[n].asked.measured > gpu_catalogue()[c].usable_bytes for n in process for c in _CARDS])
    said = np.array([ours.centre[n] > gpu_catalogue()[c].usable_bytes for n in process for c in _CARDS])
    return markdown(("card", "too large", "precision", "recall"), [*rows, ["all", *_confusion(truth, said)]])


def _confusion(truth: NDArray[np.bool_], said: NDArray[np.bool_]) -> tuple[str, str, str]:
    hits = int((truth & said).sum())
    precision = f"{hits / said.sum():.1%}" if said.any() else "-"
    return str(int(truth.sum())), precision, f"{hits / truth.sum():.1%}" if truth.any() else "-"


def scripts(tracer: ImageTracer | None, asked: Mapping[str, tuple[int, int]], failed: int, traced: int) -> str:
    """How many scripts ran, and how long they took."""
    rows: list[Iterable[str]] = [[source, str(total), str(done)] for source, (total, done) in sorted(asked.items())]
    text = markdown(("source", "runs", "answered"), rows)
    seconds = [one for one in tracer.seconds if one > 0] if tracer is not None else []
    ran = f"{traced} of {traced + failed} image scripts ran abstractly ({traced / max(1, traced + failed):.1%})"
    if not seconds:
        return f"{text}\n\n{ran}; all traces were kept from before."
    took = f"{np.median(seconds):.1f} s in the median, {np.quantile(seconds, 0.9):.1f} s p90, of {len(seconds)} fresh"
    return f"{text}\n\n{ran}; {took}."


def _interpreter(given: str | None) -> str | None:
    found = given or os.environ.get("KOPT_TRAINER_PYTHON")
    if found:
        return found
    script = Path(__file__).parents[1] / "scripts" / "trainer-env.sh"
    done = subprocess.run([str(script), "newest"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="timm runs in the sample")
    parser.add_argument("--full", action="store_true", help="every timm model")
    parser.add_argument("--doubtful", action="store_true", help="with runs that others of the same model contradict")
    parser.add_argument("--python", help="an interpreter with torch, timm and torchvision")
    parser.add_argument("--shipped", action="store_true", help="the model of the package, family by family")
    parser.add_argument("--kept", action="store_true", help="use kept traces only, run nothing")
    options = parser.parse_args(arguments)
    data = Path(os.environ.get("KOPT_DATA_DIR", "")) / "memory"
    if not data.is_dir() or "KOPT_DATA_DIR" not in os.environ:
        print("KOPT_DATA_DIR names no folder with memory/ in it: nothing measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    home = Path(os.environ.get("KOPT_HOME", ".kopt")).absolute()
    python = _interpreter(options.python)
    tracer = (
        ImageTracer(python, home, TraceCache(home / "traces", most=5000), only_kept=options.kept) if python else None
    )
    began = time.monotonic()
    cases, asked, failed = collect(data, tracer, 10**6 if options.full else options.runs, doubtful=options.doubtful)
    if options.shipped:
        print(f"\n### The package's model, by family\n\n{by_family(cases, as_shipped(cases))}", flush=True)
        return 0
    ours = out_of_fold(cases)
    traced = sum(one.abstract and one.run.source == "itu-rad/GPUMemNet" for one in cases)
    for title, text in (
        ("Sizes by category and metric, families held out", by_kind(cases, ours)),
        ("Beside simpler ways", beside(cases, ours)),
        ("Out of memory", out_of_memory(cases, ours)),
        ("Scripts", scripts(tracer, asked, failed, traced)),
    ):
        print(f"\n### {title}\n\n{text}", flush=True)
    print(f"\n({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
