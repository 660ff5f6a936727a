"""Where a process keeps its state."""

from pathlib import Path

import pytest

from kopt.core.settings import Settings, SettingsError


def test_state_lies_under_home_unless_a_folder_of_its_own_is_named() -> None:
    assert Settings.parse({}, home=Path("/h")).state == Path("/h")
    assert Settings.parse({"KOPT_STATE_DIR": "/s"}, home=Path("/h")).state == Path("/s")
    assert Settings.parse({}, 'state_dir = "/t"', home=Path("/h")).state == Path("/t")


@pytest.mark.parametrize("text", ["0.2", "3", "nan", "often", "-1", "inf"])
def test_false_alarms_that_were_never_measured_are_refused(text: str) -> None:
    assert Settings.parse({"KOPT_ANOMALY_FALSE_ALARMS": "1"}, home=Path("/h")).anomaly_false_alarms == 1.0
    with pytest.raises(SettingsError, match=r"KOPT_ANOMALY_FALSE_ALARMS .* from 0.25 to 2"):
        Settings.parse({"KOPT_ANOMALY_FALSE_ALARMS": text}, home=Path("/h"))
