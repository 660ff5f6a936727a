"""Versions are stored, guarded, fetched by digest, promoted and rolled back."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kopt.core.settings import Settings
from kopt.models.registry.registry import NotRegisteredError, Registry, RegistryError
from kopt.models.registry.signing import sign_folder

Make = Callable[[float], Path]


def _passed(registry: Registry, folder: Path, against: str = "") -> str:
    version = registry.register(folder).version
    registry.record_decision("ratios", version, passed=True, against=against, summary="better")
    return version


def test_a_registered_model_comes_back_and_answers_the_same(registry: Registry, signed_model: Make) -> None:
    made = registry.register(signed_model(2.0), metrics={"mase": 0.8}, tags={"origin": "test"})
    loaded = registry.load("ratios", made.version)
    assert loaded.predict(10.0)[0].value == 20.0
    assert loaded.version == made.model_version
    assert made.tags["origin"] == "test"
    assert registry.metrics(made) == {"mase": 0.8}


def test_registering_the_same_folder_twice_gives_one_version(registry: Registry, signed_model: Make) -> None:
    folder = signed_model(2.0)
    assert registry.register(folder) == registry.register(folder)


def test_versions_are_listed_newest_first_with_their_aliases(registry: Registry, signed_model: Make) -> None:
    assert registry.list("ratios") == ()
    first = _passed(registry, signed_model(2.0))
    registry.promote("ratios", first)
    second = registry.register(signed_model(3.0)).version
    registry.challenge("ratios", second)
    assert [(m.version, m.aliases) for m in registry.list("ratios")] == [("2", ("challenger",)), ("1", ("champion",))]
    assert registry.resolve("ratios").version == first
    assert registry.get("ratios", "challenger").version == second


def test_metrics_of_two_versions_stand_side_by_side(registry: Registry, signed_model: Make) -> None:
    registry.register(signed_model(2.0), metrics={"mase": 0.8, "only_first": 1})
    registry.register(signed_model(3.0), metrics={"mase": 0.7})
    rows = registry.compare("ratios", ["1", "2"])
    assert [(row.metric, row.values) for row in rows] == [("mase", (0.8, 0.7)), ("only_first", (1.0, None))]


def test_absent_models_versions_and_aliases_are_named(registry: Registry, signed_model: Make) -> None:
    with pytest.raises(NotRegisteredError, match="champion"):
        registry.resolve("ratios")
    registry.register(signed_model(2.0))
    with pytest.raises(NotRegisteredError, match="champion"):
        registry.resolve("ratios")
    with pytest.raises(NotRegisteredError, match="version 7"):
        registry.get("ratios", "7")


def test_promotion_needs_a_verdict_against_the_champion_of_today(registry: Registry, signed_model: Make) -> None:
    first = registry.register(signed_model(2.0)).version
    with pytest.raises(RegistryError, match="not been through the gate"):
        registry.promote("ratios", first)
    registry.record_decision("ratios", first, passed=False, against="", summary="kind=llm: 12 % worse")
    with pytest.raises(RegistryError, match="12 % worse"):
        registry.promote("ratios", first)
    registry.record_decision("ratios", first, passed=True, against="", summary="ok")
    registry.promote("ratios", first)
    stale = _passed(registry, signed_model(3.0), against="9")
    with pytest.raises(RegistryError, match="judged against version 9, but the champion is now 1"):
        registry.promote("ratios", stale)
    assert registry.resolve("ratios").version == first


def test_a_forced_promotion_is_recorded(registry: Registry, signed_model: Make) -> None:
    version = registry.register(signed_model(2.0)).version
    assert registry.promote("ratios", version, force=True, reason="tried by hand").tags["forced"] == "tried by hand"
    assert registry.resolve("ratios").version == version


def test_promoting_the_challenger_takes_its_alias_away(registry: Registry, signed_model: Make) -> None:
    version = _passed(registry, signed_model(2.0))
    registry.challenge("ratios", version)
    assert registry.promote("ratios").aliases == ("champion",)
    with pytest.raises(NotRegisteredError):
        registry.resolve("ratios", "challenger")


def test_rollback_brings_back_one_champion_after_another(registry: Registry, signed_model: Make) -> None:
    for growth, against in ((2.0, ""), (3.0, "1"), (4.0, "2")):
        registry.promote("ratios", _passed(registry, signed_model(growth), against))
    assert registry.history("ratios") == ("1", "2", "3")
    assert registry.rollback("ratios").version == "2"
    assert "rolled_back_s" in registry.get("ratios", "3").tags
    assert registry.rollback("ratios").version == "1"
    with pytest.raises(RegistryError, match="only champion"):
        registry.rollback("ratios")
    assert registry.resolve("ratios").version == "1"


def test_rollback_works_after_the_alias_was_moved_in_mlflows_pages(registry: Registry, signed_model: Make) -> None:
    registry.promote("ratios", _passed(registry, signed_model(2.0)))
    second = registry.register(signed_model(3.0)).version
    registry.client.set_registered_model_alias("ratios", "champion", second)
    registry.client.set_registered_model_tag("ratios", "champion_history", "not json")
    with pytest.raises(RegistryError, match="only champion"):
        registry.rollback("ratios")
    registry.client.set_registered_model_tag("ratios", "champion_history", json.dumps(["1"]))
    assert registry.rollback("ratios").version == "1"


def test_rolling_back_to_a_deleted_artefact_keeps_the_champion(
    registry: Registry, signed_model: Make, settings: Settings
) -> None:
    registry.promote("ratios", _passed(registry, signed_model(2.0)))
    registry.promote("ratios", _passed(registry, signed_model(3.0), "1"))
    for folder in (settings.artifacts, settings.home / "models"):
        shutil.rmtree(folder)
    with pytest.raises(RegistryError, match=r"version 1.*deleted"):
        registry.rollback("ratios")
    assert registry.resolve("ratios").version == "2"


def test_an_unsigned_or_foreign_folder_is_not_registered(registry: Registry, signed_model: Make) -> None:
    folder = signed_model(2.0)
    (folder / "signature.json").unlink()
    with pytest.raises(RegistryError, match="not signed"):
        registry.register(folder)
    sign_folder(folder, Ed25519PrivateKey.generate())
    with pytest.raises(RegistryError, match="not trusted"):
        registry.register(folder)
    assert registry.list("ratios") == ()


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "weights.pt", "MLmodel", "run.py"])
def test_files_that_could_run_code_are_not_registered(registry: Registry, signed_model: Make, name: str) -> None:
    folder = signed_model(2.0)
    (folder / name).write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(RegistryError, match=f"{name}: only"):
        registry.register(folder)


def test_an_altered_artefact_in_the_store_is_refused(
    registry: Registry, signed_model: Make, settings: Settings
) -> None:
    version = registry.register(signed_model(2.0)).version
    (stored,) = settings.artifacts.rglob("ratios.json")
    stored.write_text("[0.0, 9.9]")
    with pytest.raises(RegistryError, match="refused"):
        registry.fetch("ratios", version)
    assert not [p for p in (settings.home / "models").iterdir() if p.name != ".lock"]


def test_an_artefact_replaced_by_another_signed_model_is_refused(
    registry: Registry, signed_model: Make, settings: Settings
) -> None:
    version = registry.register(signed_model(2.0)).version
    (stored,) = settings.artifacts.rglob("ratios.json")
    shutil.copytree(signed_model(3.0), stored.parent, dirs_exist_ok=True)
    with pytest.raises(RegistryError, match="torn or was replaced"):
        registry.fetch("ratios", version)


def test_an_extra_file_in_the_store_is_refused(registry: Registry, signed_model: Make, settings: Settings) -> None:
    version = registry.register(signed_model(2.0)).version
    (stored,) = settings.artifacts.rglob("ratios.json")
    (stored.parent / "more.pkl").write_bytes(b"x")
    with pytest.raises(RegistryError, match=r"more\.pkl"):
        registry.fetch("ratios", version)


def test_a_torn_cache_is_downloaded_again(registry: Registry, signed_model: Make) -> None:
    version = registry.register(signed_model(2.0)).version
    folder = registry.fetch("ratios", version)
    (folder / "ratios.json").write_text("[")
    assert registry.load("ratios", version).predict(1.0)[0].value == 2.0


def test_a_cached_model_loads_after_its_artefact_was_deleted(
    registry: Registry, signed_model: Make, settings: Settings
) -> None:
    version = registry.register(signed_model(2.0)).version
    registry.fetch("ratios", version)
    shutil.rmtree(settings.artifacts)
    assert registry.load("ratios", version).predict(1.0)[0].value == 2.0


def test_a_key_that_is_no_longer_trusted_stops_cached_models_too(
    registry: Registry, signed_model: Make, settings: Settings
) -> None:
    version = registry.register(signed_model(2.0)).version
    registry.fetch("ratios", version)
    (settings.keys / "signing.pub").unlink()
    with pytest.raises(RegistryError, match="not trusted"):
        registry.load("ratios", version)


@pytest.mark.parametrize("digest", ["", "../../etc", "g" * 64])
def test_a_digest_tag_that_is_no_digest_is_refused(registry: Registry, signed_model: Make, digest: str) -> None:
    version = registry.register(signed_model(2.0)).version
    registry.client.set_model_version_tag("ratios", version, "digest", digest)
    with pytest.raises(RegistryError, match="no digest tag"):
        registry.fetch("ratios", version)


def test_a_model_of_another_predictor_is_refused(registry: Registry, signed_model: Make) -> None:
    made = registry.register(signed_model(2.0))
    client = registry.client
    client.create_registered_model("other")
    client.create_model_version("other", source="x", run_id=made.run_id, tags={"digest": made.digest})
    with pytest.raises(RegistryError, match="holds a model of 'ratios'"):
        registry.fetch("other", "1")


def test_promotions_at_the_same_moment_leave_one_champion_and_one_refusal(
    registry: Registry, signed_model: Make
) -> None:
    versions = [_passed(registry, signed_model(growth)) for growth in (2.0, 3.0)]
    outcomes: list[str] = []

    def promote(version: str) -> None:
        try:
            outcomes.append(registry.promote("ratios", version).version)
        except RegistryError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=promote, args=(version,)) for version in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [outcome for outcome in outcomes if outcome in versions]
    assert won == [registry.resolve("ratios").version]
    assert registry.history("ratios") == tuple(won)
    assert any("judged against version none" in outcome for outcome in outcomes)


@pytest.mark.slow
def test_a_locked_database_is_an_error_that_says_so(
    registry: Registry, signed_model: Make, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = registry.register(signed_model(2.0)).version
    holder = sqlite3.connect(settings.home / "mlflow.db")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(RegistryError, match="locked by another process"):
            registry.challenge("ratios", version)
    finally:
        holder.close()


def test_a_server_that_is_down_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    registry = Registry(Settings(home=tmp_path, mlflow_uri="http://127.0.0.1:9"), trusted_digests=())
    with pytest.raises(RegistryError, match=r"127\.0\.0\.1"):
        registry.resolve("ratios")


def test_whatever_a_server_offers_artefacts_come_through_it_alone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that keeps them in S3 offers addresses of the bucket, which pods cannot reach."""
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

    monkeypatch.setenv("MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD", "true")
    monkeypatch.setattr(
        MlflowArtifactsRepository, "_fetch_server_capabilities", lambda _: {"multipart_downloads_enabled": True}
    )
    assert registry.client
    store = MlflowArtifactsRepository("mlflow-artifacts:/model", tracking_uri="http://127.0.0.1:1")
    assert not store._is_multipart_download_enabled()
    assert not store._is_multipart_upload_enabled()
