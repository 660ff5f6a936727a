"""The package's own default models: verified, first champion, replaced by a newer package's."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from empty_registry import with_empty_registry

from kopt.core.settings import Settings
from kopt.dashboard.pages.models.data import ModelsReader
from kopt.dashboard.pages.models.view import model_page
from kopt.models.registry import registry as registry_module
from kopt.models.registry import shipped
from kopt.models.registry.artifact import ArtefactError
from kopt.models.registry.registry import Registry, RegistryError
from kopt.models.registry.shipped import shipped_digests, verified_shipped
from kopt.models.registry.signing import SIGNATURE_FILE, folder_digest

Make = Callable[[float], Path]


@pytest.fixture
def package(signed_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function: growth → a package that ships the model fitted on it."""

    def ship(growth: float) -> Path:
        folder = tmp_path / f"package-{growth}"
        shutil.copytree(signed_model(growth), folder)
        (folder / SIGNATURE_FILE).unlink()
        digests = tmp_path / f"digests-{growth}.json"
        digests.write_text(json.dumps({"ratios": folder_digest(folder)}))
        monkeypatch.setattr(shipped, "DIGESTS_FILE", digests)
        monkeypatch.setattr(shipped, "shipped_folder", lambda _: folder)
        return folder

    return ship


def _again(registry: Registry) -> Registry:
    return Registry(registry.settings, predictors=registry._predictors)


def test_the_committed_models_are_whole() -> None:
    assert shipped_digests()
    for name in shipped_digests():
        assert verified_shipped(name).is_dir()


def test_the_shipped_model_becomes_the_first_champion(registry: Registry, package: Any) -> None:
    package(2.0)
    champion = _again(registry).ensure_champion("ratios")
    assert champion is not None
    assert champion.aliases == ("champion",)
    assert champion.tags["origin"] == "shipped"
    assert _again(registry).ensure_champion("ratios") == champion
    assert _again(registry).load("ratios").predict(10.0)[0].value == 20.0


def test_what_a_killed_registration_left_is_removed_by_the_next(
    registry: Registry, package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "kopt-shipped-left"
    left.mkdir(mode=0o700)
    package(2.0)
    _again(registry).ensure_champion("ratios")
    assert not left.exists()


def test_a_newer_package_replaces_its_own_model_and_the_old_one_still_loads(registry: Registry, package: Any) -> None:
    package(2.0)
    old = _again(registry).ensure_champion("ratios")
    package(3.0)
    new = _again(registry).ensure_champion("ratios")
    assert old is not None
    assert new is not None
    assert (old.version, new.version) == ("1", "2")
    assert _again(registry).load("ratios", "1").predict(1.0)[0].value == 2.0
    assert _again(registry).rollback("ratios").version == "1"
    assert _again(registry).ensure_champion("ratios").version == "1"  # type: ignore[union-attr]


def test_a_champion_of_ones_own_stays(registry: Registry, package: Any, signed_model: Make) -> None:
    own = registry.register(signed_model(5.0)).version
    registry.promote("ratios", own, force=True)
    package(2.0)
    assert _again(registry).ensure_champion("ratios").version == own  # type: ignore[union-attr]


def test_an_altered_shipped_model_is_refused(registry: Registry, package: Any) -> None:
    (package(2.0) / "ratios.json").write_text("[0.0, 99.0]")
    with pytest.raises(ArtefactError, match="altered"):
        verified_shipped("ratios")
    with pytest.raises(RegistryError, match="altered"):
        _again(registry).ensure_champion("ratios")
    assert registry.list("ratios") == ()


def test_without_a_shipped_model_there_is_no_first_champion(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "shipped_digests", dict)
    assert registry.ensure_champion("ratios") is None


def test_the_committed_figures_are_those_of_the_committed_models() -> None:
    recorded = json.loads(shipped.FIGURES_FILE.read_text(encoding="utf-8"))
    assert {"demand", "checkpoint", "bandwidth"} <= recorded.keys(), "sizing needs an environment with timm"
    for name, entry in recorded.items():
        assert entry["digest"] == shipped_digests()[name], f"make default-models measures {name} again"
        assert shipped.shipped_figures(entry["digest"]) == entry["figures"]
    assert shipped.shipped_figures("0" * 64) == {}
    assert 0 < recorded["demand"]["figures"]["all/mase_ratio_30min"] < 1


def test_a_champion_alone_has_its_figures_in_the_registry_and_on_the_page(tmp_path: Path) -> None:
    registry = Registry(Settings(home=with_empty_registry(tmp_path / "home")))
    champion = registry.ensure_champion("demand")
    assert champion is not None
    logged = registry.client.get_run(champion.run_id).data.metrics
    assert logged == shipped.shipped_figures(champion.digest)
    problems: list[str] = []
    reader = ModelsReader(SimpleNamespace(client=None, registry=registry, served=None))  # type: ignore[arg-type]
    page = model_page(reader._registered(problems))
    assert not problems
    assert page.challenger is None
    assert page.slices[0].name == "all"
    lines = {line.label: line.pairs for line in page.slices[0].lines}
    assert lines["MASE, of the last value's"][30].champion == logged["all/mase_ratio_30min"]


def test_figures_are_shown_of_a_version_that_was_registered_without(
    registry: Registry, package: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(2.0)
    champion = registry.ensure_champion("ratios")
    assert champion is not None
    assert registry.metrics(champion) == {}
    figures = tmp_path / "figures.json"
    entry = {"digest": champion.digest, "folds": 5, "figures": {"all/error": 0.5}}
    figures.write_text(json.dumps({"ratios": entry}))
    monkeypatch.setattr(shipped, "FIGURES_FILE", figures)
    assert registry.metrics(champion) == {"all/error": 0.5}
