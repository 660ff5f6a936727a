"""The entries of a source, all of them fit for a folder."""

from dataclasses import replace

from kopt.agents.staging.origins import Origin
from kopt.agents.staging.settings import StageSettings
from kopt.core.staging.manifest import Entry, StagingError, Trouble


async def listed(origin: Origin, source: str, settings: StageSettings) -> list[Entry]:
    """By name. Raises StagingError where there are none or too many, and for names that do not go together."""
    entries_by_name: dict[str, Entry] = {}
    async for entry in origin.entries():
        if entry.path in entries_by_name:
            raise StagingError(f"{source} has {entry.path!r} twice; nothing is written", Trouble.BAD_NAME)
        if len(entries_by_name) >= settings.most_objects:
            raise StagingError(
                f"{source} has more than {settings.most_objects:,} objects; pack them, stage a part of them, "
                "or allow more (--most-objects)",
                Trouble.TOO_MANY,
            )
        entries_by_name[entry.path] = _checked(entry, settings)
    if not entries_by_name:
        raise StagingError(f"there is nothing at {source}; check the name, an empty copy is none", Trouble.EMPTY)
    unknown = sorted(set(settings.checksums) - set(entries_by_name))
    if unknown:
        raise StagingError(f"{source} has no {unknown[0]!r}, of which a checksum is given", Trouble.NOT_FOUND)
    _without_folders(entries_by_name, source)
    return [entries_by_name[path] for path in sorted(entries_by_name)]


def _checked(entry: Entry, settings: StageSettings) -> Entry:
    checksum = settings.checksums.get(entry.path)
    return replace(entry, checksum=checksum or (entry.checksum if settings.check_source else None))


def _without_folders(entries_by_name: dict[str, Entry], source: str) -> None:
    """Empty objects that stand for folders go; a file where others need a folder cannot be copied."""
    folders = {path[:index] for path in entries_by_name for index in _slashes(path)}
    for path in folders & entries_by_name.keys():
        if entries_by_name[path].bytes:
            message = f"{source} has {path!r} and files below it, which no folder can hold; nothing is written"
            raise StagingError(message, Trouble.BAD_NAME)
        del entries_by_name[path]


def _slashes(path: str) -> list[int]:
    return [index for index, letter in enumerate(path) if letter == "/"]
