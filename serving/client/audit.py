"""Sends what a process has sealed to the endpoint, from a thread of its own: acting never waits for the audit log."""

import itertools
import logging
import threading
from collections import deque
from typing import Any

from kopt.core.audit import Head, SealedRecord
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.audit_answers import MAX_RECORDS
from kopt.serving.contract.common import AnswerError

_LOG = logging.getLogger(__name__)
_QUEUED_CHARS = 32 << 20
"""Of records that are kept while the endpoint does not answer; the oldest go first, and verification shows that."""
_GATHER_S = 0.5
_LONGEST_PAUSE_S, _LONGEST_REFUSED_PAUSE_S = 30.0, 300.0
_REFUSES_SENDER = (401, 403)
"""Refusals that are about the account and not about its records: rights may be granted later."""
_DEADLINE_S = 10.0
_AT_THE_END_S = 3.0


class AuditSender:
    """``sender(record)`` returns at once; ``close`` sends what is left, as far as it goes. Thread-safe."""

    def __init__(self, url: str, *, queued_chars: int = _QUEUED_CHARS, **options: Any) -> None:
        self._client = PredictionClient(url, deadline_s=_DEADLINE_S, **options)
        self._lock, self._queue, self._chars, self._most = threading.Lock(), deque[SealedRecord](), 0, queued_chars
        self._changed, self._ending = threading.Event(), threading.Event()
        self.sent = self.refusals = 0
        """Records that the endpoint took, and requests that it refused because of the account."""
        self._is_refused = False
        self.head: Head | None = None
        """Of the store, when it took records last."""
        self._thread = threading.Thread(target=self._run, name="kopt-audit", daemon=True)
        self._thread.start()

    def __call__(self, record: SealedRecord) -> None:
        with self._lock:
            self._queue.append(record)
            self._chars += len(record.text)
            while self._chars > self._most:
                self._pop()
        self._changed.set()

    def close(self) -> None:
        self._ending.set()
        self._changed.set()
        self._thread.join(_AT_THE_END_S)
        self._client.close()

    def _run(self) -> None:
        pause_s = _GATHER_S
        while not (self._ending.is_set() and not self._queue):
            self._changed.wait()
            self._ending.wait(pause_s)
            self._changed.clear()
            if self._send():
                pause_s = _GATHER_S
            elif self._ending.is_set():
                return
            else:
                pause_s = min(2 * pause_s, _LONGEST_REFUSED_PAUSE_S if self._is_refused else _LONGEST_PAUSE_S)
                self._changed.set()

    def _send(self) -> bool:
        """Whether all that was queued has gone. From a batch that is refused on they go one by one."""
        most = MAX_RECORDS
        while self._queue:
            with self._lock:
                batch = list(itertools.islice(self._queue, most))
            try:
                self.head = self._client.send_audit(batch, deadline_s=_DEADLINE_S).head.head
                self.sent += len(batch)
                self._is_refused = False
            except RequestRefused as error:
                if error.status in _REFUSES_SENDER:
                    self._on_refusal(error)
                    return False
                if len(batch) > 1:
                    most = 1
                    continue
                # Trying again would not help, and what comes after it must not wait for ever.
                _LOG.error("the endpoint refuses a record of the audit log: %s", error)
            except (EndpointFailure, AnswerError) as error:
                _LOG.warning("%d records of the audit log are not sent yet: %s", len(self._queue), error)
                return False
            self._drop(batch)
        return True

    def _on_refusal(self, error: RequestRefused) -> None:
        self.refusals += 1
        if not self._is_refused:
            # Once: it lasts until somebody grants the right, and the records are kept and printed meanwhile.
            _LOG.warning("the endpoint takes no records of the audit log from this account; they are kept: %s", error)
        self._is_refused = True

    def _drop(self, batch: list[SealedRecord]) -> None:
        """Those that have gone; the queue may have lost some of them meanwhile."""
        sent = {record.digest for record in batch}
        with self._lock:
            while self._queue and self._queue[0].digest in sent:
                self._pop()

    def _pop(self) -> None:
        self._chars -= len(self._queue.popleft().text)
