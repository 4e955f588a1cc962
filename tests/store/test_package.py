"""Stores as archives: what is exported is imported elsewhere, and nothing else is."""

import io
import tarfile

import pytest

from lanewise.store import package
from lanewise.store.block_files import ABOUT, BlockFiles, StoreError, files_of

SIZE = 4096
KEYS = [bytes([number]) * 16 for number in range(20)]


def opened(root) -> BlockFiles:
    return BlockFiles(root, b"model", most_bytes=1 << 20, about={"model": "one"})


@pytest.fixture
def archive(tmp_path):
    files = opened(tmp_path / "one")
    for number, key in enumerate(KEYS):
        files.write(key, bytearray([number]) * SIZE)
    assert package.export(tmp_path / "one", tmp_path / "archive") == len(KEYS)
    return tmp_path / "archive"


def test_what_is_exported_is_there_after_an_import(archive, tmp_path):
    assert package.take_in(tmp_path / "other", archive) == (len(KEYS), 0)
    other = opened(tmp_path / "other")
    for number, key in enumerate(KEYS):
        into = bytearray(SIZE)
        assert other.read(key, into)
        assert into == bytes([number]) * SIZE
    assert {file.path.stat().st_mode & 0o777 for file in files_of(other.root)} == {0o600}
    assert [path.parent.name for path in other.root.glob(f"*/{ABOUT}")] == [other.folder.name]
    assert package.take_in(tmp_path / "other", archive) == (0, 0)


def test_the_same_files_make_the_same_bytes(archive, tmp_path):
    package.take_in(tmp_path / "other", archive)
    package.export(tmp_path / "other", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == archive.read_bytes()


def test_files_that_are_not_whole_are_not_exported(tmp_path, archive):
    spoiled = next(files_of(tmp_path / "one")).path
    spoiled.write_bytes(spoiled.read_bytes()[:-1])
    assert package.export(tmp_path / "one", archive) == len(KEYS) - 1


def test_only_blocks_are_imported(archive, tmp_path):
    """No name leads out of the directory, no link is followed, no foreign file is put there."""
    with tarfile.open(archive) as tar:
        name = next(one for one in tar.getnames() if one.endswith(".kv"))
        data = tar.extractfile(name).read()
    folder = "0" * 32
    entries = {
        "../outside.kv": data,
        "/tmp/outside.kv": data,
        f"{folder}/ab/cd{'0' * 38}.kv": data,  # in another folder than its name says
        f"{folder}/ab/ab{'0' * 38}.txt": data,
        f"{folder}/ab/ab{'0' * 38}.kv": data[:-1],
        f"{folder}/ab/ab{'1' * 38}.kv": b"lanewise",
        f"{folder}/{ABOUT}": bytes(package.MOST_ABOUT + 1),
    }
    with tarfile.open(tmp_path / "bad", "w") as tar:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            entry = tarfile.TarInfo(f"{folder}/ab/ab{'2' * 38}.kv")
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
    assert package.take_in(tmp_path / "other", tmp_path / "bad") == (0, len(entries) + 3)
    assert not [path for path in tmp_path.glob("other/**/*") if path.is_file()]


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_files_that_are_no_archive_are_named(tmp_path, content):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(StoreError, match=r"import_file: .*file: "):
        package.take_in(tmp_path / "other", tmp_path / "file")


def test_a_cut_archive_is_told_and_leaves_whole_files(archive, tmp_path):
    archive.write_bytes(archive.read_bytes()[: 10 * SIZE + 1000])
    with pytest.raises(StoreError, match="import_file"):
        package.take_in(tmp_path / "other", archive)
    other = opened(tmp_path / "other")
    there = [key for key in KEYS if other.has(key)]
    assert 0 < len(there) < len(KEYS)
    assert all(other.read(key, bytearray(SIZE)) for key in there)


def test_an_export_that_cannot_be_written_is_told(archive, tmp_path):
    with pytest.raises(StoreError, match=r"export_file: .*nowhere"):
        package.export(tmp_path / "one", tmp_path / "nowhere" / "archive")
