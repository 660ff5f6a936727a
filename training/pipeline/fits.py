"""The fits and backtests of a run: done as tasks, kept as steps."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.models.registry.artifact import check_files, read_card
from kopt.models.registry.registry import RegisteredModel, Registry
from kopt.models.registry.signing import sign_folder
from kopt.training.pipeline.progress import Event, Progress
from kopt.training.pipeline.protocols import Backtest, Champion, Dataset, Part, Recipe
from kopt.training.pipeline.recipe import restore_files, saved_files
from kopt.training.pipeline.steps import RunFolder, TrainingError, digest_of
from kopt.training.pipeline.tasks import RayTasks, Tasks
from kopt.training.pipeline.worker import FINAL, Carried, Shared, fit_item, replay, try_parameters

_FORECASTS = "forecasts.parquet"
_REPLAY_CHUNKS = 4


class Fits:
    """Computes what is missing and reads what is there; starts Ray and computes features only when needed."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        settings: Settings,
        run: RunFolder,
        progress: Progress,
        tasks: Tasks | None,
    ) -> None:
        self.recipe, self.dataset, self.settings, self.run, self.progress = recipe, dataset, settings, run, progress
        self._own_tasks = tasks
        self._ray: RayTasks | None = None
        self.trials: list[tuple[Mapping[str, Any], float]] = []
        """Parameters and loss of each trial of the search, in the order in which they were tried."""
        self.computed = self.kept = 0

    def __enter__(self) -> "Fits":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._ray is not None:
            self._ray.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def search(self, trials: int, parts: Sequence[Part], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """The best of ``trials`` parameter sets by the loss on the first fold's held-out series.

        Proposals follow from the seed and the losses before them, two at a time, so that a resumed search asks for
        the same sets again and finds their losses on disk.
        """
        held_out = [part.test for part in parts if part.name.startswith("fold-")][:1]
        if not trials or not held_out:
            return parameters
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))
        for done in range(0, trials, 2):
            drawn = [study.ask() for _ in range(min(2, trials - done))]
            proposals = [self.recipe.suggest(trial) for trial in drawn]
            losses = self._losses(proposals, held_out[0], parameters)
            for trial, loss in zip(drawn, losses, strict=True):
                study.tell(trial, loss)
            self.progress(
                Event("search", done + len(proposals), trials, f"best loss {study.best_value:.4f}", self.kept)
            )
        return {**parameters, **study.best_params}

    def _losses(
        self, proposals: Sequence[Mapping[str, Any]], held_out: tuple[str, ...], parameters: Mapping[str, Any]
    ) -> list[float]:
        steps = {f"trial-{digest_of(dict(proposal))[:16]}": proposal for proposal in proposals}
        missing = {name: proposal for name, proposal in steps.items() if not self.run.has(name)}
        self._count(len(missing), len(steps))
        if missing:
            items = [(proposal, held_out) for proposal in missing.values()]
            names = {id(item): name for name, item in zip(missing, items, strict=True)}
            for item, loss in self._tasks.map(try_parameters, self._shared(parameters), items):
                self.run.compute(names[id(item)], lambda _, loss=loss: {"loss": loss})  # type: ignore[misc]
        losses = [float(self.run.result_of(name)["loss"]) for name in steps]
        self.trials += zip(steps.values(), losses, strict=True)
        return losses

    def fit(self, parts: Sequence[Part], parameters: Mapping[str, Any]) -> None:
        """Every part's fit and backtest, and the fit on everything, as far as they are not there."""
        missing: list[Part | str] = [part for part in parts if not self.run.has(part.name)]
        missing += [] if self.run.has(FINAL) else [FINAL]
        total = len(parts) + 1
        self._count(len(missing), total)
        done = kept = total - len(missing)
        self.progress(Event("fit", done, total, kept=kept))
        if not missing:
            return
        for item, result in self._tasks.map(fit_item, self._shared(parameters), missing):
            name = item.name if isinstance(item, Part) else FINAL
            if isinstance(result, Backtest):
                self._keep(name, result)
            else:
                self.run.compute(FINAL, lambda folder, files=result: self._sign(folder, files))  # type: ignore[misc]
            done += 1
            self.progress(Event("fit", done, total, name, kept))

    def backtests(self, parts: Sequence[Part]) -> Mapping[str, Backtest]:
        """The parts' forecasts by name, read from disk once."""
        for part in parts:
            if part.name not in self._read:
                self._read[part.name] = self._stored(part.name)
        return self._read

    def signed_model(self) -> Path:
        """The folder of the model that was fitted on everything. Raises TrainingError when it was altered."""
        folder = self.run.step(FINAL) / "model"
        check_files(folder)
        return folder

    def replay_champion(self, registry: Registry, champion: RegisteredModel) -> Champion:
        """The champion's forecasts of all series, kept by its digest."""
        folder = registry.fetch(champion.name, champion.version)
        names = list(self.dataset.names)
        chunks = {
            f"champion-{champion.digest[:12]}-{k}": tuple(names[k::_REPLAY_CHUNKS]) for k in range(_REPLAY_CHUNKS)
        }
        chunks = {step: chunk for step, chunk in chunks.items() if chunk}
        missing = {chunk: step for step, chunk in chunks.items() if not self.run.has(step)}
        self._count(len(missing), len(chunks))
        done = len(chunks) - len(missing)
        self.progress(Event("champion", done, len(chunks), kept=done))
        if missing:
            carried = Carried(self.recipe.predictor, self.dataset, saved_files(folder))
            for chunk, result in self._tasks.map(replay, carried, list(missing)):
                self._keep(missing[chunk], result)
                done += 1
                self.progress(Event("champion", done, len(chunks)))
        matches = [forecast for step in chunks for forecast in self._stored(step).forecasts]
        return Champion({self.recipe.scoring.key(item): item for item in matches}, read_card(folder))

    def _keep(self, name: str, backtest: Backtest) -> None:
        def work(folder: Path) -> Mapping[str, Any]:
            self.recipe.scoring.write(backtest.forecasts, folder / _FORECASTS)
            return {"peeked": backtest.peeked}

        self.run.compute(name, work)

    def _stored(self, name: str) -> Backtest:
        try:
            forecasts = self.recipe.scoring.read(self.run.step(name) / _FORECASTS)
        except ValueError as error:
            raise TrainingError(f"{error}; delete {self.run.step(name)} and train again") from error
        return Backtest(forecasts, float(self.run.result_of(name)["peeked"]))

    def _sign(self, folder: Path, files: Mapping[str, bytes]) -> Mapping[str, Any]:
        restore_files(files, folder / "model")
        return {"digest": sign_folder(folder / "model", signing_key(self.settings.keys))}

    def _count(self, missing: int, total: int) -> None:
        self.computed += missing
        self.kept += total - missing

    @cached_property
    def _read(self) -> dict[str, Backtest]:
        return {}

    @cached_property
    def _tasks(self) -> Tasks:
        if self._own_tasks is not None:
            return self._own_tasks
        self.progress(Event("ray", 0, 1))
        self._ray = RayTasks(self.settings, on_slow=lambda text: self.progress(Event("ray", 0, 1, text)))
        self.progress(Event("ray", 1, 1))
        return self._ray

    @cached_property
    def _table(self) -> Any:
        """Features in a store of the run's own, so that series of the same name elsewhere are not replaced."""
        self.progress(Event("features", 0, 1))
        table = self.recipe.table(self.dataset, replace(self.settings, home=self._scratch, redis_url=""))
        self.progress(Event("features", 1, 1, f"{len(table)} rows"))
        return table

    @property
    def _scratch(self) -> Path:
        return self.run.path / "features"

    def _shared(self, parameters: Mapping[str, Any]) -> Shared:
        return Shared(self.recipe.predictor, self.dataset, self._table, parameters)
