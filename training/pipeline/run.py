"""The training pipeline: data → features → search → folds → evaluation → gate → registration.

One function for any predictor that has a recipe. Every step's result is kept under ``home/runs/<digest>``, where the
digest covers data, parameters and code: a killed run goes on where it was, an identical one computes nothing.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.models.registry.artifact import library_versions
from kopt.models.registry.registry import RegisteredModel, Registry
from kopt.models.registry.versions import OPPONENT
from kopt.training.pipeline.fits import Fits
from kopt.training.pipeline.mlflow_run import Logbook
from kopt.training.pipeline.model_page import version_page
from kopt.training.pipeline.progress import Event, Progress, silent
from kopt.training.pipeline.protocols import Backtest, Champion, Dataset, GateDecision, GateRules, Part, Recipe, Source
from kopt.training.pipeline.recipe import folds, recipe_of
from kopt.training.pipeline.steps import RunFolder, TrainingError, code_digest, digest_of
from kopt.training.pipeline.tasks import Tasks
from kopt.training.pipeline.worker import UnusableModelError

EXAMPLE_TAG = "example_data"
"""On a version that was trained on made-up data alone."""

__all__ = ["TrainOptions", "TrainingError", "TrainingOutcome", "train"]


@dataclass(frozen=True)
class TrainOptions:
    """How a run is done. ``parameters`` override the recipe's defaults."""

    folds: int = 3
    """At most so many fits for group-wise cross-validation."""
    trials: int = 0
    """Parameter sets tried before the folds; 0 takes the parameters as they are."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rules: GateRules = field(default_factory=GateRules)
    promote: bool = True
    """Whether a challenger that passes the gate becomes champion at once."""


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of a run. ``computed`` counts steps done now, ``kept`` those of an earlier, interrupted run."""

    run: str
    model: RegisteredModel
    champion: RegisteredModel | None
    decision: GateDecision
    summaries: tuple[Any, ...]
    computed: int
    kept: int
    seconds: float

    @property
    def promoted(self) -> bool:
        return self.champion is not None and self.champion.version == self.model.version


def train(
    predictor: str = "demand",
    *,
    source: Source,
    settings: Settings,
    options: TrainOptions | None = None,
    progress: Progress = silent,
    tasks: Tasks | None = None,
    registry: Registry | None = None,
) -> TrainingOutcome:
    """Train a challenger, compare it with the champion, register it, and promote it if it is better.

    ``tasks`` default to a local Ray (or the cluster of the settings). An interrupt leaves finished steps, closes the
    MLflow run as killed and passes on. Raises TrainingError, RegistryError and what reading
    the data raises.
    """
    options, began = options or TrainOptions(), time.monotonic()
    recipe, registry = recipe_of(predictor), registry or Registry(settings)
    progress(Event("read", 0, 1))
    dataset = source.read()
    progress(Event("read", 1, 1, f"{len(dataset.names)} to learn from, {len(dataset.excluded)} left out"))
    parameters = {**recipe.defaults, **options.parameters}
    run = RunFolder(settings.home, run_digest(recipe, dataset, parameters, options))
    with run.alone():
        run.sweep()
        return _Run(recipe, registry, settings, options, progress, dataset, run, began).go(tasks, parameters)


def run_digest(recipe: Recipe, dataset: Dataset, parameters: Mapping[str, Any], options: TrainOptions) -> str:
    """Names everything that the results of a run depend on, but the champion it is compared with."""
    code = code_digest(recipe.modules())
    return digest_of(
        recipe.predictor, dataset.digest, dict(parameters), options.folds, options.trials, code, library_versions()
    )


@dataclass
class _Run:
    recipe: Recipe
    registry: Registry
    settings: Settings
    options: TrainOptions
    progress: Progress
    dataset: Dataset
    run: RunFolder
    began: float
    champion_figures: Mapping[str, float] = field(default_factory=dict)

    def go(self, tasks: Tasks | None, parameters: Mapping[str, Any]) -> TrainingOutcome:
        champion = self.registry.ensure_champion(self.recipe.predictor)
        log = self._open_log()
        log.describe(self.dataset, parameters)
        status = "FAILED"
        try:
            with Fits(self.recipe, self.dataset, self.settings, self.run, self.progress, tasks) as fits:
                outcome = self._train(fits, log, champion, parameters)
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            log.close(status)
        return outcome

    def _train(
        self, fits: Fits, log: Logbook, champion: RegisteredModel | None, parameters: Mapping[str, Any]
    ) -> TrainingOutcome:
        parts = folds(self.dataset, self.options.folds)
        best_parameters = fits.search(self.options.trials, parts, parameters)
        for number, (proposal, loss) in enumerate(fits.trials, 1):
            log.below(f"trial-{number}", proposal, {"loss": loss})
        fits.fit(parts, best_parameters)
        self.progress(Event("evaluate", 0, 1))
        challenger = self.recipe.scoring.scores(self.dataset, parts, fits.backtests(parts))
        self._log_folds(log, parts, fits, best_parameters)
        summaries = self.recipe.scoring.summarise(challenger)
        self.progress(Event("evaluate", 1, 1))
        registered = self._registered(log)
        if registered is not None and champion is not None and registered.version == champion.version:
            decision = GateDecision(
                True, (Reason("CHAMPION", f"Is the champion already. {registered.gate_summary}".strip()),)
            )
        else:
            decision = self._gate_decision(fits, log, parts, challenger, champion)
        model = registered or self._register(fits, log, summaries)
        self._report(log, parts, fits, challenger, decision)
        return self._decide(fits, model, champion, decision, summaries)

    def _log_folds(self, log: Logbook, parts: Sequence[Part], fits: Fits, parameters: Mapping[str, Any]) -> None:
        """Each part's own figures, so that one odd fold is not lost in the mean."""
        scoring = self.recipe.scoring
        for part in parts:
            scores = scoring.scores(self.dataset, [part], {part.name: fits.backtests(parts)[part.name]})
            conditions = {**parameters, "regime": part.regime, "fitted_on": len(part.fit), "tested_on": len(part.test)}
            log.below(part.name, conditions, scoring.metrics(scoring.summarise(scores)))

    def _gate_decision(
        self,
        fits: Fits,
        log: Logbook,
        parts: Sequence[Part],
        challenger: Sequence[Any],
        champion: RegisteredModel | None,
    ) -> GateDecision:
        extra_reasons: tuple[Reason, ...] = ()
        current = None
        try:
            current = None if champion is None else fits.replay_champion(self.registry, champion)
        except UnusableModelError as error:
            text = f"The champion cannot be loaded by this version ({error}); the last value stands in for it."
            extra_reasons = (Reason("CHAMPION_UNUSABLE", text),)
        self.progress(Event("gate", 0, 1))
        rules, backtests = self.options.rules, fits.backtests(parts)
        result = self.recipe.scoring.decide(self.dataset, parts, challenger, backtests, current, rules)
        result = replace(result, reasons=(*result.reasons, *extra_reasons))
        if current is not None:
            self.champion_figures = self._champion_metrics(current, parts, backtests)
            log.figures({f"{OPPONENT}{name}": value for name, value in self.champion_figures.items()})
        if champion is not None and self.dataset.is_example and EXAMPLE_TAG not in champion.tags:
            result = _refused_example(result)
        self.progress(Event("gate", 1, 1, result.summary))
        return result

    def _champion_metrics(
        self, champion: Champion, parts: Sequence[Part], backtests: Mapping[str, Backtest]
    ) -> Mapping[str, float]:
        """The champion's figures on the rows that the challenger was tested on, also on those it was trained on."""
        scoring = self.recipe.scoring
        replayed: dict[str, Backtest] = {}
        for part in parts:
            keys = [scoring.key(forecast) for forecast in backtests[part.name].forecasts]
            if not all(key in champion.forecasts for key in keys):
                return {}
            replayed[part.name] = Backtest(tuple(champion.forecasts[key] for key in keys), 0.0)
        return scoring.metrics(scoring.summarise(scoring.scores(self.dataset, parts, replayed)))

    def _open_log(self) -> Logbook:
        run_id = self.run.result_of("mlflow")["run_id"] if self.run.has("mlflow") else None
        log = Logbook.open(self.registry, self.recipe.predictor, self.run.digest, run_id)
        if run_id != log.run_id:
            self.run.replace("mlflow", {"run_id": log.run_id})
        return log

    def _registered(self, log: Logbook) -> RegisteredModel | None:
        """The version that this run registered before, if it did."""
        models = self.registry.list(self.recipe.predictor)
        mine = (m for m in models if m.tags.get("training") == self.run.digest and m.run_id == log.run_id)
        return next(mine, None)

    def _register(self, fits: Fits, log: Logbook, summaries: tuple[Any, ...]) -> RegisteredModel:
        self.progress(Event("register", 0, 1))
        tags = {"training": self.run.digest, "dataset": self.dataset.name, "dataset_digest": self.dataset.digest}
        tags |= {EXAMPLE_TAG: "true"} if self.dataset.is_example else {}
        log.figures(self.recipe.scoring.metrics(summaries))
        model = self.registry.register(fits.signed_model(), run_id=log.run_id, tags=tags)
        self.progress(Event("register", 1, 1, f"{model.name} version {model.version}"))
        return model

    def _report(
        self, log: Logbook, parts: Sequence[Part], fits: Fits, scores: Sequence[Any], decision: GateDecision
    ) -> None:
        log.log_decision(decision)

        def draw(folder: Path) -> Mapping[str, Any]:
            files = self.recipe.scoring.draw(folder, self.dataset, parts, scores, fits.backtests(parts))
            log.attach(files, "plots")
            return {"files": len(files)}

        self.run.compute("plots", draw)

    def _decide(
        self,
        fits: Fits,
        model: RegisteredModel,
        champion: RegisteredModel | None,
        decision: GateDecision,
        summaries: tuple[Any, ...],
    ) -> TrainingOutcome:
        name, against = model.name, "" if champion is None else champion.version
        if against != model.version:
            self.registry.record_decision(
                name, model.version, passed=decision.passed, against=against, summary=decision.summary
            )
            # A version that was rolled back is not promoted again automatically.
            if decision.passed and self.options.promote and "rolled_back_s" not in model.tags:
                champion = self.registry.promote(name, model.version)
            else:
                self.registry.challenge(name, model.version)
            figures = self.recipe.scoring.metrics(summaries)
            decided = self.registry.get(name, model.version)
            page = version_page(decided, self.dataset, decision, figures, self.champion_figures)
            self.registry.describe(name, model.version, page)
        return TrainingOutcome(
            self.run.digest,
            self.registry.get(name, model.version),
            champion,
            decision,
            summaries,
            fits.computed,
            fits.kept,
            time.monotonic() - self.began,
        )


def _refused_example(decision: GateDecision) -> GateDecision:
    """Made-up data says nothing about what a champion of real data is asked."""
    text = "Trained on made-up example data; it is compared with the champion, and never takes its place."
    return replace(decision, passed=False, reasons=(Reason("EXAMPLE_DATA", text), *decision.reasons))
