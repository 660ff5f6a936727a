"""Taking a copy away: the files that staging wrote, and what it keeps beside them."""

import contextlib
import shutil
from pathlib import Path

from kopt.agents.staging.folder import Folder
from kopt.agents.staging.journal import finished_parts
from kopt.agents.staging.troubles import of_disk
from kopt.core.staging.manifest import MARKER, STATE_FOLDER


def remove(destination: Path) -> int:
    """How many files were taken away; 0 where there is no copy. Files of others stay, and the folder with them.

    From its first change on the folder is no complete copy; the same call again goes on. Raises StagingError.
    """
    if not (destination / STATE_FOLDER).is_dir():
        return 0
    try:
        with Folder.alone(destination) as folder:
            manifest = folder.manifest()
            paths = finished_parts(folder.journal, iter(manifest.entries if manifest else ()))
            folder.begin(folder.begun or (manifest.source if manifest else "a copy that is taken away"))
            for path in paths:
                folder.remove(path)
            shutil.rmtree(folder.state)
            (destination / MARKER).unlink(missing_ok=True)
    except OSError as error:
        raise of_disk(error, destination) from error
    with contextlib.suppress(OSError):
        destination.rmdir()
    return len(paths)
