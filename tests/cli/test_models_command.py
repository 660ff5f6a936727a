"""``kopt models`` takes the predictor as people type it, and knows what they meant."""

from collections.abc import Sequence
from typing import Any

import pytest

from kopt.cli.training import models
from kopt.cli.training.names import completed
from kopt.models.registry.registry import MetricRow, NotRegisteredError, RegisteredModel
from tests.cli.conftest import Kopt


class _Registry:
    """Records what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.champion: RegisteredModel | None = None
        """Given: there is no challenger."""

    def resolve(self, name: str, alias: str) -> RegisteredModel:
        if self.champion is not None:
            raise NotRegisteredError(f"Registered model alias {alias} not found")
        return RegisteredModel(name, "2", "d", "r", 0.0)

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        return (self.champion,) if self.champion is not None else ()

    def compare(self, name: str, versions: Sequence[str]) -> tuple[MetricRow, ...]:
        self.asked.append((name, *versions))
        return (MetricRow("loss", (1.0, 2.0)),)

    def promote(self, name: str, version: str, **_: object) -> RegisteredModel:
        self.asked.append((name, version))
        return RegisteredModel(name, "2", "d", "r", 0.0)

    def rollback(self, name: str) -> RegisteredModel:
        self.asked.append(name)
        return RegisteredModel(name, "1", "d", "r", 0.0)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> _Registry:
    result = _Registry()
    monkeypatch.setattr(models, "_registry", lambda: result)
    return result


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("compare", ("demand", "champion", "challenger")),
        ("compare demand", ("demand", "champion", "challenger")),
        ("compare sizing 3", ("sizing", "3", "challenger")),
        ("compare sizing 3 champion", ("sizing", "3", "champion")),
        ("compare 3 champion", ("demand", "3", "champion")),
        ("compare 3 canary -p sizing", ("sizing", "3", "canary")),
        ("compare sizing 3 -p sizing", ("sizing", "3", "challenger")),
        ("promote", ("demand", "challenger")),
        ("promote sizing", ("sizing", "challenger")),
        ("promote sizing 4", ("sizing", "4")),
        ("promote 4 -p sizing", ("sizing", "4")),
        ("rollback", "demand"),
        ("rollback checkpoint", "checkpoint"),
        ("rollback -p checkpoint", "checkpoint"),
    ],
)
def test_the_predictor_is_an_argument_or_an_option(kopt: Kopt, registry: _Registry, words: str, asked: Any) -> None:
    done = kopt("models", *words.split())
    assert done.status == 0, done.err
    assert registry.asked == [asked]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("models compare demnad", "did you mean demand?"),
        ("models compare Sizing", "did you mean sizing?"),
        ("models compare demand champoin", "did you mean champion?"),
        ("models compare weather 3 4", "expected one of bandwidth, checkpoint, demand, runtime, sizing"),
        ("models promote chalenger", "did you mean challenger?"),
        ("models list deman", "did you mean demand?"),
        ("models list -p deman", "did you mean demand?"),
        ("models rollback bandwith", "did you mean bandwidth?"),
        ("models rollback demand -p sizing", "demand was named, and -p says sizing"),
        ("train demnad", "did you mean demand?"),
    ],
)
def test_a_near_miss_gets_the_nearest_name(kopt: Kopt, registry: _Registry, words: str, meant: str) -> None:
    done = kopt(*words.split())
    assert done.status == 2, done.out
    assert meant in " ".join(done.err.replace("│", " ").split())
    assert registry.asked == []


def test_a_list_of_one_predictor(kopt: Kopt) -> None:
    assert "no model is registered yet" in kopt("models", "list", "demand").out


def test_the_shell_completes_predictors() -> None:
    assert completed("") == ["bandwidth", "checkpoint", "demand", "runtime", "sizing"]
    assert completed("de") == ["demand"]


def test_without_a_challenger_the_champion_stands_beside_what_it_was_compared_with(
    kopt: Kopt, registry: _Registry
) -> None:
    registry.champion = RegisteredModel("demand", "3", "d", "r", 0.0, ("champion",), gate="passed", gate_against="1")
    done = kopt("models", "compare", "demand")
    assert done.status == 0, done.err
    assert registry.asked == [("demand", "1", "champion")]


def test_without_any_other_version_compare_says_what_makes_one(kopt: Kopt, registry: _Registry) -> None:
    registry.champion = RegisteredModel("demand", "1", "d", "r", 0.0, ("champion",), gate="passed")
    done = kopt("models", "compare", "demand")
    assert done.status == 1
    assert "demand has no challenger to compare with; `kopt train demand` makes one" in " ".join(done.err.split())
    assert registry.asked == []


@pytest.mark.parametrize("words", ["promote demand", "rollback demand", "compare demand 1 2", "canary demand 10"])
def test_before_any_model_is_registered_each_says_what_makes_one(kopt: Kopt, words: str) -> None:
    done = kopt("models", *words.split())
    assert done.status == 1
    line = " ".join(done.err.split())
    assert "no demand model is registered yet; `kopt up` registers the shipped ones" in line
    assert "Registered Model" not in line
