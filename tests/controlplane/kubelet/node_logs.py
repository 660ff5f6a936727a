"""What container runtimes leave on a node: the output of each container, by line, with its time.

``/var/log/pods/NAMESPACE_NAME_UID/CONTAINER/RESTARTS.log``, in the format of the container runtime interface.
"""

from datetime import UTC, datetime
from pathlib import Path

from controlplane.api import Object
from controlplane.kubelet.containers import Container


class NodeLogs:
    """Those of one pod, below the node's root."""

    def __init__(self, root: Path, pod: Object) -> None:
        meta = pod["metadata"]
        self._folder = root / "var/log/pods" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        self._copied: dict[Path, int] = {}

    def copy(self, container: Container) -> None:
        """Appends the lines that the container has printed since; one that has not ended waits for its end."""
        source = container.log
        begin = self._copied.get(source, 0)
        if not source.exists() or source.stat().st_size <= begin:
            return
        with source.open("rb") as log:
            log.seek(begin)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._copied[source] = begin + len(whole)
        target = self._folder / container.name / f"{container.restarts}.log"
        target.parent.mkdir(parents=True, exist_ok=True)
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()
        with target.open("ab") as log:
            log.writelines(b"%s stdout F %s" % (time, line) for line in whole.splitlines(keepends=True))
