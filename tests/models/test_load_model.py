"""``kopt.load_model`` takes the addresses that MLflow's pages show, and loads what is signed."""

import pytest
from empty_registry import with_empty_registry

import kopt
from kopt.core.settings import Settings
from kopt.models.registry.registry import NotRegisteredError, Registry, RegistryError


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=with_empty_registry(tmp_path_factory.mktemp("home")))


@pytest.mark.parametrize("predictor", ["demand", "sizing", "checkpoint", "bandwidth", "runtime"])
def test_the_champion_of_each_predictor_is_loaded_by_alias_and_by_version(settings: Settings, predictor: str) -> None:
    champion = Registry(settings).ensure_champion(predictor)
    assert champion is not None
    for address in (f"models:/{predictor}@champion", f"models:/{predictor}/{champion.version}"):
        assert kopt.load_model(address, settings=settings).version.digest == champion.digest


@pytest.mark.parametrize("address", ["demand", "models:/demand", "models:/demand@", "models:/../x/1", ""])
def test_another_address_is_refused_with_an_example(settings: Settings, address: str) -> None:
    with pytest.raises(ValueError, match="models:/demand@champion"):
        kopt.load_model(address, settings=settings)


def test_what_is_not_there_is_said(settings: Settings) -> None:
    with pytest.raises(NotRegisteredError):
        kopt.load_model("models:/demand@challenger", settings=settings)


def test_files_that_were_altered_are_refused(settings: Settings) -> None:
    registry = Registry(settings)
    champion = registry.ensure_champion("bandwidth")
    assert champion is not None
    for stored in (settings.home / "models").rglob("*.json"), settings.artifacts.rglob("*.json"):
        for path in stored:
            if path.name not in ("model.json", "signature.json"):
                path.write_text(path.read_text().replace("0", "1", 1))
    with pytest.raises(RegistryError):
        kopt.load_model("models:/bandwidth@champion", settings=settings)
