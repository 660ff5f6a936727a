"""What every source can do, whichever server it is on."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from kopt.agents.staging.settings import StageSettings
from kopt.core.staging.manifest import Entry, Source, SourceKind


class Origin(Protocol):
    """``revision`` and ``remarks`` are known once the entries are; ``whole``: no part can be had by itself."""

    revision: str
    remarks: list[str]
    whole: bool

    def entries(self) -> AsyncIterator[Entry]:
        """All there is, in any order. Raises StagingError."""
        ...

    def read(self, entry: Entry, begin: int, end: int) -> AsyncGenerator[bytes]:
        """The bytes of a part in pieces, of this very version. Raises StagingError, CHANGED where it is another."""
        ...


@asynccontextmanager
async def opened(source: Source, settings: StageSettings, scratch: Path) -> AsyncGenerator[Origin]:
    """The origin of a source; ``scratch`` is a folder that it may fill and that lasts as long as the copy does not."""
    match source.kind:
        case SourceKind.S3 | SourceKind.GCS | SourceKind.AZURE:
            from kopt.agents.staging.buckets import Bucket

            yield Bucket(source, settings)
        case SourceKind.HTTP:
            from kopt.agents.staging.web import WebFile

            yield WebFile(source, settings)
        case SourceKind.HUB:
            from kopt.agents.staging.hub import Hub

            yield Hub(source, settings)
        case SourceKind.GIT:
            from kopt.agents.staging.git import Repository

            yield Repository(source, settings, scratch / "git")
        case SourceKind.CLAIM | SourceKind.LOCAL:
            from kopt.agents.staging.local import LocalFiles

            yield LocalFiles(source, settings)
