"""The bandwidth predictor goes through the same pipeline: folds of machine classes, errors by machine, gate."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from empty_registry import with_empty_registry

from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.settings import Settings
from kopt.models.bandwidth.rows import MeasuredRow
from kopt.models.registry import registry as registering
from kopt.models.registry.registry import Registry
from kopt.training.bandwidth.recipe import BandwidthDataset, BandwidthTables, described_rows, licensed_rows
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks

_EXAMPLE = Path(__file__).parents[1] / "models" / "examples" / "bandwidth.py"


def rows() -> tuple[MeasuredRow, ...]:
    spec = importlib.util.spec_from_file_location("bandwidth_example", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.table())


class Given:
    def __init__(self, found: BandwidthDataset) -> None:
        self.dataset = found

    def read(self) -> BandwidthDataset:
        return self.dataset


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registering, "shipped_digests", dict)
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    registry = Registry(settings, trusted_digests=())
    options = {"settings": settings, "options": TrainOptions(folds=3), "tasks": HereTasks(), "registry": registry}
    return lambda found: train("bandwidth", source=Given(found), **options)  # type: ignore[arg-type]


def test_a_first_model_is_judged_on_classes_it_has_not_seen(trained: Any) -> None:
    outcome = trained(BandwidthDataset("made-up", rows()))
    assert outcome.promoted
    (whole,) = [one for one in outcome.summaries if one.slice == "all"]
    assert whole.services == 3
    assert 0.0 < whole.median_error < 0.5


def test_a_model_that_is_far_off_is_refused(trained: Any) -> None:
    wrong = tuple(
        replace(one, latency_us=one.latency_us * (100 if one.machine == "MI300X" else 0.01)) for one in rows()
    )
    outcome = trained(BandwidthDataset("made-up", wrong))
    assert not outcome.promoted
    assert outcome.decision.reasons[0].code == "INACCURATE"


def test_only_sources_of_known_licence_are_for_everybody() -> None:
    found = rows()
    mixed = (replace(found[0], source="ai-dynamo/aiconfigurator:x"), replace(found[1], source="some/repo:y"))
    kept = licensed_rows(BandwidthDataset("made-up", mixed))
    assert [one.source for one in kept.rows] == ["ai-dynamo/aiconfigurator:x"]
    assert kept.excluded == {"some/repo": "licence not known"}


def test_folders_without_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BandwidthError, match=r"bandwidth\*\.csv"):
        BandwidthTables(tmp_path).read()


def test_the_default_model_learns_nothing_between_nodes_of_networks_that_nobody_describes() -> None:
    told = rows()[0]

    def across(nics: str) -> MeasuredRow:
        hardware = replace(told.query.hardware, n_nodes=2, nic_config=nics)
        return replace(told, machine=nics, query=replace(told.query, hardware=hardware))

    kept = described_rows(BandwidthDataset("made-up", (told, across("IB (unspecified)"), across("8x NDR400 IB"))))
    assert [row.machine for row in kept.rows] == [told.machine, "8x NDR400 IB"]
    assert kept.excluded == {"IB (unspecified), between nodes": "its network is not described"}
