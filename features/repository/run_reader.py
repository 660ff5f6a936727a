"""Online rows of runs straight from Feast's online store, without its registry."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.features.job_history import GROUP_ARRAYS, GroupState
from kopt.features.repository.reader import online_store
from kopt.features.repository.run_definitions import ENTITY, RunRepository
from kopt.features.run_rows import Calibration
from kopt.features.session import importing_feast

with importing_feast():
    from feast.protos.feast.types.EntityKey_pb2 import EntityKey
    from feast.protos.feast.types.Value_pb2 import Value


class RunReader:
    """Reads rows of both views from the online store that ``config`` names; one per process."""

    def __init__(self, config: Any, repository: RunRepository) -> None:
        self._config, self._repository = config, repository
        self._store = online_store(config.online_store.type)

    def groups(self, names: Sequence[str]) -> tuple[list[float], list[int], list[GroupState | None]]:
        """When each group's row was known (Unix seconds, NaN where it has none), its change, and its state."""
        known_s, changes, states = [], [], list[GroupState | None]()
        for fields in self._read(self._repository.groups, names):
            known_s.append(_number(fields.get("known_s")))
            changes.append(0 if math.isnan(known_s[-1]) else fields["change"].int64_val)
            states.append(None if math.isnan(known_s[-1]) else _state(fields))
        return known_s, changes, states

    def calibrations(self, names: Sequence[str]) -> list[Calibration | None]:
        """By name; None where there is none."""
        return [
            None if math.isnan(_number(fields.get("known_s"))) else _calibration(fields)
            for fields in self._read(self._repository.calibrations, names)
        ]

    def _read(self, features: Any, names: Sequence[str]) -> list[Mapping[str, Any]]:
        if not names:
            return []
        keys = [EntityKey(join_keys=[ENTITY], entity_values=[Value(string_val=name)]) for name in names]
        return [fields or {} for _, fields in self._store.online_read(self._config, features, keys)]


def _state(fields: Mapping[str, Any]) -> GroupState:
    return GroupState.of_arrays([fields[name].double_list_val.val for name in GROUP_ARRAYS])


def _calibration(fields: Mapping[str, Any]) -> Calibration:
    return Calibration(
        tuple(fields["offsets"].double_list_val.val),
        fields["compared"].int64_val,
        _number(fields.get("loss_ratio")),
        fields["has_drifted"].bool_val,
        _number(fields.get("recent_share")),
    )


def _number(value: Any) -> float:
    return float(value.double_val) if value is not None and value.WhichOneof("val") else math.nan
