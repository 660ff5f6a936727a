"""Staging from servers that speak Google's and Azure's protocols."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kopt.core.staging.manifest import Progress, StagingError, Trouble
from tests.staging.clouds import Cloud, azure, google
from tests.staging.conftest import content, run, staged

pytestmark = pytest.mark.services
PART = 1 << 20


@pytest.fixture(scope="module", params=[google, azure])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    try:
        with request.param(tmp_path_factory.mktemp("cloud")) as running:
            yield running
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def cloud(server: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server


def test_objects_of_all_sizes_and_names_arrive(cloud: Cloud, tmp_path: Path) -> None:
    objects = {
        "all/one": b"x",
        "all/inner/of two parts": os.urandom(2 * PART),
        "all/strange # + ü?.bin": os.urandom(PART + 1),
        "all/large": os.urandom(9 * PART + 7),
    }
    for key, value in objects.items():
        cloud.put(key, value)
    cloud.put("alligator", b"another prefix")

    staged(f"{cloud.scheme}://data/all", tmp_path / "copy", part_bytes=PART)

    assert content(tmp_path / "copy") == {key.removeprefix("all/"): value for key, value in objects.items()}
    assert staged(f"{cloud.scheme}://data/all/one", tmp_path / "one").entries[0].entry.path == "one"
    assert run("--verify", tmp_path / "copy").returncode == 0


def test_an_empty_object_beside_a_folder_of_its_name_stands_for_the_folder(cloud: Cloud, tmp_path: Path) -> None:
    """As tools and hierarchical namespaces make them; a copy of it alone would be complete, and nothing."""
    for key, value in {"marked": b"", "marked/inner": b"", "marked/inner/a": b"a", "marked/b": b"b"}.items():
        cloud.put(key, value)
    staged(f"{cloud.scheme}://data/marked", tmp_path / "copy")
    assert content(tmp_path / "copy") == {"inner/a": b"a", "b": b"b"}
    cloud.put("empty", b"")
    cloud.put("emptyish", b"another")
    staged(f"{cloud.scheme}://data/empty", tmp_path / "one")
    assert content(tmp_path / "one") == {"empty": b""}


def test_another_version_of_an_object_is_never_mixed_with_the_first(cloud: Cloud, tmp_path: Path) -> None:
    cloud.put("changing/set", b"a" * (8 * PART))
    changed = []

    def change_it(progress: Progress) -> None:
        if progress.bytes_done and not changed:
            changed.append(progress)
            cloud.put("changing/set", b"b" * (8 * PART))

    told = Listening(change_it)
    with pytest.raises(StagingError) as caught:
        staged(f"{cloud.scheme}://data/changing", tmp_path, told, part_bytes=PART, parallel=1, limit_bytes_s=2.0 * PART)
    assert caught.value.reason is Trouble.CHANGED
    assert content(tmp_path) == {}

    staged(f"{cloud.scheme}://data/changing", tmp_path, part_bytes=PART)
    assert content(tmp_path) == {"set": b"b" * (8 * PART)}


class Listening(list[Progress]):
    """What a run tells, passed on."""

    def __init__(self, hear: Callable[[Progress], None]) -> None:
        super().__init__()
        self._hear = hear

    def append(self, progress: Progress) -> None:
        super().append(progress)
        self._hear(progress)


def test_what_is_not_there_and_what_may_not_be_read_say_so(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of buckets that are not there the stand-in for Google's says 500.
    for missing in ("data/nothing/here", *(["nowhere/set"] if cloud.scheme == "az" else [])):
        with pytest.raises(StagingError) as caught:
            staged(f"{cloud.scheme}://{missing}", tmp_path / "missing")
        assert caught.value.reason in (Trouble.NOT_FOUND, Trouble.EMPTY)
    if cloud.scheme == "gs":
        return
    monkeypatch.delenv("AZURE_STORAGE_USE_EMULATOR")
    wrong = {
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc=",
        "AZURE_STORAGE_ENDPOINT": f"{cloud.variables['AZURITE_BLOB_STORAGE_URL']}/devstoreaccount1",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StagingError) as caught:
        staged("az://data/all", tmp_path / "denied")
    assert caught.value.reason is Trouble.DENIED
    assert "d3Jvbmc" not in str(caught.value)
