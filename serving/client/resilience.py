"""When to stop trying: a circuit breaker and a retry budget. Standard library only; the clock is passed in."""

from collections.abc import Callable


class CircuitBreaker:
    """Opens after ``failures`` in a row and lets one probe through after a pause that doubles up to ``longest_s``.

    Nygard, *Release It!*, stability patterns. An open circuit costs its callers nothing, so that an endpoint that is
    down does not make everyone wait for their deadline on every call.
    """

    def __init__(
        self, clock: Callable[[], float], *, failures: int = 5, pause_s: float = 1.0, longest_s: float = 30.0
    ) -> None:
        self._clock, self._limit, self._first_s, self._longest_s = clock, failures, pause_s, longest_s
        self._failed, self._pause_s, self._retry_at_s, self._probing = 0, pause_s, 0.0, False

    @property
    def open(self) -> bool:
        return self._failed >= self._limit

    def allows(self) -> bool:
        """Whether a call may go out now; while open, one probe at a time after each pause."""
        if not self.open:
            return True
        if self._clock() < self._retry_at_s:
            return False
        # The next probe is due one pause later even if this one is never answered.
        self._retry_at_s = self._clock() + self._pause_s
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._failed, self._pause_s, self._probing = 0, self._first_s, False

    def failed(self) -> None:
        self._failed += 1
        if self._probing:
            self._pause_s = min(self._pause_s * 2, self._longest_s)
            self._probing = False
        if self.open:
            self._retry_at_s = self._clock() + self._pause_s


class RetryBudget:
    """Retries may be at most a share of calls, so that they do not multiply the load on a failing endpoint.

    As in gRPC's retry throttling (proposal A6): every failure takes a token, every success gives ``per_success``
    back, and retries stop while no more than half of ``tokens`` is left.
    """

    def __init__(self, tokens: float = 10.0, per_success: float = 0.1) -> None:
        self._most, self._tokens, self._per_success = tokens, tokens, per_success

    @property
    def allows(self) -> bool:
        return self._tokens > self._most / 2

    def succeeded(self) -> None:
        self._tokens = min(self._most, self._tokens + self._per_success)

    def failed(self) -> None:
        self._tokens = max(0.0, self._tokens - 1)
