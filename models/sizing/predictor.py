"""The sizing predictor: what the code says, corrected by what measured runs have taught, with an honest interval."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from kopt.core.gpu import Vendor
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, format_bytes
from kopt.core.workload.sizing import AllocationKind, Method, TraceCoverage
from kopt.models.base import Predictor
from kopt.models.registry.model_files import read_json
from kopt.models.sizing.calibration import PROBABILITY, WORTH, Calibration, beyond, calibrate, interval, ranges
from kopt.models.sizing.posterior import combine
from kopt.models.sizing.residual import Corrections, Residual, ResidualSettings
from kopt.models.sizing.room import room_above
from kopt.models.sizing.table import INPUTS, OWN, Array, Names, Questions, SizingQuestion, SizingTable, questions_of

UNREGISTERED = ModelVersion("sizing", "unregistered")
UNIT = "bytes"
_FOLDS = 5
_FILE = "sizing.json"
_GROUP = "group"
_PROCESSES_DIFFER = 768.0 * MIB
"""By how much more or less a process may hold beside its allocator than those that were measured, as driver, CUDA and
its libraries differ from machine to machine: on an RTX 3090, SchedTune's hold 1,365 MiB, and Lucid's 2,050
(S-Lab-System-Group/Lucid, 63685a3). Measured runs of one's own settle it, as does a dry run."""
UNKNOWN = np.array([1.0, 0.5, 4.0])
"""Centre, low and high, in multiples of what code says, of a way to read code that nothing was learned about."""
_INSIDE_CONFIDENCE, _OUTSIDE_CONFIDENCE = 0.9, 0.5


@dataclass(frozen=True)
class Part:
    """What was learned about one way to read code."""

    residual: Residual
    calibration: Calibration
    own_gpus: frozenset[str] = frozenset()
    """On which own processes were measured."""

    def intervals(self, questions: Questions) -> Array:
        """Centre, low and high in bytes (n, 3)."""
        errors = [
            self.calibration.of(str(group), bool(self.calibration.outside(row)))
            for row, group in zip(questions.inputs, questions.groups, strict=True)
        ]
        result = interval(self.residual.predict(questions), errors)
        spread = np.array([self.spread(*cell) for cell in zip(questions.groups, questions.gpus, strict=True)])
        result[:, 1] = np.minimum(result[:, 1], np.maximum(result[:, 0] - spread, questions.amounts))
        result[:, 2] = np.maximum(result[:, 2], result[:, 0] + spread)
        return result

    def spread(self, group: str, gpu: str) -> float:
        """By how many bytes a process of those questions may differ from the published ones of its GPU."""
        if not self.residual.additive or gpu in self.own_gpus:
            return 0.0
        return _PROCESSES_DIFFER if str(group).rpartition("-")[2] == AllocationKind.PROCESS.value else 0.0


def fit_part(table: SizingTable, settings: ResidualSettings) -> Part:
    """Fit on rows of one method."""
    questions = table.questions
    additive = method_of(str(questions.groups[0])) == Method.ABSTRACT.value
    families = np.char.add(np.char.add(table.sources, "/"), table.families)
    folds = _dealt(families)
    apart = [
        _held_out(table, [column == item for item in np.unique(column)], settings, additive)
        for column in (table.sources, questions.groups)
        if len(np.unique(column)) > 1
    ]
    strange = np.zeros(len(table), dtype=bool)
    for out in folds:
        strange[out] = beyond(questions.inputs[out], *ranges(questions.inputs[~out if not out.all() else out])).any(1)
    held_out = _held_out(table, folds, settings, additive)
    # A formula is right on the whole without correction; an allocator never shows the driver's and libraries' part.
    calibration = calibrate(
        held_out,
        apart,
        table.measured,
        families,
        questions.groups,
        questions.inputs,
        strange,
        0.0 if additive else WORTH,
    )
    own = table.questions.gpus[table.sources == OWN]
    return Part(Residual.fit(table, settings, additive=additive), calibration, frozenset(own.tolist()))


def _held_out(table: SizingTable, folds: Sequence[Any], settings: ResidualSettings, additive: bool) -> Corrections:
    """Corrections of each row by a model that had not seen its fold."""
    columns = np.zeros((4, len(table)))
    for out in folds:
        rest, tested = table.where(~out) if not out.all() else table, table.where(out)
        model = Residual.fit(rest, settings, additive=additive)
        corrections = model.predict(tested.questions)
        columns[:, out] = corrections.base, corrections.correction, corrections.below, corrections.above
    return Corrections(*columns)


def method_of(group: str) -> str:
    """The method of a group of questions."""
    return str(group).partition("-")[0]


class SizingPredictor(Predictor):
    """Peak memory of one process, in bytes, with an interval that holds .95 of runs and is exceeded by .02.

    The residual (``residual``) corrects the allocator's figure; thresholds from held-out families (``calibration``)
    make the interval; a question outside of everything measured gets that of sources never seen, and says so. A dry
    run enters last (``posterior``).
    """

    name: ClassVar[str] = "sizing"

    def __init__(self, settings: ResidualSettings | None = None) -> None:
        self.settings = settings or ResidualSettings()
        self.version = UNREGISTERED
        self.parts: dict[str, Part] = {}

    def fit(self, table: SizingTable) -> Self:
        """Fit on all rows; the interval comes from fits that had left families, and whole sources, out.

        Raises ValueError on a table without a row.
        """
        if not len(table):
            raise ValueError("no measured run to learn from")
        methods = np.array([method_of(group) for group in table.questions.groups])
        self.parts = {
            str(method): fit_part(table.where(methods == method), self.settings) for method in np.unique(methods)
        }
        return self

    def predict(self, request: SizingQuestion) -> tuple[Prediction, ...]:
        """One prediction of the peak in bytes."""
        parts = self._fitted
        refused = self._refusal(request)
        if refused is not None:
            return (Prediction.refusal(refused, unit=UNIT, model=self.version),)
        questions = questions_of([request])
        centre, low, high = self.intervals(questions)[0].tolist()
        part = parts.get(request.code.method.value)
        is_fitted_group = part is not None and request.group in part.calibration.groups
        outside = part.calibration.outside(questions.inputs[0]) if part is not None and is_fitted_group else (_GROUP,)
        if outside and request.code.spread > 1:
            # Formulas say themselves how unsure they are; where they were measured, that is known better.
            low, high = min(low, centre / request.code.spread), max(high, centre * request.code.spread)
        low, high = low / request.code.below, high * request.code.above
        spread = 0.0 if part is None else part.spread(request.group, request.gpu)
        if search_bytes := request.code.search_bytes:
            high = max(high, centre + spread + search_bytes)
        room = room_above(request, spread) if spread else None
        if room is not None and centre + room < high:
            high, outside = centre + room, ()
        centre, low, high, dry_run = combine(centre, low, high, request.profile)
        confidence = _OUTSIDE_CONFIDENCE if outside or request.code.above > 1 else _INSIDE_CONFIDENCE
        if request.code.coverage is not TraceCoverage.FULL and request.profile is None:
            confidence = min(confidence, 0.7)
        reasons = (*request.code.reasons, *self._reasons(request, centre, outside), *dry_run)
        prediction = Prediction(
            float(round(centre)),
            float(int(low)),
            float(round(high) + 1),
            PROBABILITY,
            UNIT,
            confidence,
            self.version,
            reasons,
            {0.03: float(int(low)), 0.5: float(round(centre)), 0.98: float(round(high) + 1)},
        )
        return (prediction,)

    def intervals(self, questions: Questions) -> Array:
        """Centre, low and high in bytes (n, 3) of rows alone, without formulas' own spread or dry runs."""
        parts = self._fitted
        estimated = np.zeros((len(questions), 3))
        methods = np.array([method_of(group) for group in questions.groups])
        for method in np.unique(methods):
            own = questions.where(methods == method)
            part = parts.get(str(method))
            estimated[methods == method] = UNKNOWN * own.amounts[:, None] if part is None else part.intervals(own)
        return estimated

    def explain(self, request: SizingQuestion) -> tuple[Reason, ...]:
        """The prediction's reasons, and which inputs moved the learned part."""
        (prediction,) = self.predict(request)
        if prediction.refused:
            return prediction.reasons
        part = self._fitted.get(request.code.method.value)
        if part is None:
            return prediction.reasons
        row = questions_of([request]).inputs
        parts = part.residual.boosters[1].contributions(row)[0]
        moved = [n for n in np.argsort(-np.abs(parts))[:4] if abs(parts[n]) > 1e-4]
        unit = "GiB" if part.residual.additive else "in logarithms"
        text = ", ".join(f"{INPUTS[n]} {parts[n]:+.3f} {unit}" for n in moved) or "nothing in particular"
        numbers: dict[str, float | int | str] = {INPUTS[n]: float(parts[n]) for n in moved}
        return (*prediction.reasons, Reason("MOVED_BY", f"The learned part was moved by {text}.", numbers))

    def _refusal(self, request: SizingQuestion) -> Reason | None:
        if request.amount <= 0 or request.code.coverage is TraceCoverage.FAILED:
            text = "The code gave no figure to start from; say which trainer it is, or make a dry run (kopt profile)."
            return Reason("NO_CODE_ESTIMATE", text)
        try:
            find_gpu(request.gpu)
        except UnknownGpuError as error:
            return Reason("UNKNOWN_GPU", f"{error}.")
        return None

    def _reasons(self, request: SizingQuestion, centre: float, outside: tuple[str, ...]) -> tuple[Reason, ...]:
        part = self._fitted.get(request.code.method.value)
        amount = int(request.amount)
        added = round(centre) - amount
        group = None if part is None else part.calibration.groups.get(request.group)
        runs = 0 if group is None else group.runs
        base = "formulas" if request.code.method is Method.ANALYTIC else "allocator"
        text = (
            f"Measured runs show {format_bytes(abs(added))} {'more' if added >= 0 else 'less'} than the {base} for the "
            f"process on {request.gpu}: the driver, libraries and their workspaces ({runs} runs of this kind)."
        )
        reasons = [Reason("LEARNED_OVERHEAD", text, {"bytes": added, "runs": runs})]
        if outside:
            names = [name.removeprefix("plan_").replace("_", " ") for name in outside[:5]]
            what = f"this is beyond what was measured: {', '.join(names)}"
            what = "nothing of its kind was measured" if outside == (_GROUP,) else what
            numbers: dict[str, float | int | str] = {"inputs": len(outside)}
            reasons.append(Reason("OUT_OF_DISTRIBUTION", f"The interval is wider because {what}.", numbers))
        if find_gpu(request.gpu).vendor is Vendor.AMD:
            text = "No run on an AMD GPU has been measured: the overhead is that of NVIDIA's and not validated."
            reasons.append(Reason("UNVALIDATED_GPU", text))
        return tuple(reasons)

    def save(self, folder: Path) -> None:
        parts = {
            name: {
                "additive": part.residual.additive,
                "constants": part.residual.constants,
                "calibration": part.calibration.to_dict(),
                "own_gpus": sorted(part.own_gpus),
            }
            for name, part in self._fitted.items()
        }
        for name, part in self._fitted.items():
            part.residual.save(folder, name)
        document = {"settings": vars(self.settings), "inputs": list(INPUTS), "parts": parts}
        (folder / _FILE).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / _FILE
        try:
            document = read_json(path)
            loaded = cls(replace(ResidualSettings(), **document["settings"]))
            if document["inputs"] != list(INPUTS):
                raise ValueError("the model was fitted on other inputs; train it again")
            read = {str(Method(name)): _read_part(item) for name, item in document["parts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: not a saved sizing predictor ({error})") from error
        loaded.parts = {
            name: Part(Residual.load(folder, name, additive, constants), calibration, own_gpus)
            for name, (additive, constants, calibration, own_gpus) in read.items()
        }
        return loaded

    @property
    def _fitted(self) -> dict[str, "Part"]:
        if not self.parts:
            raise ValueError("the sizing predictor has not been fitted; call fit or load first")
        return self.parts


def _read_part(document: Mapping[str, Any]) -> tuple[bool, dict[str, float], Calibration, frozenset[str]]:
    constants = {str(key): float(value) for key, value in document["constants"].items()}
    if not all(0 <= value < 1e15 for value in constants.values()):
        raise ValueError("a constant is no amount of memory")
    own_gpus = frozenset(str(gpu) for gpu in document.get("own_gpus", []))
    return bool(document["additive"]), constants, Calibration.from_dict(document["calibration"]), own_gpus


def _dealt(families: Names) -> list[Any]:
    """Folds of whole families with about the same number of rows, as masks; one family is its own fold and rest."""
    names, counts = np.unique(families, return_counts=True)
    folds: list[list[str]] = [[] for _ in range(min(_FOLDS, len(names)))]
    sizes = [0] * len(folds)
    for n in np.argsort(-counts, kind="stable"):
        smallest = sizes.index(min(sizes))
        folds[smallest].append(str(names[n]))
        sizes[smallest] += int(counts[n])
    return [np.isin(families, fold) for fold in folds]
