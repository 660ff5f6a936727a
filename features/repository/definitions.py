"""Feast objects of the demand features.

A row's event time is the end of its origin's bucket: from then on its features are known. Series whose start is
unknown are placed at ``rows.ANCHOR_S``; ``observed_at_s`` keeps the series' own time, to the microsecond, which online
stores do not (whole seconds).
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from kopt.core.settings import Settings, SettingsError
from kopt.features.demand import FEATURES
from kopt.features.rows import TTL_S
from kopt.features.session import importing_feast, quietly

with importing_feast():
    from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
    from feast.data_format import ParquetFormat
    from feast.types import Bool, Float64

ENTITY, VIEW, SERVICE = "service", "demand_features", "demand_v1"
EVENT_TIME = "event_timestamp"
OBSERVED_AT, START_KNOWN = "observed_at_s", "start_known"
REDIS_TIMEOUT_S = 1.0
"""For connecting and for each answer; there are no retries."""


class Repository(NamedTuple):
    """Everything that is applied to the registry."""

    entity: Any
    source: Any
    view: Any
    service: Any


def repository(offline: Path) -> Repository:
    """The definitions over the Parquet files in the folder ``offline``."""
    entity = Entity(name=ENTITY, join_keys=[ENTITY], value_type=ValueType.STRING, description="an inference service")
    source = FileSource(name="demand", path=str(offline), file_format=ParquetFormat(), timestamp_field=EVENT_TIME)
    fields = [Field(name=name, dtype=Float64) for name in (*FEATURES, OBSERVED_AT)]
    view = FeatureView(
        name=VIEW,
        entities=[entity],
        ttl=timedelta(seconds=TTL_S),
        schema=[*fields, Field(name=START_KNOWN, dtype=Bool)],
        source=source,
        description="demand history relative to its last value; kopt.features.demand.transform",
    )
    return Repository(entity, source, view, FeatureService(name=SERVICE, features=[view]))


def feature_store(config: Any) -> Any:
    """Feast's entry point on the stores of ``config``."""
    with quietly():
        return FeatureStore(config=config)


def repo_config(settings: Settings, folder: Path) -> Any:
    """Registry and stores under ``folder``; the online store is Redis where ``settings.redis_url`` names one.

    The project's name carries the folder's, so stores of different transformations never mix, even in one Redis.
    """
    online: dict[str, Any] = {"type": "sqlite", "path": str(folder / "online.db")}
    if settings.redis_url:
        # Without skip_dedup Feast ignores a corrected row with the time of the one it corrects.
        online = {"type": "redis", "connection_string": redis_address(settings.redis_url), "skip_dedup": True}
    return RepoConfig(
        project=f"kopt_{folder.name}",
        provider="local",
        # Never refreshed while reading: definitions belong to the version of the code.
        registry={"registry_type": "sql", "path": f"sqlite:///{folder / 'registry.db'}", "cache_ttl_seconds": 0},
        offline_store={"type": "duckdb"},
        online_store=online,
        entity_key_serialization_version=3,
        repo_path=folder,
    )


def redis_address(url: str) -> str:
    """``redis://user:password@host:port/db`` as Feast's connection string, with time limits and without retries."""
    try:
        parts = urlsplit(url)
        host, port, database = parts.hostname or "", parts.port or 6379, int(parts.path.strip("/") or 0)
    except ValueError:
        host = ""
    # The address may hold a password, so no message repeats it.
    if not host or ":" in host or "," in host or parts.scheme not in ("redis", "rediss"):
        raise SettingsError("redis_url must look like redis://host:port/0 (rediss for TLS; no IPv6 literals)")
    options: dict[str, Any] = {"db": database, "retry": None}
    options |= {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    options |= {"ssl": True} if parts.scheme == "rediss" else {}
    options |= {"username": unquote(parts.username)} if parts.username else {}
    options |= {"password": unquote(parts.password)} if parts.password else {}
    # Feast splits at commas and reads each value as JSON.
    texts = (f"{key}={json.dumps(value).replace(',', chr(92) + 'u002c')}" for key, value in options.items())
    return ",".join([f"{host}:{port}", *texts])
