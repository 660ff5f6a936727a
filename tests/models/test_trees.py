"""Trees read with numpy answer as LightGBM does, to the last bit."""

from pathlib import Path

import lightgbm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.models.lightgbm.text import checked_text
from kopt.models.lightgbm.trees import TreeGroup, Trees
from kopt.models.registry.shipped import shipped_folder

SHIPPED = sorted(shipped_folder("sizing").glob("*.txt"))


def _by_lightgbm(text: str, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(lightgbm.Booster(model_str=checked_text(text)).predict(inputs, num_threads=1))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_trees_answer_as_lightgbm(path: Path) -> None:
    trees = Trees.load(path)
    random = np.random.default_rng(0)
    inputs = random.normal(0, 20, (400, int(trees.text.partition("max_feature_idx=")[2].split()[0]) + 1))
    inputs[random.random(inputs.shape) < 0.2] = np.nan
    inputs[random.random(inputs.shape) < 0.2] = 0.0
    answers = trees.predict(inputs)
    assert len(np.unique(answers)) > 20
    np.testing.assert_array_equal(answers, _by_lightgbm(trees.text, inputs))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    leaves=st.integers(2, 40),
    missing=st.sampled_from(["nan", "zero", "none"]),
    alike=st.booleans(),
)
def test_fitted_trees_answer_as_lightgbm(seed: int, leaves: int, missing: str, alike: bool) -> None:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(300, 5)).round(1)
    inputs[random.random(inputs.shape) < 0.2] = np.nan if missing == "nan" else 0.0
    target = np.zeros(300) if alike else np.nansum(inputs, axis=1) + random.normal(size=300)
    options = {"zero_as_missing": missing == "zero", "use_missing": missing != "none", "num_leaves": leaves}
    booster = lightgbm.train(
        {"objective": "quantile", "alpha": 0.7, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, **options},
        lightgbm.Dataset(inputs, target, params={"verbose": -1, **options}),
        num_boost_round=10,
    )
    text = booster.model_to_string()
    new = np.concatenate([inputs, random.normal(size=(50, 5)), np.full((1, 5), np.nan), np.full((1, 5), 1e-36)])
    expected, trees = _by_lightgbm(text, new), Trees(text)
    np.testing.assert_array_equal(trees.predict(new), expected)
    np.testing.assert_array_equal([trees.predict(row[None])[0] for row in new[-60:]], expected[-60:])


def test_several_boosters_answer_together_as_each_by_itself() -> None:
    boosters = [Trees.load(path) for path in sorted(shipped_folder("runtime").glob("p*.txt"))]
    random = np.random.default_rng(1)
    inputs = random.normal(0, 5, (20, 400))
    inputs[random.random(inputs.shape) < 0.3] = np.nan
    group = TreeGroup(boosters)
    expected = np.array([trees.predict(inputs) for trees in boosters])
    assert len(np.unique(expected)) > 100
    np.testing.assert_array_equal(group.predict(inputs), expected)
    np.testing.assert_array_equal(np.hstack([group.predict(row[None]) for row in inputs]), expected)
