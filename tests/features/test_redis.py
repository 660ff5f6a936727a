"""Online rows in a real Redis: the same rows, and clear errors in bounded time when it is away."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kopt.core.settings import Settings, SettingsError
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import COLUMN, transform
from kopt.features.repository.definitions import redis_address
from kopt.features.rows import FeatureStoreError
from kopt.features.store import DemandFeatureStore

pytestmark = pytest.mark.services
Daily = Callable[..., DemandSeries]
PASSWORD = 'p,a=ss" 1e5'
QUOTED = "p%2Ca%3Dss%22%201e5"


def _on(settings: Settings, port: int, login: str = "") -> DemandFeatureStore:
    return DemandFeatureStore(replace(settings, redis_url=f"redis://{login}127.0.0.1:{port}/2"))


def test_redis_gives_the_rows_that_sqlite_gives(settings: Settings, redis_server: Any, daily: Daily) -> None:
    series = [daily(), daily("fractional", start_s=1_700_158_623.97996), daily("anonymous", start_known=False)]
    names = [*(one.name for one in series), "absent"]
    local, remote = DemandFeatureStore(settings), _on(settings, redis_server(PASSWORD).port, f":{QUOTED}@")
    local.write(series)
    local.materialise()
    assert not remote.online(names).present.any()
    assert remote.materialise() == 3
    here, there = local.online(names, 0.0), remote.online(names, 0.0)
    np.testing.assert_array_equal(here.features, there.features)
    np.testing.assert_array_equal(here.observed_at_s, there.observed_at_s)
    np.testing.assert_array_equal(here.start_known, there.start_known)
    np.testing.assert_array_equal(there.features[0], transform(series[0], np.array([599]))[0])


def test_a_corrected_last_bucket_replaces_the_row(settings: Settings, redis_server: Any, daily: Daily) -> None:
    store, series = _on(settings, redis_server().port), daily()
    store.write([series])
    store.materialise()
    store.write([replace(series, value=np.append(series.value[:-1], 7.0))])
    store.materialise()
    assert store.online(["chat"]).features[0, COLUMN["last_value"]] == 7.0


def test_a_redis_that_is_away_is_an_error_soon_and_comes_back(
    settings: Settings, redis_server: Any, daily: Daily
) -> None:
    server = redis_server(PASSWORD)
    store = _on(settings, server.port, f":{QUOTED}@")
    store.write([daily()])
    store.materialise()
    server.stop()
    for use in (lambda: store.online(["chat"]), lambda: store.materialise()):
        began = time.monotonic()
        with pytest.raises(FeatureStoreError, match="KOPT_REDIS_URL") as raised:
            use()
        assert time.monotonic() - began < 30
        assert "1e5" not in str(raised.value)
    server.start()
    assert not store.online(["chat"]).present.any()
    store.materialise()
    assert store.online(["chat"]).present.all()


def test_a_redis_that_hangs_is_an_error_soon(settings: Settings, redis_server: Any, daily: Daily) -> None:
    server = redis_server()
    store = _on(settings, server.port)
    store.write([daily()])
    store.materialise()
    os.kill(server.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(FeatureStoreError, match="Timeout"):
        store.online(["chat"])
    assert time.monotonic() - began < 30
    os.kill(server.process.pid, signal.SIGCONT)
    assert store.online(["chat"]).present.all()


def test_a_wrong_password_is_an_error(settings: Settings, redis_server: Any) -> None:
    store = _on(settings, redis_server(PASSWORD).port, ":wrong@")
    with pytest.raises(FeatureStoreError, match="Authentication"):
        store.online(["chat"])


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://localhost",
        "redis://:secret@/0",
        "redis://:secret@[::1]:6379",
        "redis://h:port/0",
        "redis://:secret@host/zero",
    ],
)
def test_addresses_that_are_none_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(SettingsError, match=r"redis://host:port/0") as raised:
        redis_address(url)
    assert "secret" not in str(raised.value)
