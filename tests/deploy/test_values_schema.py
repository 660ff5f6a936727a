"""What the chart installs by default, and for every platform, is what its schema allows; helm refuses anything else."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chart import ROOT
from jsonschema import Draft202012Validator

CHART = ROOT / "deploy" / "chart"


def problems(values: Any) -> Iterator[str]:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    yield from (f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(values))


@pytest.mark.parametrize("path", [CHART / "values.yaml", *sorted((ROOT / "deploy" / "values").glob("*.yaml"))], ids=str)
def test_values_are_what_the_schema_allows(path: Any) -> None:
    assert list(problems(yaml.safe_load(path.read_text(encoding="utf-8")))) == []


def test_what_it_does_not_allow_is_refused() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    values["telemetry"]["xidWindowSeconds"] = 59
    assert [problem.partition(":")[0] for problem in problems(values)] == ["$.telemetry.xidWindowSeconds"]
