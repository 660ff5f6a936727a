"""Programs of others read the switches through OpenFeature, and get the same answers as our components."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.evaluation_context import EvaluationContext
from openfeature.flag_evaluation import FlagEvaluationOptions, Reason

from kopt.cluster.runtime.feature_provider import SwitchProvider
from kopt.core.switches import FEATURES, Alarm, Owner, Switches

NOW: list[Switches | None] = [None]
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,30}", fullmatch=True)


@pytest.fixture(scope="module")
def client() -> Iterator[OpenFeatureClient]:
    api.set_provider(SwitchProvider(lambda: NOW[0]), "kopt")
    yield api.get_client("kopt")
    api.clear_providers()


def acts(client: OpenFeatureClient, feature: str, key: str | None = "jobs/team/train", default: bool = False) -> bool:
    return client.get_boolean_value(feature, default, EvaluationContext(key), FlagEvaluationOptions())


@given(st.sampled_from([feature.name for feature in FEATURES]), st.integers(0, 100), NAMES, NAMES)
def test_it_includes_whom_our_components_include(
    client: OpenFeatureClient, feature: str, percent: int, namespace: str, name: str
) -> None:
    NOW[0] = Switches({feature: percent})
    expected = NOW[0].includes(feature, Owner.of("jobs", namespace, name))
    assert acts(client, feature, f"jobs/{namespace}/{name}") is expected
    assert client.get_integer_value(feature, -1) == percent


def test_it_says_why_a_feature_is_off(client: OpenFeatureClient) -> None:
    NOW[0] = Switches().fall_back("kopt-sizing", "sizing", Alarm("Drift", "sizing@7", "it misses"), 1.0)
    details = client.get_boolean_details("sizing", True)
    assert (details.value, details.reason, details.flag_metadata["alarm"]) == (False, Reason.DISABLED, "Drift/sizing@7")


@pytest.mark.parametrize(
    ("switches", "feature", "key", "code"),
    [
        (None, "queues", "jobs/team/train", "PROVIDER_NOT_READY"),
        (Switches(), "nope", "jobs/team/train", "FLAG_NOT_FOUND"),
        (Switches({"queues": 10}), "queues", None, "TARGETING_KEY_MISSING"),
        (Switches({"queues": 10}), "queues", "train", "INVALID_CONTEXT"),
    ],
)
def test_what_cannot_be_said_is_the_callers_default_and_an_error(
    client: OpenFeatureClient, switches: Switches | None, feature: str, key: str | None, code: str
) -> None:
    NOW[0] = switches
    details = client.get_boolean_details(feature, False, EvaluationContext(key))
    assert (details.value, details.error_code) == (False, code)
    assert client.get_string_details("queues", "x").error_code in ("TYPE_MISMATCH", code)
