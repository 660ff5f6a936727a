"""A home finds its champion without MLflow, and trusts nothing that is not sealed and newest."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kopt.core.settings import Settings
from kopt.models.registry.champion_pointer import POINTERS_FILE, ChampionPointers
from kopt.models.registry.registry import Registry

Make = Callable[[float], Path]


@pytest.fixture
def promoted(registry: Registry, signed_model: Make) -> Registry:
    """Version 1 is champion, version 2 waits."""
    for factor in (2.0, 3.0):
        registry.register(signed_model(factor))
    registry.promote("ratios", "1", force=True, reason="first")
    return registry


def _pointed(registry: Registry) -> str | None:
    loaded = registry.load_pointed("ratios")
    return None if loaded is None else f"{loaded.version.version}: {loaded.predict(10.0)[0].value}"


def _change(settings: Settings, **fields: Any) -> None:
    path = settings.home / POINTERS_FILE
    entries = json.loads(path.read_text())
    entries["ratios"] |= fields
    path.write_text(json.dumps(entries))


def test_a_promotion_and_a_rollback_are_found_at_once(promoted: Registry) -> None:
    assert _pointed(promoted) == "1: 20.0"
    promoted.promote("ratios", "2", force=True, reason="second")
    assert _pointed(promoted) == "2: 30.0"
    promoted.rollback("ratios")
    assert _pointed(promoted) == "1: 20.0"


def test_what_the_registry_proved_is_noted(promoted: Registry, settings: Settings) -> None:
    (settings.home / POINTERS_FILE).unlink()
    assert _pointed(promoted) is None
    promoted.load("ratios", "champion")
    assert _pointed(promoted) == "1: 20.0"


def test_an_older_promotion_points_no_more(promoted: Registry, settings: Settings) -> None:
    before = (settings.home / POINTERS_FILE).read_text()
    promoted.promote("ratios", "2", force=True, reason="second")
    (settings.home / POINTERS_FILE).write_text(before)
    assert _pointed(promoted) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ratios": 1}', '{"ratios": {"version": "1"}}', "[" * 100_000])
def test_a_torn_file_points_nowhere(promoted: Registry, settings: Settings, text: str) -> None:
    (settings.home / POINTERS_FILE).write_text(text)
    assert _pointed(promoted) is None
    promoted.load("ratios", "champion")
    assert _pointed(promoted) == "1: 20.0"


def test_a_pointer_to_a_model_without_its_seal_is_not_followed(promoted: Registry, settings: Settings) -> None:
    other = promoted.get("ratios", "2")
    promoted.fetch("ratios", "2")
    _change(settings, digest=other.digest)
    assert _pointed(promoted) is None
    _change(settings, seal="")
    assert _pointed(promoted) is None


def test_a_seal_of_a_key_that_is_no_longer_trusted_does_not_count(promoted: Registry, settings: Settings) -> None:
    for key in settings.keys.glob("*.pub"):
        key.unlink()
    assert _pointed(promoted) is None


def test_an_altered_folder_is_not_loaded(promoted: Registry, settings: Settings) -> None:
    digest = promoted.get("ratios", "1").digest
    folder = settings.home / "models" / digest
    victim = next(path for path in folder.iterdir() if path.name == "ratios.json")
    victim.write_text(victim.read_text().replace("2.0", "9.0"))
    assert _pointed(promoted) is None


def test_a_registry_elsewhere_has_no_pointer(promoted: Registry, settings: Settings) -> None:
    pointers = ChampionPointers(replace(settings, mlflow_uri="http://127.0.0.1:1"))
    assert pointers.champion("ratios") is None


def test_a_champion_of_a_home_loads_without_mlflow(settings: Settings) -> None:
    Registry(settings).ensure_champion("checkpoint")
    code = (
        "import sys; from pathlib import Path; from kopt.core.settings import Settings;"
        "from kopt.models.registry.loading import load_predictor as load;"
        "print(load('checkpoint', 'champion', Settings(Path(sys.argv[1]))).version.version, 'mlflow' in sys.modules)"
    )
    command = [sys.executable, "-P", "-c", code, str(settings.home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"], done.stdout
