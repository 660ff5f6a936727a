"""Who may let a challenger answer a share of the questions: a statement signed by a trusted key, the newest one."""

from pathlib import Path

import pytest
from empty_registry import with_empty_registry
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.models.registry.artifact import ModelCard, library_versions, save_model
from kopt.models.registry.loading import load_predictor
from kopt.models.registry.promotion_seals import CANARY_TAG
from kopt.models.registry.registry import CHALLENGER, CHAMPION, RegisteredModel, Registry, RegistryError
from kopt.models.registry.signing import sign_folder

NAME = "bandwidth"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """With the shipped model as champion, and another version of it as challenger that the gate passed."""
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    registry = Registry(settings)
    champion = registry.ensure_champion(NAME)
    assert champion is not None
    challenge(registry, tmp_path / "second", passed=True)
    return registry


def challenge(registry: Registry, folder: Path, *, passed: bool) -> RegisteredModel:
    predictor = load_predictor(NAME, "shipped")
    save_model(predictor, folder, ModelCard(NAME, {"note": folder.name}, (), (), library_versions()))
    sign_folder(folder, signing_key(registry.settings.keys))
    model = registry.register(folder)
    against = registry.get(NAME, CHAMPION).version
    registry.record_decision(NAME, model.version, passed=passed, against=against, summary="as the test says")
    registry.challenge(NAME, model.version)
    return registry.get(NAME, model.version)


def percent(registry: Registry) -> int:
    return registry.canary_percent(registry.get(NAME, CHALLENGER))


def test_a_share_holds_until_it_is_ended_or_the_champion_changes(registry: Registry, tmp_path: Path) -> None:
    assert percent(registry) == 0
    registry.set_canary(NAME, 20)
    assert percent(registry) == 20
    registry.set_canary(NAME, 0)
    assert percent(registry) == 0
    registry.set_canary(NAME, 10)
    registry.promote(NAME, CHALLENGER)
    refused = challenge(registry, tmp_path / "third", passed=False)
    assert percent(registry) == 0, "a share is one version's"
    with pytest.raises(RegistryError, match="refused by the gate"):
        registry.set_canary(NAME, 10)
    registry.set_canary(NAME, 10, force=True)
    assert percent(registry) == 10
    for wrong in (-1, 51, 100):
        with pytest.raises(RegistryError, match="no percentage"):
            registry.set_canary(NAME, wrong, force=True)
    assert refused.version == registry.get(NAME, CHALLENGER).version


def test_what_others_write_into_the_registry_lets_nobody_answer(registry: Registry, tmp_path: Path) -> None:
    model = registry.set_canary(NAME, 50)
    older = model.tags[CANARY_TAG]
    registry.set_canary(NAME, 0)

    def written(text: str, version: str = model.version) -> int:
        registry.client.set_model_version_tag(NAME, version, CANARY_TAG, text)
        return percent(registry)

    assert written(older) == 0, "an ended trial does not come back"
    assert written(older.replace('"percent":50', '"percent":49')) == 0
    for hostile in ("", "{}", "50", "x" * 10_000, "[" * 5000):
        assert written(hostile) == 0
    stranger = Registry(Settings(home=with_empty_registry(tmp_path / "stranger")))
    stranger.ensure_champion(NAME)
    challenge(stranger, tmp_path / "theirs", passed=True)
    assert written(stranger.set_canary(NAME, 50).tags[CANARY_TAG]) == 0, "no trusted key"
    third = challenge(registry, tmp_path / "third", passed=True)
    newest = registry.set_canary(NAME, 30).tags[CANARY_TAG]
    assert percent(registry) == 30
    registry.challenge(NAME, model.version)
    assert written(newest) == 0, "it was signed for another version"
    assert third.version != model.version


def test_the_command_sets_shows_and_ends_it(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_HOME", str(registry.settings.home))
    done = CliRunner().invoke(app, ["models", "canary", NAME, "10"])
    assert done.exit_code == 0, done.output
    assert "answers 10 % of the questions now" in done.output
    assert percent(registry) == 10
    for words in (["canary", NAME], ["canary", NAME, "ten"]):
        assert CliRunner().invoke(app, ["models", *words]).exit_code == 2
    assert CliRunner().invoke(app, ["models", "canary", NAME, "60"]).exit_code == 1
    assert CliRunner().invoke(app, ["models", "canary", NAME, "0"]).exit_code == 0
    assert percent(registry) == 0
