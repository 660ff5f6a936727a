"""Feast objects of the features of runs: states of groups, and how models' answers about them have held.

A row's event time is the start or end of the run that made it: from then on it is known. ``known_s`` keeps that time to
the microsecond, which online stores do not (whole seconds).
"""

from pathlib import Path
from typing import Any, NamedTuple

from kopt.features.job_history import GROUP_ARRAYS
from kopt.features.session import importing_feast

with importing_feast():
    from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
    from feast.data_format import ParquetFormat
    from feast.types import Array, Bool, Float64, Int64

ENTITY, GROUPS, CALIBRATIONS, SERVICE = "jobs", "run_groups", "run_calibrations", "runtime_v1"
EVENT_TIME, CREATED_TIME = "event_timestamp", "created_timestamp"
COMMON = {"known_s": Float64, "change": Int64}
GROUP_FIELDS = COMMON | dict.fromkeys(GROUP_ARRAYS, Array(Float64))
CALIBRATION_FIELDS = COMMON | {
    "offsets": Array(Float64),
    "compared": Int64,
    "loss_ratio": Float64,
    "has_drifted": Bool,
    "recent_share": Float64,
}


class RunRepository(NamedTuple):
    """Everything that is applied to the registry."""

    entity: Any
    groups_source: Any
    calibrations_source: Any
    groups: Any
    calibrations: Any
    service: Any


def run_repository(groups: Path, calibrations: Path) -> RunRepository:
    """The definitions over the Parquet files in two folders."""
    entity = Entity(
        name=ENTITY,
        join_keys=[ENTITY],
        value_type=ValueType.STRING,
        description="jobs of one class, name, queue, size or cluster, as JSON",
    )
    sources = [_source(name, folder) for name, folder in ((GROUPS, groups), (CALIBRATIONS, calibrations))]
    both = [
        FeatureView(
            name=name,
            entities=[entity],
            # What was seen last holds until something else is seen; how old it is stands in the row.
            ttl=None,
            schema=[Field(name=each, dtype=kind) for each, kind in fields.items()],
            source=source,
            description=text,
        )
        for name, fields, source, text in (
            (GROUPS, GROUP_FIELDS, sources[0], "what runs have shown; kopt.features.job_history.described"),
            (CALIBRATIONS, CALIBRATION_FIELDS, sources[1], "how a model's answers have held in a queue, for a name"),
        )
    ]
    service = FeatureService(name=SERVICE, features=[both[0]])
    return RunRepository(entity, sources[0], sources[1], both[0], both[1], service)


def _source(name: str, folder: Path) -> Any:
    return FileSource(
        name=f"{name}_source",
        path=str(folder),
        file_format=ParquetFormat(),
        timestamp_field=EVENT_TIME,
        created_timestamp_column=CREATED_TIME,
    )
