"""Where a process keeps its state."""

from pathlib import Path

from kopt.core.settings import Settings


def test_state_lies_under_home_unless_a_folder_of_its_own_is_named() -> None:
    assert Settings.parse({}, home=Path("/h")).state == Path("/h")
    assert Settings.parse({"KOPT_STATE_DIR": "/s"}, home=Path("/h")).state == Path("/s")
    assert Settings.parse({}, 'state_dir = "/t"', home=Path("/h")).state == Path("/t")
