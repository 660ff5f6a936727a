"""Every predictor there is keeps the same promises.

Predictors are discovered; each needs a file in ``examples/`` that makes a small one and says what to ask it. A new
predictor adds that file and its line in the catalogue, and nothing here.
"""

import importlib
import importlib.util
import inspect
import itertools
import json
import math
import pickle
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kopt.models
from kopt.core.prediction import Prediction
from kopt.models.base import Predictor
from kopt.models.predictors import predictor_class, predictor_names
from kopt.models.registry.artifact import SAFE_SUFFIXES, ArtefactError, ModelCard, check_files, read_card, save_model

EXAMPLES = Path(__file__).parent / "examples"


def _discovered() -> dict[str, type[Predictor]]:
    for found in pkgutil.walk_packages(kopt.models.__path__, "kopt.models."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    pending, concrete = [Predictor], {}
    while pending:
        one = pending.pop()
        pending += one.__subclasses__()
        if not inspect.isabstract(one) and one.__module__.startswith("kopt."):
            concrete[one.name] = one
    return concrete


DISCOVERED = _discovered()


def _example(name: str) -> ModuleType:
    path = EXAMPLES / f"{name}.py"
    assert path.exists(), f"predictor {name!r} needs {path}: make(), table(), requests() and refused()"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=sorted(DISCOVERED))
def example(request: pytest.FixtureRequest) -> ModuleType:
    return _example(request.param)


@pytest.fixture(scope="module")
def fitted(example: ModuleType) -> Predictor:
    made: Predictor = example.make().fit(example.table())
    return made


@pytest.fixture(scope="module")
def answers(example: ModuleType, fitted: Predictor) -> list[tuple[Prediction, ...]]:
    return [fitted.predict(one) for one in example.requests()]


def _plain(predictions: tuple[Prediction, ...]) -> str:
    return json.dumps([one.to_dict() for one in predictions], sort_keys=True)


def test_every_predictor_is_in_the_catalogue_and_the_catalogue_names_no_other() -> None:
    assert DISCOVERED, "no predictor was discovered"
    assert {name: predictor_class(name) for name in predictor_names()} == DISCOVERED


def test_an_unknown_predictor_is_an_error_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match="demand"):
        predictor_class("weather")


def test_the_constructor_only_stores_its_parameters(example: ModuleType) -> None:
    parameters = inspect.signature(type(example.make()).__init__).parameters
    kinds = {p.kind for name, p in parameters.items() if name != "self"}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    default = type(example.make())()
    for name in parameters:
        assert name == "self" or hasattr(default, name), f"parameter {name} is not stored under its own name"


def test_an_unfitted_predictor_says_so(example: ModuleType) -> None:
    with pytest.raises(ValueError, match="fit"):
        example.make().predict(example.requests()[0])


def test_predictions_are_finite_ordered_and_have_reasons(answers: list[tuple[Prediction, ...]]) -> None:
    for one in itertools.chain.from_iterable(answers):
        assert one.reasons, "a prediction without a reason"
        assert all(reason.code.isupper() and reason.message for reason in one.reasons)
        assert one.unit
        if one.value is None:
            continue
        assert one.low is not None
        assert one.high is not None
        values = [one.low, one.value, one.high, *one.quantiles.values()]
        assert all(math.isfinite(value) for value in values)
        ordered = [one.quantiles[q] for q in sorted(one.quantiles)]
        assert ordered == sorted(ordered)
        assert 0 <= one.confidence <= 1
        assert 0 < one.probability < 1


def test_the_same_request_has_the_same_answer(example: ModuleType, fitted: Predictor, answers: Any) -> None:
    again = [fitted.predict(one) for one in example.requests()]
    assert [_plain(one) for one in again] == [_plain(one) for one in answers]


def test_fitting_twice_gives_the_same_predictor(example: ModuleType, answers: Any) -> None:
    twin = example.make().fit(example.table())
    assert [_plain(twin.predict(one)) for one in example.requests()] == [_plain(one) for one in answers]


def test_predicting_does_not_change_the_request(example: ModuleType, fitted: Predictor) -> None:
    request = example.requests()[0]
    before = repr(request)
    fitted.predict(request)
    assert repr(request) == before


def test_out_of_domain_requests_are_refused_with_a_reason(example: ModuleType, fitted: Predictor) -> None:
    for request in example.refused():
        found = fitted.predict(request)
        assert found
        assert all(one.refused and one.reasons[0].message for one in found)


def test_explanations_are_sentences(example: ModuleType, fitted: Predictor) -> None:
    for request in (example.requests()[0], *example.refused()):
        reasons = fitted.explain(request)
        assert reasons
        assert all(reason.message.rstrip().endswith(".") for reason in reasons)


def test_saved_and_loaded_it_answers_the_same_without_unpickling(
    example: ModuleType, fitted: Predictor, answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    save_model(fitted, folder, ModelCard(fitted.name, features=("a",)))
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= SAFE_SUFFIXES
    assert read_card(folder).predictor == fitted.name

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    loaded = type(fitted).load(folder)
    assert [_plain(loaded.predict(one)) for one in example.requests()] == [_plain(one) for one in answers]


def test_saving_twice_writes_the_same_bytes(fitted: Predictor, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fitted.save(tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}


def test_a_missing_or_torn_file_is_an_error_that_names_it(fitted: Predictor, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(fitted, folder, ModelCard(fitted.name))
    for path in sorted(folder.iterdir()):
        if path.name == "model.json":
            continue
        whole = path.read_bytes()
        for torn in (None, whole[: len(whole) // 2], b"", b"\x80\x04K\x01."):
            path.unlink()
            if torn is not None:
                path.write_bytes(torn)
            with pytest.raises(ValueError, match=path.name):
                type(fitted).load(folder)
            path.write_bytes(whole)


def test_unsafe_files_oversized_folders_and_damaged_cards_are_refused(fitted: Predictor, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(fitted, folder, ModelCard(fitted.name))
    (folder / "extra.pkl").write_bytes(b"x")
    with pytest.raises(ArtefactError, match=r"extra\.pkl"):
        check_files(folder)
    (folder / "extra.pkl").unlink()
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(ArtefactError, match=r"30\d MiB"):
        check_files(folder)
    for text in ("", "[]", "{}", '{"predictor": "../x"}', '{"predictor": "demand", "format": 99}', "[" * 9000):
        (folder / "model.json").write_text(text)
        with pytest.raises(ArtefactError, match=r"model\.json"):
            read_card(folder)
