"""Commands and values of controllers that were renamed still work under their earlier names, and say so."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
from replicas import KOPT

from kopt.cli.main import app
from kopt.controllers.specs import CONTROLLERS

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
RENAMED = [(alias, spec) for spec in CONTROLLERS for alias in spec.aliases]
SETTINGS: dict[str, dict[str, Any]] = {
    "ledger": {"keepDays": 7, "replicas": 1},
    "pairs": {"namespace": "benchmarks", "cluster": "north", "createNamespace": False},
    "reallocation": {"refresh": "5s", "env": {"A": "b"}},
}

each = pytest.mark.parametrize(("alias", "spec"), [pytest.param(*item, id=item[0]) for item in RENAMED])


def contents(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without Secrets, whose keys are made anew with each rendering."""
    return [document for document in objects if document["kind"] != "Secret"]


def test_these_names_are_kept() -> None:
    assert {alias: spec.name for alias, spec in RENAMED} == {
        "ledger": "evictions",
        "pairs": "pairwise",
        "reallocation": "lending",
    }


@each
def test_the_earlier_command_is_the_same_and_hidden(alias: str, spec: Any) -> None:
    commands = typer.main.get_command(app).commands["controller"].commands  # type: ignore[attr-defined]
    assert commands[alias].hidden
    assert [option.opts for option in commands[alias].params] == [option.opts for option in commands[spec.name].params]


def test_the_earlier_command_says_on_stderr_what_to_use_and_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [*KOPT, "controller", "reallocation", "--kubeconfig", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    first, *rest = done.stderr.splitlines()
    assert first == "kopt: `kopt controller reallocation` is deprecated; use `kopt controller lending`"
    assert done.returncode == 1, "there is no such cluster"
    assert rest and "none" in rest[-1]  # noqa: PT018


@each
def test_earlier_values_render_the_same_objects(charts: Any, alias: str, spec: Any) -> None:
    values = {"enabled": True, **SETTINGS[alias]}
    assert contents(charts.render({alias: values})) == contents(charts.render({spec.name: values}))


@each
def test_either_key_switches_it_on(charts: Any, alias: str, spec: Any) -> None:
    """An upgrade with ``--reuse-values`` brings the earlier key with the defaults of the release before."""
    objects = charts.render({alias: {"enabled": False, "replicas": 2}, spec.name: {"enabled": True}})
    assert spec.objects in {document["metadata"]["name"] for document in objects if document["kind"] == "Deployment"}


def test_the_notes_say_which_values_to_move(charts: Any) -> None:
    def notes(values: dict[str, Any]) -> str:
        done = charts.run("install", "kopt", CHART, "--dry-run=client", "--namespace", "kopt-system", values=values)
        assert done.returncode == 0, done.stderr
        return str(done.stdout.partition("NOTES:")[2])

    assert "DEPRECATED" not in notes({"lending": {"enabled": True}})
    text = notes({"reallocation": {"enabled": True}})
    assert "DEPRECATED: the values under `reallocation`" in text
    assert "Move them to `lending`." in text


@each
def test_an_unknown_value_under_an_earlier_key_is_refused(charts: Any, alias: str, spec: Any) -> None:
    done = charts.run("template", "kopt", CHART, values={alias: {"enabledd": True}})
    assert done.returncode != 0
    assert "enabledd" in done.stderr
