"""Who answers is what was promoted under a signature, and no model's files stop the process that reads them."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from empty_registry import with_empty_registry
from fastapi.testclient import TestClient
from ratio_quantiles import RatioQuantiles

from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.models.lightgbm.booster import load_booster
from kopt.models.lightgbm.text import TreeTextError, checked_text
from kopt.models.registry import trial
from kopt.models.registry.artifact import ModelCard, save_model
from kopt.models.registry.loading import load_predictor
from kopt.models.registry.promotion_seals import SEAL_TAG, SealMemory
from kopt.models.registry.registry import Registry, RegistryError, UnsealedError
from kopt.models.registry.shipped import shipped_folder
from kopt.models.registry.signing import sign_folder
from kopt.serving.base.model_slot import Slot
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.sizing.service import SizingService

RATIOS = {"ratios": "ratio_quantiles:RatioQuantiles"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=with_empty_registry(tmp_path / "home"))


@pytest.fixture
def registry(settings: Settings) -> Registry:
    return Registry(settings, predictors=RATIOS, trusted_digests=())


@pytest.fixture
def version(registry: Registry, settings: Settings, tmp_path: Path) -> Callable[..., str]:
    """Registers a signed model and returns its version's number; judged where a verdict is given."""

    def make(growth: float, *, passed: bool | None = None, against: str = "") -> str:
        folder = tmp_path / f"fitted-{growth}"
        save_model(RatioQuantiles().fit(np.array([1.0, growth, growth**2])), folder, ModelCard("ratios"))
        sign_folder(folder, signing_key(settings.keys))
        made = registry.register(folder).version
        if passed is not None:
            registry.record_decision("ratios", made, passed=passed, against=against, summary="as the test says")
        return made

    return make


def move_alias(registry: Registry, to: str) -> None:
    """What anybody who reaches the registry's server can do."""
    registry.client.set_registered_model_alias("ratios", "champion", to)


def tags(registry: Registry, version: str) -> dict[str, str]:
    return dict(registry.get("ratios", version).tags)


def test_a_version_the_gate_refused_is_not_loaded_as_champion(registry: Registry, version: Callable[..., str]) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    refused = version(3.0, passed=False, against="1")
    move_alias(registry, refused)
    with pytest.raises(UnsealedError, match=r"no promotion seal.*kopt models promote 2 -p ratios --force"):
        registry.load("ratios")
    assert registry.rollback("ratios").version == "1"
    assert registry.load("ratios").predict(1.0)[0].value == 2.0


def test_a_verdict_that_is_written_into_the_registry_promotes_nothing(
    registry: Registry, version: Callable[..., str]
) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    refused, unjudged = version(3.0, passed=False, against="1"), version(4.0)
    for one in (refused, unjudged):
        for key, value in (("gate", "passed"), ("gate_against", "1")):
            registry.client.set_model_version_tag("ratios", one, key, value)
    with pytest.raises(RegistryError, match="refused by the gate"):
        registry.promote("ratios", refused)
    with pytest.raises(RegistryError, match="not signed"):
        registry.promote("ratios", unjudged)
    registry.client.set_model_version_tag("ratios", unjudged, "gate_seal", tags(registry, "1")["gate_seal"])
    with pytest.raises(RegistryError, match="not to be trusted"):
        registry.promote("ratios", unjudged)
    assert registry.load("ratios").version.version == "1"


def test_an_old_promotion_played_again_is_refused_until_it_is_rolled_back(
    registry: Registry, version: Callable[..., str]
) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    old = tags(registry, "1")[SEAL_TAG]
    registry.promote("ratios", version(3.0, passed=True, against="1"))
    move_alias(registry, "1")
    with pytest.raises(UnsealedError, match="older than one already known here"):
        registry.load("ratios")
    move_alias(registry, "2")
    assert registry.load("ratios").version.version == "2"
    assert registry.rollback("ratios").version == "1"
    assert registry.load("ratios").version.version == "1"
    registry.client.set_model_version_tag("ratios", "1", SEAL_TAG, old)
    assert registry.load("ratios").version.version == "1", "the newest promotion known here is of these very files"
    move_alias(registry, "2")
    with pytest.raises(UnsealedError, match="older than one already known here"):
        registry.load("ratios")


def test_a_seal_is_good_for_one_name_one_digest_and_one_key(
    registry: Registry, settings: Settings, version: Callable[..., str], tmp_path: Path
) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    other = version(3.0)
    genuine = tags(registry, "1")[SEAL_TAG]
    forged = json.loads(genuine)
    forged["statement"]["digest"] = registry.get("ratios", other).digest
    renamed = json.loads(genuine)
    renamed["statement"]["name"] = "sizing"
    foreign = Settings(home=tmp_path / "foreign")
    (tmp_path / "foreign").mkdir()
    shutil.copytree(settings.keys, foreign.keys)
    (foreign.keys / "signing.key").unlink()
    (foreign.keys / "signing.pub").rename(foreign.keys / "other.pub")
    signing_key(foreign.keys)
    stranger = Registry(replace(foreign, mlflow_uri=settings.tracking_uri), predictors=RATIOS, trusted_digests=())
    stranger.promote("ratios", other, force=True, reason="by another key")
    move_alias(registry, other)
    for text in (
        tags(registry, other)[SEAL_TAG],
        genuine,
        json.dumps(forged),
        json.dumps(renamed),
        "",
        "{}",
        "[" * 9000,
    ):
        registry.client.set_model_version_tag("ratios", other, SEAL_TAG, text)
        with pytest.raises(UnsealedError, match="does not hold"):
            registry.load("ratios")


def test_the_registrys_list_of_champions_does_not_make_one(registry: Registry, version: Callable[..., str]) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    refused = version(3.0, passed=False, against="1")
    registry.client.set_registered_model_tag("ratios", "champion_history", json.dumps([refused, "1"]))
    with pytest.raises(RegistryError, match="never promoted under a seal"):
        registry.rollback("ratios")
    assert registry.load("ratios").version.version == "1"


def test_promotions_are_numbered_even_where_the_clock_goes_back(
    registry: Registry, version: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    monkeypatch.setattr(registry._promotions, "_clock", lambda: 1e9)
    registry.promote("ratios", version(3.0, passed=True, against="1"))
    assert registry.load("ratios").version.version == "2"


def test_a_home_whose_seals_are_torn_says_so(
    registry: Registry, settings: Settings, version: Callable[..., str]
) -> None:
    registry.promote("ratios", version(2.0, passed=True))
    (settings.home / "seals.json").write_text("{")
    with pytest.raises(UnsealedError, match=r"seals\.json cannot be read"):
        registry.load("ratios")
    with pytest.raises(ValueError, match=r"seals\.json"):
        SealMemory(settings.home).newest("ratios")


class Answering:
    """Settings, registry and how to make versions of a real model whose files differ in a remark alone."""

    def __init__(self, home: Path, scratch: Path) -> None:
        self.settings, self._scratch = Settings(home=with_empty_registry(home)), scratch
        self.registry = Registry(self.settings)

    def registered(self, remark: str, *, passed: bool, against: str = "") -> str:
        folder = self._scratch / remark
        shutil.copytree(shipped_folder("sizing"), folder)
        card = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps({**card, "parameters": {"remark": remark}}))
        sign_folder(folder, signing_key(self.settings.keys))
        made = self.registry.register(folder).version
        self.registry.record_decision("sizing", made, passed=passed, against=against, summary="as the test says")
        return made

    def endpoint(self) -> Endpoint:
        return assemble(self.settings, Parts(features=StoredFeatures(_no_store), refresh_s=3600))


def _no_store() -> None:
    raise ValueError("there is no store in this test")


@pytest.fixture
def answering(tmp_path: Path) -> Answering:
    return Answering(tmp_path / "home", tmp_path)


@pytest.fixture
def endpoint(answering: Answering) -> Iterator[Endpoint]:
    built = answering.endpoint()
    yield built
    built.stop()


def sizing_slot(endpoint: Endpoint) -> Slot[object]:
    return endpoint.service(SizingService).slot  # type: ignore[return-value]


def test_the_endpoint_serves_on_what_it_serves_and_says_why(answering: Answering, endpoint: Endpoint) -> None:
    registry, slot = answering.registry, sizing_slot(endpoint)
    registry.promote("sizing", answering.registered("first", passed=True))
    endpoint.service(SizingService).refresh()  # type: ignore[union-attr]
    assert slot.version is not None
    assert slot.version.version == "1"
    refused = answering.registered("second", passed=False, against="1")
    registry.client.set_registered_model_alias("sizing", "champion", refused)
    endpoint.service(SizingService).refresh()  # type: ignore[union-attr]
    assert slot.version.version == "1"
    client = TestClient(create_app(endpoint, manage=False))
    known = client.get("/v1/models").json()
    assert {(one["version"], one["serving"]) for one in known["models"] if one["name"] == "sizing"} == {
        ("1", True),
        ("2", False),
    }
    (why,) = [one["message"] for one in known["refused"] if "sizing" in one["message"]]
    assert "no promotion seal" in why
    assert 'kopt_models_refused{alias="champion",predictor="sizing"} 1.0' in client.get("/metrics").text

    again = answering.endpoint()
    try:
        again.service(SizingService).refresh()  # type: ignore[union-attr]
        version = sizing_slot(again).version
        assert version is not None
        assert version.version == "1", "what was promoted last answers after a restart, too"
    finally:
        again.stop()


def test_a_champion_from_before_there_were_seals_gives_way_to_the_package_until_it_is_promoted(
    answering: Answering, endpoint: Endpoint
) -> None:
    registry, slot = answering.registry, sizing_slot(endpoint)
    version = answering.registered("old", passed=True)
    registry.client.delete_model_version_tag("sizing", version, "gate_seal")
    registry.client.set_registered_model_alias("sizing", "champion", version)
    endpoint.service(SizingService).refresh()  # type: ignore[union-attr]
    assert slot.version is not None
    assert slot.version.version == "shipped"
    assert slot.error is not None
    assert "kopt models promote 1 -p sizing --force" in slot.error.message
    assert load_predictor("sizing", settings=answering.settings).version.version == "shipped"
    with pytest.raises(RegistryError, match="--force"):
        registry.promote("sizing", version)
    registry.promote("sizing", version, force=True, reason="served before there were seals")
    assert load_predictor("sizing", settings=answering.settings).version.version == version


def trees(**changes: str) -> str:
    """Two small trees as LightGBM prints them, with lines of the first one replaced."""
    one = {
        "num_leaves": "4",
        "num_cat": "0",
        "split_feature": "0 1 0",
        "split_gain": "3 2 1",
        "threshold": "0.5 0.25 0.75",
        "decision_type": "2 2 2",
        "left_child": "1 -1 -2",
        "right_child": "2 -3 -4",
        "leaf_value": "1 2 3 4",
        "leaf_weight": "1 1 1 1",
        "leaf_count": "5 5 5 5",
        "internal_value": "0 0 0",
        "internal_weight": "4 2 2",
        "internal_count": "20 10 10",
        "is_linear": "0",
        "shrinkage": "0.1",
    }
    head = {key: value for key, value in changes.items() if key not in one}
    bodies = [{**one, **{key: value for key, value in changes.items() if key in one}}, one]
    texts = [f"Tree={n}\n" + "".join(f"{k}={v}\n" for k, v in body.items()) + "\n\n" for n, body in enumerate(bodies)]
    header = {
        "version": "v4",
        "num_class": "1",
        "num_tree_per_iteration": "1",
        "label_index": "0",
        "max_feature_idx": "1",
        "objective": "regression",
        "feature_names": "a b",
        "feature_infos": "[0:1] [0:1]",
        "tree_sizes": " ".join(str(len(text)) for text in texts),
        **head,
    }
    return "tree\n" + "".join(f"{k}={v}\n" for k, v in header.items()) + "\n" + "".join(texts) + "end of trees\n"


def test_sound_trees_are_read(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(trees())
    booster = load_booster(tmp_path / "trees.txt")
    assert booster.num_trees() == 2
    assert booster.predict(np.array([[0.1, 0.1], [0.9, 0.9]])).tolist() == [2.0, 8.0]


HOSTILE = {
    "children that run in a circle": {"left_child": "1 2 1", "right_child": "-1 -2 -3"},
    "a child that is its own parent": {"left_child": "0 -1 -2"},
    "a child of two nodes": {"left_child": "1 -1 -2", "right_child": "1 -3 -4"},
    "a leaf of two nodes": {"left_child": "1 -1 -1"},
    "a child beyond the nodes": {"left_child": "9 -1 -2"},
    "a leaf beyond the leaves": {"left_child": "1 -9 -2"},
    "far fewer nodes than said": {"num_leaves": "4000"},
    "leaves beyond all bounds": {"num_leaves": "2147483647"},
    "a negative number of leaves": {"num_leaves": "-4"},
    "no leaves": {"num_leaves": "0"},
    "a number of leaves that is none": {"num_leaves": "4e0"},
    "a threshold that is no number": {"threshold": "nan 0.25 0.75"},
    "a threshold in words": {"threshold": "x 0.25 0.75"},
    "an infinite leaf": {"leaf_value": "inf 2 3 4"},
    "a huge feature": {"split_feature": "2147483647 1 0"},
    "a feature before the first": {"split_feature": "-1 1 0"},
    "a feature that is not there": {"split_feature": "2 1 0"},
    "categories without sets": {"num_cat": "5", "decision_type": "1 1 1"},
    "a categorical split": {"decision_type": "1 2 2"},
    "linear leaves without coefficients": {"is_linear": "1"},
    "one value too few": {"leaf_value": "1 2 3"},
    "one value too many": {"leaf_value": "1 2 3 4 5"},
    "trees of many outputs": {"num_class": "1000000"},
    "many trees per round": {"num_tree_per_iteration": "2147483647"},
    "features beyond all bounds": {"max_feature_idx": "2147483646"},
    "fewer names than features": {"max_feature_idx": "5"},
    "sizes that lie": {"tree_sizes": "1 99999999"},
    "sizes below zero": {"tree_sizes": "-1 -1"},
    "more sizes than trees": {"tree_sizes": "10 10 10"},
    "an objective that is a path": {"objective": "../../etc/passwd"},
    "an unknown line": {"forced_splits": "/etc/passwd"},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_trees_are_refused_before_the_library_reads_them(changes: dict[str, str], tmp_path: Path) -> None:
    text = trees(**changes)
    with pytest.raises(TreeTextError):
        checked_text(text)
    (tmp_path / "trees.txt").write_text(text)
    with pytest.raises(ValueError, match=r"trees\.txt: no trees can be read"):
        load_booster(tmp_path / "trees.txt")


def test_a_line_that_stands_twice_and_a_text_that_ends_early_are_refused() -> None:
    text = trees()
    for broken in (
        text.replace("num_leaves=4\n", "num_leaves=4\nnum_leaves=9\n", 1),
        text[: len(text) // 2],
        "",
        "tree\n",
    ):
        with pytest.raises(TreeTextError):
            checked_text(broken)


def test_parameters_behind_the_trees_reach_no_library() -> None:
    text = trees() + "\nparameters:\n[machines: 10.0.0.1:80]\n[num_threads: 100000]\nend of parameters\n"
    assert "machines" not in checked_text(text)


_CIRCLE = """
import sys
from pathlib import Path
import numpy as np
from kopt.models.lightgbm.booster import load_booster
try:
    load_booster(Path(sys.argv[1])).predict(np.zeros((1, 2)))
except ValueError as error:
    print("refused", error)
"""


@pytest.mark.parametrize("case", ["children that run in a circle", "a huge feature", "far fewer nodes than said"])
def test_hostile_trees_neither_hang_nor_end_the_process(case: str, tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(trees(**HOSTILE[case]))
    command = [sys.executable, "-P", "-c", _CIRCLE, str(tmp_path / "trees.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout[:7]) == (0, "refused"), done.stderr[-500:]


@pytest.fixture
def sizing_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sizing"
    shutil.copytree(shipped_folder("sizing"), folder)
    return folder


BOMBS = {
    "deep": "[" * 200_000 + "]" * 200_000,
    "a huge number": '{"settings": ' + "9" * 100_000 + "}",
    "not a number": '{"settings": {}, "inputs": [], "parts": {"abstract": NaN}}',
    "beyond all numbers": '{"settings": 1e999}',
    "not text": "\x00\x01",
    "another shape": "[1, 2]",
    "long": '{"a": "' + "x" * (17 << 20) + '"}',
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("name", ["sizing.json", "model.json"])
def test_json_bombs_are_refused_in_words(text: str, name: str, sizing_folder: Path) -> None:
    from kopt.models.registry.artifact import read_card
    from kopt.models.sizing.predictor import SizingPredictor

    (sizing_folder / name).write_text(text)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        SizingPredictor.load(sizing_folder) if name == "sizing.json" else read_card(sizing_folder)


def lying(header: object, body: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


LIARS = {
    "a header longer than the file": struct.pack("<Q", 2**62) + b"{}",
    "tensors that overlap": lying(
        {
            "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            "b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        }
    ),
    "a shape beyond its bytes": lying({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 16]}}),
    "a shape that overflows": lying({"a": {"dtype": "F32", "shape": [2**63, 2], "data_offsets": [0, 16]}}),
    "offsets beyond the file": lying({"a": {"dtype": "F32", "shape": [4], "data_offsets": [2**40, 2**40 + 16]}}),
    "offsets that run back": lying({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}),
    "an unknown type": lying({"a": {"dtype": "OBJ", "shape": [4], "data_offsets": [0, 16]}}),
    "a deep header": lying(b"[" * 100_000),
    "no header": b"",
    "no numbers": lying({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"\xff" * 16),
}


@pytest.mark.parametrize("content", LIARS.values(), ids=LIARS.keys())
def test_tensors_whose_header_lies_are_refused_in_words(content: bytes, tmp_path: Path) -> None:
    from kopt.models.registry.model_files import read_tensors

    path = tmp_path / "residual.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"residual\.safetensors"):
        read_tensors(path)


def test_a_model_is_tried_once_in_a_process_of_its_own(
    sizing_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.try_once("sizing", sizing_folder, "a" * 64, tmp_path)
    (sizing_folder / "sizing.json").write_text("{}")
    with pytest.raises(trial.TrialError, match=r"sizing\.json"):
        trial.try_once("sizing", sizing_folder, "b" * 64, tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    trial.try_once("sizing", sizing_folder, "a" * 64, tmp_path)
    with pytest.raises(trial.TrialError, match=r"sizing\.json"):
        trial.try_once("sizing", sizing_folder, "b" * 64, tmp_path)


def test_a_model_that_takes_too_much_memory_fails_its_trial_and_nothing_else(
    sizing_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MEMORY_BYTES", 32 << 20)
    with pytest.raises(trial.TrialError, match="in a trial process: ended"):
        trial.try_once("sizing", sizing_folder, "c" * 64, tmp_path)


def test_a_model_that_takes_too_long_fails_its_trial_and_nothing_else(
    sizing_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A limit has whole seconds, and on a fast machine a model loads in less than one: a second is used before it.
    slow = tmp_path / "slow-python"
    slow.write_text(
        f"#!{sys.executable} -P\nimport os, sys, time\nwhile time.process_time() < 1.2:\n    pass\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
    )
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(trial, "CPU_S", 1)
    with pytest.raises(trial.TrialError, match=r"in a trial process: ended by SIG.*more than 1 s of processor time"):
        trial.try_once("sizing", sizing_folder, "c" * 64, tmp_path)


def test_keys_that_sign_nothing_here_do_not_promote(
    settings: Settings, registry: Registry, version: Callable[..., str]
) -> None:
    made = version(2.0, passed=True)
    (settings.keys / "signing.key").unlink()
    with pytest.raises(RegistryError, match="run this where models are trained"):
        registry.promote("ratios", made)
