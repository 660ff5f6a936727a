"""``kopt train sizing`` on real tables and a local Ray; what it registers is served at ``/v1/sizing``."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from kopt.core.settings import Settings
from kopt.features.store import FeatureStoreError
from kopt.models.registry import registry as registering
from kopt.models.registry.registry import Registry
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.sizing.service import SizingService

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
_TABLES = ("megatron_golden_memory.csv.gz", "peft_method_comparison.csv", "llm_finetune_memory.csv", "SOURCES.md")
_LINE = (
    "torchrun pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --bf16"
)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables that formulas read, so that no script has to be run."""
    root = os.environ.get("KOPT_DATA_DIR")
    if root is None or not (Path(root) / "memory" / _TABLES[0]).exists():
        message = "KOPT_DATA_DIR does not name a folder with memory/megatron_golden_memory.csv.gz"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path / "memory"
    folder.mkdir()
    for name in _TABLES:
        shutil.copy(Path(root) / "memory" / name, folder)
    return folder


@pytest.fixture
def home(kopt_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of a package without a default model: that one has seen these tables and could not be judged against."""
    monkeypatch.setattr(registering, "shipped_digests", dict)
    return kopt_home


def _no_store() -> Any:
    raise FeatureStoreError("there is no store in this test")


_KOPT = """
import kopt.models.registry.registry as registering
registering.shipped_digests = dict
from kopt.cli.main import app
app()
"""


async def test_what_the_gate_lets_through_answers_at_the_endpoint(home: Path, tables: Path) -> None:
    command = [sys.executable, "-P", "-c", _KOPT, "train", "sizing", "--data", tables, "--folds", "2", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    everything = next(one for one in outcome["summaries"] if one["slice"] == "all")
    assert everything["services"] > 100
    assert everything["median_error"] < 0.5
    assert (outcome["gate"], outcome["promoted"], outcome["champion"]) == ("passed", True, 1)

    settings = Settings(home=home)
    (model,) = Registry(settings).list("sizing")
    assert model.aliases == ("champion",)
    endpoint = assemble(settings, Parts(features=StoredFeatures(_no_store), refresh_s=3600))
    endpoint.service(SizingService).refresh()
    transport = httpx.ASGITransport(create_app(endpoint, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://endpoint", timeout=60) as http:
        headers = {"x-kopt-deadline-ms": "30000"}
        told = (await http.post("/v1/sizing", json={"workload": _LINE}, headers=headers)).json()
        served = [one for one in (await http.get("/v1/models")).json()["models"] if one["serving"]]
    endpoint.stop()
    assert told["model"] == {"name": "sizing", "version": "1", "digest": model.digest}
    assert not told["fallback"]
    assert told["memory"]["low_bytes"] < told["memory"]["peak_bytes"] < told["memory"]["high_bytes"]
    assert [(one["name"], one["version"], one["alias"]) for one in served] == [("sizing", "1", "champion")]
