"""Where the pages read which alerts fired, and keep who looks after them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kopt.core.alerts.acknowledgement import Acknowledgement
from kopt.core.alerts.episodes import Episode


class AlertsError(Exception):
    """They cannot be read, or written, now; the message is a sentence for the reader."""


@dataclass(frozen=True)
class AlertHistory:
    """The newest first; times are right to ``step_s``. ``problem``: why acknowledgements are not among it."""

    episodes: Sequence[Episode] = ()
    acknowledgements: Sequence[Acknowledgement] = ()
    step_s: int = 60
    problem: str = ""


class AlertSource(Protocol):
    """Both methods block, and raise AlertsError."""

    def history(self, window_s: int) -> AlertHistory:
        """Alerts of the last ``window_s`` seconds, and what was said of them."""

    def acknowledge(self, item: Acknowledgement) -> None:
        """Keep it; nobody's word takes another's place."""
