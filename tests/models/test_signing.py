"""Only folders that a trusted key signed, unchanged, are accepted."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kopt.models.signing import (
    PRIVATE_KEY_FILE,
    PUBLIC_KEY_FILE,
    SIGNATURE_FILE,
    SigningError,
    folder_digest,
    public_keys,
    sign_folder,
    signing_key,
    verify_folder,
)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "trees").mkdir(parents=True)
    (folder / "model.json").write_text('{"a": 1}')
    (folder / "trees" / "300.txt").write_text("tree")
    return folder


def test_a_signed_folder_is_accepted_with_its_digest(model: Path, keys: Path) -> None:
    digest = sign_folder(model, signing_key(keys))
    assert verify_folder(model, public_keys(keys)) == digest == folder_digest(model)


def test_the_key_pair_is_made_once_and_only_its_owner_may_read_it(keys: Path) -> None:
    first = signing_key(keys)
    assert stat.S_IMODE((keys / PRIVATE_KEY_FILE).stat().st_mode) == 0o600
    assert signing_key(keys).private_bytes_raw() == first.private_bytes_raw()
    assert [p.name for p in sorted(keys.iterdir())] == [PRIVATE_KEY_FILE, PUBLIC_KEY_FILE]


def test_a_private_key_that_everybody_may_read_is_refused(keys: Path) -> None:
    signing_key(keys)
    (keys / PRIVATE_KEY_FILE).chmod(0o644)
    with pytest.raises(SigningError, match="chmod 600"):
        signing_key(keys)


def test_processes_that_start_together_share_one_key(keys: Path) -> None:
    code = "import sys; from pathlib import Path; from kopt.models.signing import *; "
    code += "print(signing_key(Path(sys.argv[1])).private_bytes_raw().hex())"
    started = [
        subprocess.Popen([sys.executable, "-P", "-c", code, str(keys)], stdout=subprocess.PIPE) for _ in range(3)
    ]
    assert len({process.communicate()[0] for process in started}) == 1


def test_verification_needs_no_private_key(model: Path, keys: Path) -> None:
    sign_folder(model, signing_key(keys))
    (keys / PRIVATE_KEY_FILE).unlink()
    assert verify_folder(model, public_keys(keys))


def test_an_unsigned_folder_is_refused_unless_its_digest_is_known(model: Path, keys: Path) -> None:
    with pytest.raises(SigningError, match="not signed"):
        verify_folder(model, public_keys(keys))
    assert verify_folder(model, (), {folder_digest(model)})


def test_a_signature_of_an_unknown_key_is_refused(model: Path, keys: Path) -> None:
    signing_key(keys)
    sign_folder(model, Ed25519PrivateKey.generate())
    with pytest.raises(SigningError, match="not trusted here"):
        verify_folder(model, public_keys(keys))


def _flip(folder: Path) -> None:
    (folder / "trees" / "300.txt").write_text("tref")


def _add(folder: Path) -> None:
    (folder / "extra.txt").write_text("")


def _remove(folder: Path) -> None:
    (folder / "trees" / "300.txt").unlink()


def _rename(folder: Path) -> None:
    (folder / "trees" / "300.txt").rename(folder / "trees" / "301.txt")


def _move_a_byte(folder: Path) -> None:
    (folder / "a.txt").write_text("x")


@pytest.mark.parametrize("change", [_flip, _add, _remove, _rename, _move_a_byte])
def test_a_changed_folder_is_refused(model: Path, keys: Path, change: object) -> None:
    sign_folder(model, signing_key(keys))
    change(model)  # type: ignore[operator]
    with pytest.raises(SigningError, match="changed, added or removed"):
        verify_folder(model, public_keys(keys))


def test_a_signature_with_the_digest_replaced_is_refused(model: Path, keys: Path) -> None:
    sign_folder(model, signing_key(keys))
    _flip(model)
    document = json.loads((model / SIGNATURE_FILE).read_text())
    document["digest"] = folder_digest(model)
    (model / SIGNATURE_FILE).write_text(json.dumps(document))
    with pytest.raises(SigningError, match="does not match key"):
        verify_folder(model, public_keys(keys))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": 1}', "[" * 3000, '{"algorithm": "none"}', "x" * 5000])
def test_a_malformed_signature_is_refused(model: Path, keys: Path, text: str) -> None:
    sign_folder(model, signing_key(keys))
    (model / SIGNATURE_FILE).write_text(text)
    with pytest.raises(SigningError):
        verify_folder(model, public_keys(keys))


@pytest.mark.parametrize("name", ["a b", ".hidden", "ä.txt", "new\nline.txt", "-rf", "..."])
def test_odd_file_names_are_refused(model: Path, name: str) -> None:
    (model / name).write_text("x")
    with pytest.raises(SigningError, match="not a file name of a model"):
        folder_digest(model)


def test_links_and_special_files_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "link.txt").symlink_to("/etc/hostname")
    with pytest.raises(SigningError, match="link"):
        folder_digest(model)
    (model / "link.txt").unlink()
    os.mkfifo(model / "pipe.txt")
    with pytest.raises(SigningError, match="special file"):
        folder_digest(model)


def test_a_linked_subfolder_and_a_linked_signature_are_refused(model: Path, keys: Path, tmp_path: Path) -> None:
    sign_folder(model, signing_key(keys))
    outside = tmp_path / "elsewhere.json"
    (model / SIGNATURE_FILE).rename(outside)
    (model / SIGNATURE_FILE).symlink_to(outside)
    with pytest.raises(SigningError):
        verify_folder(model, public_keys(keys))


def test_an_empty_folder_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(SigningError, match="no files"):
        folder_digest(tmp_path)


@hypothesis_settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(st.from_regex(r"[a-z]{1,8}\.txt", fullmatch=True), st.binary(max_size=40), min_size=1),
    other=st.dictionaries(st.from_regex(r"[a-z]{1,8}\.txt", fullmatch=True), st.binary(max_size=40), min_size=1),
)
def test_digests_are_equal_exactly_when_the_files_are(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], other: dict[str, bytes]
) -> None:
    def written(content: dict[str, bytes]) -> str:
        folder = tmp_path_factory.mktemp("m")
        for name, data in content.items():
            (folder / name).write_bytes(data)
        return folder_digest(folder)

    assert (written(files) == written(other)) == (files == other)
    assert written(files) == written(dict(reversed(files.items())))
