"""Processes of the control plane and the nodes pay for no machine-learning package."""

import json
import subprocess
import sys

import pytest

from kopt.cli.verbs import VERBS

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
    # All of the verbs at once: what they share would be imported once for each.
    ", ".join({f"kopt.cli.{name.partition(':')[0]}" for name in VERBS.values()}),
]


def loaded_by(modules: str) -> set[str]:
    """Modules that importing ``modules`` brings into a fresh interpreter."""
    code = f"import {modules}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_imports_nothing_heavy(module: str) -> None:
    assert not loaded_by(module) & HEAVY


def test_the_command_line_imports_no_verb_before_it_is_needed() -> None:
    ours = {name for name in loaded_by("kopt.cli.main") if name.startswith("kopt.")}
    assert {name.split(".")[1] for name in ours} == {"cli", "core"}
    assert not ours & {f"kopt.cli.{name.partition(':')[0]}" for name in VERBS.values()}


def test_the_check_sees_a_heavy_import() -> None:
    assert "pandas" in loaded_by("pandas")


def test_lightgbm_comes_without_scikit_learn_which_can_be_had_afterwards() -> None:
    code = (
        "import sys; from kopt.models.lightgbm.booster import import_lightgbm_alone as alone;"
        "alone(); before = set(sys.modules);"
        "import lightgbm, sklearn.base, numpy as np; lightgbm.Dataset(np.eye(99), [0] * 99).construct();"
        "print(sorted({'sklearn', 'lightgbm'} & before))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['lightgbm']"
