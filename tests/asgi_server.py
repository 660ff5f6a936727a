"""An ASGI application on loopback, in a thread of the test's process."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from controlplane.processes import PATIENCE_S, wait_for


@contextlib.contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """The application's address on a free port."""
    # As the pages' own server: an open page listens for as long as it is open.
    options = {"timeout_graceful_shutdown": 1, **options}
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", log_level="error", **{"port": 0, **options}))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), what="uvicorn listens")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE_S)
