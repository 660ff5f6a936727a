"""One call trains, judges, registers and promotes; what was finished is never done twice."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kopt.core.settings import Settings
from kopt.models.registry.registry import NotRegisteredError, Registry, RegistryError
from kopt.training.pipeline.progress import Event
from kopt.training.pipeline.protocols import GateRules
from kopt.training.pipeline.run import TrainingError, TrainingOutcome, TrainOptions, train
from kopt.training.pipeline.steps import RunFolder
from kopt.training.pipeline.tasks import HereTasks

OPTIONS = TrainOptions(folds=2, rules=GateRules(resamples=100))


@pytest.fixture
def run(settings: Settings, registry: Registry) -> Any:
    """Trains the ratio predictor in this process."""

    def call(source: Any, progress: Any = lambda _: None, **parameters: Any) -> TrainingOutcome:
        options = dataclasses.replace(OPTIONS, **parameters.pop("options", {}), parameters=parameters)
        return train(
            "ratios",
            source=source,
            settings=settings,
            options=options,
            tasks=HereTasks(),
            registry=registry,
            progress=progress,
        )

    return call


def test_the_first_model_becomes_champion_and_answers(run: Any, generated: Any, registry: Registry) -> None:
    outcome = run(generated(1), bias=0.9, blend=0.2)
    assert outcome.promoted == outcome.decision.passed
    registry.promote("ratios", outcome.model.version, force=True)
    loaded: Any = registry.load("ratios")
    assert loaded.blend == 0.2
    assert loaded.version.version == "1"


def test_a_second_identical_run_computes_nothing(
    run: Any, generated: Any, ratio_recipe: Any, registry: Registry
) -> None:
    first = run(generated(1))
    registry.promote("ratios", first.model.version, force=True)
    assert ratio_recipe.calls == ["table", "recent", "fold-0", "fold-1", "final"]
    ratio_recipe.calls.clear()
    second = run(generated(1))
    assert ratio_recipe.calls == []
    assert (second.computed, second.model.version, second.model.digest) == (0, "1", first.model.digest)
    assert len(registry.list("ratios")) == 1
    assert second.summaries == first.summaries


def test_other_data_parameters_or_folds_are_another_run(run: Any, generated: Any) -> None:
    runs = [
        run(generated(1)),
        run(generated(2)),
        run(generated(1), blend=0.1),
        run(generated(1), options={"folds": 3}),
    ]
    assert len({one.run for one in runs}) == 4
    assert len({one.model.version for one in runs}) == 4


def test_a_better_challenger_is_promoted_and_a_worse_one_refused(run: Any, generated: Any, registry: Registry) -> None:
    poor = run(generated(1), bias=0.5)
    registry.promote("ratios", poor.model.version, force=True)
    good = run(generated(2))
    assert good.promoted, good.decision.summary
    assert registry.resolve("ratios").version == good.model.version
    assert registry.get("ratios", good.model.version).gate == "passed"
    bad = run(generated(3), bias=1.6)
    assert not bad.promoted
    assert "the median's error grows by" in bad.decision.summary
    assert registry.resolve("ratios").version == good.model.version
    assert registry.resolve("ratios", "challenger").version == bad.model.version
    assert "error grows" in registry.get("ratios", bad.model.version).gate_summary


def test_made_up_data_never_replaces_a_champion_of_real_data_and_both_have_figures(
    run: Any, generated: Any, registry: Registry
) -> None:
    measured = generated(1).read()

    class Measured:
        def read(self) -> Any:
            return dataclasses.replace(measured, name="services")

    poor = run(Measured(), bias=0.5)
    registry.promote("ratios", poor.model.version, force=True)
    toy = run(generated(2))
    assert not toy.promoted
    assert [reason.code for reason in toy.decision.reasons] == ["EXAMPLE_DATA", "BETTER"]
    assert registry.resolve("ratios").version == poor.model.version
    with pytest.raises(RegistryError, match="made-up example data"):
        registry.promote("ratios", toy.model.version)
    rows = {row.metric: row.values for row in registry.compare("ratios", ("champion", "challenger"))}
    champion, challenger = rows["all/mase_5min"]
    assert champion > challenger, "the champion's figure is of the challenger's rows"
    assert all(value is not None for values in rows.values() for value in values)
    assert not any(name.startswith("champion/") for name in rows)


def test_a_model_that_sees_the_future_is_refused_however_good_it_looks(run: Any, generated: Any) -> None:
    outcome = run(generated(1), peek=True)
    assert not outcome.promoted
    assert [reason.code for reason in outcome.decision.reasons] == ["LEAK"]
    assert "when the future is cut off" in outcome.decision.summary
    assert any(one.mase_ratio < 0.9 for one in outcome.summaries)


def test_a_challenger_on_the_champions_own_data_has_nothing_to_be_compared_on(
    run: Any, generated: Any, registry: Registry
) -> None:
    first = run(generated(1), bias=0.5)
    registry.promote("ratios", first.model.version, force=True)
    again = run(generated(1))
    assert [reason.code for reason in again.decision.reasons] == ["TOO_LITTLE_DATA"]


def test_only_days_after_the_champions_data_are_compared(run: Any, generated: Any, registry: Registry) -> None:
    """The generator's series continue: a longer run of the same seed starts with the same values only by chance, so
    the champion's days are cut from the challenger's data instead."""
    whole = generated(1, days=8).read()

    class Part:
        def __init__(self, buckets: int) -> None:
            self.buckets = buckets

        def read(self) -> Any:
            series = tuple(one.upto(self.buckets - 1) for one in whole.series)
            return dataclasses.replace(whole, series=series)

    champion = run(Part(6 * 288), bias=0.5)
    registry.promote("ratios", champion.model.version, force=True)
    later = run(Part(8 * 288))
    assert later.promoted, later.decision.summary


def test_what_was_rolled_back_does_not_come_back_by_itself(run: Any, generated: Any, registry: Registry) -> None:
    poor = run(generated(1), bias=0.5)
    registry.promote("ratios", poor.model.version, force=True)
    good = run(generated(2))
    assert good.promoted
    assert registry.rollback("ratios").version == poor.model.version
    again = run(generated(2))
    assert not again.promoted
    assert again.decision.passed
    assert registry.resolve("ratios").version == poor.model.version


def test_an_interrupt_keeps_what_was_finished_and_the_next_run_goes_on(
    run: Any, generated: Any, ratio_recipe: Any, registry: Registry
) -> None:
    ratio_recipe.interrupt_at = "fold-1"
    with pytest.raises(KeyboardInterrupt):
        run(generated(1))
    assert registry.list("ratios") == ()
    (killed,) = registry.client.search_runs([registry.experiment("ratios")])
    assert killed.info.status == "KILLED"
    ratio_recipe.interrupt_at = ""
    ratio_recipe.calls.clear()
    events: list[Event] = []
    outcome = run(generated(1), events.append)
    assert ratio_recipe.calls == ["table", "fold-1", "final"]
    assert outcome.kept == 2
    assert Event("fit", 2, 4, kept=2) in events
    runs = registry.client.search_runs([registry.experiment("ratios")])
    (finished,) = (each for each in runs if "mlflow.parentRunId" not in each.data.tags)
    assert (finished.info.run_id, finished.info.status) == (killed.info.run_id, "FINISHED")


def test_a_failure_marks_the_mlflow_run_as_failed(run: Any, generated: Any, ratio_recipe: Any, registry: Any) -> None:
    with pytest.raises(TypeError):
        run(generated(1), unknown_parameter=1)
    (failed,) = registry.client.search_runs([registry.experiment("ratios")])
    assert failed.info.status == "FAILED"


def test_damaged_results_are_an_error_that_names_the_folder(run: Any, generated: Any, settings: Settings) -> None:
    outcome = run(generated(1))
    step = settings.home / "runs" / outcome.run / "fold-0"
    (step / "forecasts.parquet").write_bytes(b"PAR1")
    with pytest.raises(TrainingError, match="fold-0"):
        run(generated(1))
    (step / "done.json").write_text("{")
    with pytest.raises(TrainingError, match="damaged"):
        run(generated(1))


def test_two_processes_do_not_train_the_same_model_at_once(run: Any, generated: Any, settings: Settings) -> None:
    outcome = run(generated(1))
    with RunFolder(settings.home, outcome.run).alone(), pytest.raises(TrainingError, match="another process"):
        run(generated(1))


def test_the_search_finds_the_best_parameters_and_is_resumed(run: Any, generated: Any, ratio_recipe: Any) -> None:
    outcome = run(generated(1), options={"trials": 8})
    assert ratio_recipe.calls.count("loss") == 8
    again = run(generated(1), options={"trials": 8})
    assert ratio_recipe.calls.count("loss") == 8
    assert again.model.version == outcome.model.version


def test_mlflow_has_parameters_figures_by_slice_plots_data_digest_and_the_model(
    run: Any, generated: Any, registry: Registry
) -> None:
    outcome = run(generated(1), blend=0.25)
    client = registry.client
    logged = client.get_run(outcome.model.run_id).data
    assert logged.params["blend"] == "0.25"
    assert logged.tags["dataset_digest"] == generated(1).read().digest
    assert logged.tags["gate"] in ("passed", "refused")
    wanted = {f"{s}/mase_ratio_{m}min" for s in ("all", "regime new services", "step 5 min") for m in (5, 30, 60)}
    assert wanted <= set(logged.metrics)
    plots = {item.path for item in client.list_artifacts(outcome.model.run_id, "plots")}
    assert plots == {"plots/plots.html"}
    model = {item.path for item in client.list_artifacts(outcome.model.run_id, "model")}
    assert model == {"model/model.json", "model/ratios.json", "model/signature.json"}


def test_mlflow_shows_who_trained_on_what_and_each_trial_and_fold_below_the_run(
    run: Any, generated: Any, registry: Registry
) -> None:
    for _ in range(2):
        outcome = run(generated(1), options={"trials": 4})
    client, experiment = registry.client, registry.experiment("ratios")
    logged = client.get_run(outcome.model.run_id)
    (given,) = logged.inputs.dataset_inputs
    data = generated(1).read()
    assert (given.dataset.name, given.dataset.digest) == (data.name, data.digest[:36])
    assert json.loads(given.dataset.profile)["names"] == len(data.names)
    assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]
    assert logged.data.tags["mlflow.source.name"] == "kopt train ratios"
    assert logged.data.tags["mlflow.user"]
    below = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{outcome.model.run_id}'")
    names = sorted(each.info.run_name.partition("-")[0] for each in below)
    assert names == ["fold", "fold", "recent", "trial", "trial", "trial", "trial"], "once, whoever trains again"
    by_name = {each.info.run_name: each for each in below}
    assert "all/mase_ratio_5min" in by_name["fold-0"].data.metrics
    assert {each.info.status for each in below} == {"FINISHED"}
    trial = next(each for name, each in by_name.items() if name.startswith("trial"))
    assert trial.data.metrics["loss"] == pytest.approx((float(trial.data.params["blend"]) - 0.3) ** 2)
    kind = client.get_experiment(experiment).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"


def test_a_versions_page_in_mlflow_says_why_it_won_or_lost_and_how_to_load_it(
    run: Any, generated: Any, registry: Registry
) -> None:
    first = run(generated(2))
    registry.promote("ratios", first.model.version, force=True)
    lost = run(generated(3), bias=1.6)
    client = registry.client
    page = client.get_model_version("ratios", lost.model.version).description
    assert "The gate refused it against version 1" in page
    assert "the median's error grows by" in page
    figure = next(line for line in page.splitlines() if line.startswith("| mase_ratio_5min "))
    mine, champions = (float(cell) for cell in figure.split("|")[2:4])
    assert mine > champions
    assert 'kopt.load_model("models:/ratios/2")' in page
    about = client.get_registered_model("ratios").description
    assert "The last value times quantiles of past ratios" in about
    files = {item.path for item in client.list_artifacts(lost.model.run_id, "gate")}
    assert files == {"gate/comparisons.csv", "gate/reasons.md"}
    folder = Path(client.download_artifacts(lost.model.run_id, "gate"))
    rows = list(csv.DictReader((folder / "comparisons.csv").read_text().splitlines()))
    assert any(float(row["high"]) < 0 for row in rows), "what it lost is in the table"


def test_the_card_of_the_model_says_what_it_was_trained_on(run: Any, generated: Any, registry: Registry) -> None:
    outcome = run(generated(1))
    card = json.loads((registry.fetch("ratios", outcome.model.version) / "model.json").read_text())
    assert {one["name"] for one in card["training_data"]} == {one.name for one in generated(1).read().series}
    assert all(len(one["days"]) >= 3 for one in card["training_data"])


def test_a_refused_first_model_is_no_champion(run: Any, generated: Any, registry: Registry) -> None:
    outcome = run(generated(1), bias=3.0)
    assert not outcome.promoted
    assert "of the last value's" in outcome.decision.summary
    with pytest.raises(NotRegisteredError):
        registry.resolve("ratios")


def test_a_champion_of_an_older_version_that_cannot_be_loaded_is_replaced_by_one_that_beats_the_last_value(
    run: Any, generated: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(generated(1), bias=0.5)
    registry.promote("ratios", first.model.version, force=True)

    def changed(*_: Any) -> Any:
        raise ValueError("fitted on other features; train it again")

    monkeypatch.setattr("ratio_recipe.RatioPredictor.load", changed)
    outcome = run(generated(2), bias=0.9, blend=0.2)
    assert outcome.decision.reasons[-1].code == "CHAMPION_UNUSABLE"
    assert "fitted on other features" in outcome.decision.reasons[-1].message
    assert outcome.promoted == outcome.decision.passed
