"""How staging goes about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kopt.core.staging.manifest import Checksum
from kopt.core.units import MIB


@dataclass(frozen=True)
class StageSettings:
    """What people and controllers may change."""

    parallel: int = 8
    """Parts on their way at a time."""
    part_bytes: int = 16 * MIB
    limit_bytes_s: float | None = None
    """All parts together; None is as fast as it goes."""
    retry_s: float = 180.0
    """How long a request is tried again where the source does not answer, or asks for patience."""
    stall_s: float = 60.0
    """A connection that brings nothing for so long is given up, and tried again."""
    most_objects: int = 1_000_000
    check_source: bool = True
    """Compare with the source's own checksums."""
    checksums: Mapping[str, Checksum] = field(default_factory=dict)
    """By path, what the user knows; all of them must be there."""
    replace: bool = False
    """A copy of another source may be replaced."""
    progress: Path | None = None
    """Another place for the file of the progress, beside that in the destination."""
    claims: Path = Path("/pvc")
    """Where claims are mounted, each in a folder of its name."""
