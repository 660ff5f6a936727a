"""What a production cluster keeps outlives its servers: the commands of docs/production.md, on real ones.

MLflow on PostgreSQL with artefacts in S3, and the endpoint's own state in PostgreSQL.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from controlplane.object_store import S3, s3_server
from postgres_server import PostgresServer, postgres

from kopt.core.settings import Settings
from kopt.models.registry.registry import Registry, RegistryError
from kopt.serving.sizing.table import SizeTable, StoredEvidence
from tests.models.s3_client import s3_client
from tests.models.team_mlflow_server import TeamMlflow

__all__ = ["postgres", "s3_server"]
pytestmark = [pytest.mark.services, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
Make = Callable[[float], Path]


@pytest.fixture(scope="module")
def boto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with MLflow's client of S3."""
    return s3_client(tmp_path_factory.mktemp("boto"))


@dataclass
class Servers:
    """Two databases and a bucket, with MLflow in front of one of them."""

    postgres: PostgresServer
    s3: S3
    boto: Path
    folder: Path
    registry_url: str
    state_url: str
    mlflow: TeamMlflow | None = None

    def start_mlflow(self) -> TeamMlflow:
        folder = self.folder / "mlflow"
        folder.mkdir(exist_ok=True)
        database = self.registry_url.replace("postgresql://", "postgresql+psycopg://")
        variables = {**self.s3.variables, "MLFLOW_S3_ENDPOINT_URL": self.s3.variables["AWS_ENDPOINT_URL"]}
        self.mlflow = TeamMlflow(folder, "s3://data/mlflow", database, PYTHONPATH=str(self.boto), **variables)
        return self.mlflow

    def back_up(self, folder: Path) -> None:
        for name, url in (("registry", self.registry_url), ("state", self.state_url)):
            self.postgres.client("pg_dump", "--format=custom", "-f", str(folder / name), "-d", _database(url))
        shutil.copytree(self.s3.folder / "mlflow", folder / "artefacts")

    def wipe(self) -> None:
        """Both databases and the bucket, as when their disks are gone."""
        assert self.mlflow
        self.mlflow.stop()
        for url in (self.registry_url, self.state_url):
            self.postgres.client("psql", "-d", "postgres", "-c", f"DROP DATABASE {_database(url)} WITH (FORCE)")
            self.postgres.client("psql", "-d", "postgres", "-c", f"CREATE DATABASE {_database(url)}")
        shutil.rmtree(self.s3.folder / "mlflow", ignore_errors=True)

    def restore(self, folder: Path) -> None:
        for name, url in (("registry", self.registry_url), ("state", self.state_url)):
            options = ("--clean", "--if-exists", "--single-transaction", "-d", _database(url))
            self.postgres.client("pg_restore", *options, str(folder / name))
        shutil.copytree(folder / "artefacts", self.s3.folder / "mlflow", dirs_exist_ok=True)


def _database(url: str) -> str:
    return url.rpartition("/")[2]


@pytest.fixture
def servers(
    postgres: PostgresServer, s3_server: S3, boto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Servers]:
    running = Servers(postgres, s3_server, boto, tmp_path, postgres.new_database(), postgres.new_database())
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", running.start_mlflow().secret)
    yield running
    if running.mlflow:
        running.mlflow.stop()


def test_champion_and_state_survive_a_backup_a_wipe_and_a_restore(
    servers: Servers, registry: Registry, signed_model: Make, settings: Settings, tmp_path: Path
) -> None:
    assert servers.mlflow

    def of_machine(name: str) -> Registry:
        home = tmp_path / name
        (home / "keys").mkdir(parents=True)
        shutil.copy(settings.keys / "signing.pub", home / "keys" / "training.pub")
        assert servers.mlflow
        shared = Settings(home=home, mlflow_uri=servers.mlflow.url)
        return Registry(shared, predictors=registry._predictors, trusted_digests=())

    training = Registry(
        replace(settings, mlflow_uri=servers.mlflow.url), predictors=registry._predictors, trusted_digests=()
    )
    version = training.register(signed_model(2.0), metrics={"mase": 0.5}).version
    training.record_decision("ratios", version, passed=True, against="", summary="first")
    training.promote("ratios", version)
    assert of_machine("before").load("ratios").predict(10.0)[0].value == 20.0
    assert list((servers.s3.folder / "mlflow").rglob("ratios.json")), "artefacts lie in the bucket"
    sizes = SizeTable(servers.state_url)
    sizes.put(["research"], "finetune", 1.0, sent=StoredEvidence({"measured": 1}), advice={"name": "finetune"})
    sizes.close()

    backup = tmp_path / "backup"
    backup.mkdir()
    servers.back_up(backup)
    servers.wipe()
    servers.start_mlflow()
    with pytest.raises(RegistryError, match="ratios"):
        of_machine("wiped").load("ratios")
    sizes = SizeTable(servers.state_url)
    assert sizes.evidence("research", "finetune").read().empty

    servers.mlflow.stop()
    servers.restore(backup)
    servers.start_mlflow()
    restored = of_machine("restored").load("ratios")
    assert restored.predict(10.0)[0].value == 20.0
    assert restored.version.version == version
    assert sizes.evidence("research", "finetune").read() == StoredEvidence({"measured": 1}), (
        "the endpoint was not restarted"
    )
    sizes.close()
