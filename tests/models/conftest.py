"""The registry with a small fitted predictor of our own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from empty_registry import with_empty_registry
from ratio_quantiles import RatioQuantiles

from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.models.registry.artifact import ModelCard, save_model
from kopt.models.registry.registry import Registry
from kopt.models.registry.signing import sign_folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=with_empty_registry(tmp_path / "home"))


@pytest.fixture
def registry(settings: Settings) -> Registry:
    return Registry(settings, predictors={"ratios": "ratio_quantiles:RatioQuantiles"}, trusted_digests=())


@pytest.fixture
def signed_model(settings: Settings, tmp_path: Path) -> Any:
    """Returns a function: growth of the training values → signed folder of a model fitted on them."""

    def make(growth: float) -> Path:
        folder = tmp_path / f"fitted-{growth}"
        predictor = RatioQuantiles().fit(np.array([1.0, growth, growth**2, growth**3]))
        save_model(predictor, folder, ModelCard("ratios"))
        sign_folder(folder, signing_key(settings.keys))
        return folder

    return make
