"""Processes of the control plane and the nodes pay for no machine-learning package."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "ray",
    "mlflow",
    "feast",
    "torch",
    "lightgbm",
    "sklearn",
    "pandas",
    "pyarrow",
    "statsforecast",
    "optuna",
    "duckdb",
}

LIGHT = [
    "kopt",
    "kopt.core.settings",
    "kopt.agents",
    "kopt.controllers",
    "kopt.cluster.runtime.informer",
    "kopt.cluster.runtime.http.certificates",
    "kopt.cluster.teardown.switch_off",
    "kopt.policies.lending.policy",
    "kopt.controllers.admission.main",
    "kopt.controllers.sizing.main",
    "kopt.agents.profiler.command",
    "kopt.agents.logtail.process",
    "kopt.agents.topology.process",
    "kopt.agents.node_executor.process",
    "kopt.controllers.pairwise.main",
    "kopt.controllers.evictions.main",
    "kopt.saving",
    "kopt.serving.client.client",
    "kopt.cli.main",
]


def loaded_by(module: str) -> set[str]:
    """Top-level modules that importing ``module`` brings into a fresh interpreter."""
    code = f"import {module}, json, sys; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_imports_nothing_heavy(module: str) -> None:
    assert not loaded_by(module) & HEAVY


def test_the_check_sees_a_heavy_import() -> None:
    assert "pandas" in loaded_by("pandas")


def test_lightgbm_comes_without_scikit_learn_which_can_be_had_afterwards() -> None:
    code = (
        "import sys; from kopt.models.registry.lightgbm_io import import_lightgbm_alone as alone;"
        "alone(); before = set(sys.modules);"
        "import lightgbm, sklearn.base, numpy as np; lightgbm.Dataset(np.eye(99), [0] * 99).construct();"
        "print(sorted({'sklearn', 'lightgbm'} & before))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['lightgbm']"
