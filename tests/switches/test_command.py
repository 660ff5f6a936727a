"""``kopt features``: wrong usage, without a cluster."""

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("set", "queue", "--off", "--reason", "x"), 2, "did you mean queues"),
        (("set", "queues", "--on", "--off", "--reason", "x"), 2, "give one of"),
        (("set", "queues", "--reason", "x"), 2, "give one of"),
        (("set", "queues", "--percent", "101", "--reason", "x"), 2, "100"),
        (("set", "queues", "--off", "--reason", " "), 2, "say why"),
        (("set", "queues", "--off"), 2, "--reason"),
        (("history", "nope"), 2, "queues, schedulers"),
    ],
)
def test_wrong_usage_says_what_to_write(words: tuple[str, ...], status: int, says: str) -> None:
    done = CliRunner().invoke(app, ["features", *words], env={"COLUMNS": "200"})
    assert done.exit_code == status
    assert says in done.output
