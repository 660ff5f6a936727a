"""Only folders that a trusted key signed, unchanged, are accepted."""

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from example_budget import examples
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kopt.core.signing_keys import PRIVATE_KEY_FILE, PUBLIC_KEY_FILE, SigningError, key_id, public_keys, signing_key
from kopt.models.registry.signing import SIGNATURE_FILE, folder_digest, is_model_path, sign_folder, verify_folder


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


def test_signatures_of_earlier_releases_stay_valid(model: Path) -> None:
    manifest = (
        '[["model.json",8,"f9d86028c6e0d64e225186f96acb69338b2c59764df79162107f5c4bb34d1310"],'
        '["trees/300.txt",4,"dc9c5edb8b2d479e697b4b0b8ab874f32b325138598ce9e7b759eb8292110622"]]'
    )
    assert folder_digest(model) == hashlib.sha256(f"kopt model folder v1\n{manifest}".encode()).hexdigest()


def test_a_signature_names_its_key_by_sixteen_digits_and_can_be_read_by_people(model: Path, keys: Path) -> None:
    key = signing_key(keys)
    digest = sign_folder(model, key)
    text = (model / SIGNATURE_FILE).read_text()
    document = json.loads(text)
    raw = key.public_key().public_bytes_raw()
    assert document["key"] == key_id(key.public_key()) == hashlib.sha256(raw).hexdigest()[:16]
    assert document["digest"] == digest
    assert text == json.dumps(document, indent=2) + "\n"


def test_the_keys_folder_is_made_where_it_is_missing_and_is_its_owners_alone(tmp_path: Path) -> None:
    keys = tmp_path / "not" / "there" / "yet"
    signing_key(keys)
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700


def test_a_keys_folder_that_is_there_and_empty_gets_its_pair(keys: Path) -> None:
    keys.mkdir()
    signing_key(keys)
    assert len(public_keys(keys)) == 1


def test_the_key_pair_is_made_once_and_only_its_owner_may_read_it(keys: Path) -> None:
    first = signing_key(keys)
    assert stat.S_IMODE((keys / PRIVATE_KEY_FILE).stat().st_mode) == 0o600
    assert signing_key(keys).private_bytes_raw() == first.private_bytes_raw()
    assert [p.name for p in sorted(keys.iterdir())] == [PRIVATE_KEY_FILE, PUBLIC_KEY_FILE]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601])
def test_a_private_key_that_everybody_may_read_or_change_is_refused(keys: Path, mode: int) -> None:
    signing_key(keys)
    (keys / PRIVATE_KEY_FILE).chmod(mode)
    with pytest.raises(SigningError, match="chmod 600"):
        signing_key(keys)


def test_processes_that_start_together_share_one_key(keys: Path) -> None:
    code = "import sys; from pathlib import Path; from kopt.core.signing_keys import *; "
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


def test_a_refused_key_is_named_beside_those_that_are_trusted(model: Path) -> None:
    signer, *trusted = (Ed25519PrivateKey.generate().public_key() for _ in range(3))
    sign_folder(model, private := Ed25519PrivateKey.generate())
    names = ", ".join(sorted(key_id(key) for key in (signer, *trusted)))
    expected = f"key {key_id(private.public_key())}, which is not trusted here (trusted: {names})"
    with pytest.raises(SigningError, match=re.escape(expected)):
        verify_folder(model, (signer, *trusted))
    with pytest.raises(SigningError, match=r"\(trusted: none\)"):
        verify_folder(model, ())


def test_a_signature_with_anything_but_base64_in_it_is_refused(model: Path, keys: Path) -> None:
    sign_folder(model, signing_key(keys))
    document = json.loads((model / SIGNATURE_FILE).read_text())
    document["signature"] = f"{document['signature'][:8]}*{document['signature'][8:]}"
    (model / SIGNATURE_FILE).write_text(json.dumps(document))
    with pytest.raises(SigningError, match="does not match key"):
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


@pytest.mark.parametrize("name", ["model.json", "trees/300.txt", "a/b/c.d", "_x+1-2", "x" * 128])
def test_paths_of_plain_names_are_paths_of_a_model(name: str) -> None:
    assert is_model_path(name)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", "a b", "a/.b", "a\\b", "x" * 129])
def test_other_paths_are_not(name: str) -> None:
    assert not is_model_path(name)


def test_folders_may_be_nested_four_deep_and_no_deeper(model: Path) -> None:
    deep = model / "1" / "2" / "3" / "4"
    deep.mkdir(parents=True)
    (deep / "leaf.txt").write_text("x")
    assert folder_digest(model)
    (deep / "5").mkdir()
    with pytest.raises(SigningError, match="1/2/3/4/5/: folders nested deeper than 4"):
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


@pytest.mark.parametrize("names", [("a.txt", "A.txt"), ("trees/q.txt", "trees/Q.TXT"), ("Trees/9.txt", "trees/9.txt")])
def test_names_that_differ_in_case_only_are_refused(model: Path, names: tuple[str, str]) -> None:
    for name in names:
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(name)
    with pytest.raises(SigningError, match="differ only in case"):
        folder_digest(model)


def test_a_signature_may_have_4096_bytes_and_no_more(model: Path, keys: Path) -> None:
    sign_folder(model, signing_key(keys))
    path = model / SIGNATURE_FILE
    path.write_text(path.read_text().ljust(4096))
    assert verify_folder(model, public_keys(keys)) == folder_digest(model)
    path.write_text(path.read_text() + " ")
    with pytest.raises(SigningError, match="too long"):
        verify_folder(model, public_keys(keys))


def test_an_empty_folder_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(SigningError, match="no files"):
        folder_digest(tmp_path)


@hypothesis_settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
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
