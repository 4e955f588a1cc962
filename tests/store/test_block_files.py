"""Files of KV blocks: what was written is read, anything else is a miss."""

import os
import random
import shutil
import subprocess
import sys
import time

import pytest

import topics
from lanewise.store import block_files
from lanewise.store.block_files import (
    HALF,
    HALF_S,
    BlockFiles,
    StoreError,
    files_of,
    is_whole,
    trim,
)
from lanewise.store.sealing import AesSeal

SIZE = 4096
KEYS = [bytes([number]) * 16 for number in range(20)]


def opened(root, fingerprint=b"model", most_bytes=1 << 20, **more) -> BlockFiles:
    return BlockFiles(root, fingerprint, most_bytes=most_bytes, **more)


def block(number: int) -> bytearray:
    return bytearray(random.Random(number).randbytes(SIZE))


def read(files: BlockFiles, key: bytes) -> bytearray | None:
    into = bytearray(SIZE)
    return into if files.read(key, into) else None


def test_what_was_written_is_read_by_another_process_too(tmp_path):
    first = opened(tmp_path)
    assert not first.has(KEYS[0])
    for number, key in enumerate(KEYS):
        first.write(key, block(number))
    second = opened(tmp_path)
    for files in (first, second):
        assert all(files.has(key) for key in KEYS)
        assert all(read(files, key) == block(number) for number, key in enumerate(KEYS))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.kv")} == {0o600}


def sealed(root, secret=b"a secret of the operator", **more) -> BlockFiles:
    return opened(root, secret=secret, seal=AesSeal(secret), **more)


def test_with_a_seal_no_file_has_a_block_in_it(tmp_path):
    first = sealed(tmp_path)
    for number, key in enumerate(KEYS):
        first.write(key, block(number))
    again = sealed(tmp_path)
    assert all(read(again, key) == block(number) for number, key in enumerate(KEYS))
    contents = [file.path.read_bytes() for file in files_of(tmp_path)]
    assert len({*contents}) == len(KEYS)
    for number in range(len(KEYS)):
        part = bytes(block(number)[100:132])
        assert not any(part in content for content in contents)
    assert all(is_whole(file.path) for file in files_of(tmp_path))
    first.write(KEYS[0], block(0))  # the same block again is not the same file
    assert sum(file.path.read_bytes() in contents for file in files_of(tmp_path)) == len(KEYS) - 1


def test_sealed_and_open_files_are_misses_to_each_other(tmp_path):
    secret = b"a secret of the operator"
    sealed(tmp_path).write(KEYS[0], block(0))
    opened(tmp_path, secret=secret).write(KEYS[1], block(1))
    assert read(opened(tmp_path, secret=secret), KEYS[0]) is None
    assert read(sealed(tmp_path), KEYS[1]) is None


def test_changed_bits_of_sealed_files_are_misses(tmp_path):
    rng = random.Random(3)
    for _ in range(topics.cases(200, 4_000)):
        files = sealed(tmp_path)
        files.write(KEYS[0], block(0))
        [file] = files_of(tmp_path)
        content = bytearray(file.path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.path.write_bytes(content)
        assert read(files, KEYS[0]) is None
        assert not file.path.exists()


def test_what_another_process_writes_is_seen_after_a_look(tmp_path):
    one, other = opened(tmp_path), opened(tmp_path)
    one.write(KEYS[0], block(0))
    assert not other.has(KEYS[0])
    other.look()
    assert other.has(KEYS[0])


@pytest.mark.parametrize("more", [{"fingerprint": b"other"}, {"secret": b"s" * 16}])
def test_blocks_of_another_model_or_secret_are_not_there(tmp_path, more):
    opened(tmp_path).write(KEYS[0], block(0))
    other = opened(tmp_path, **more)
    assert not other.has(KEYS[0])
    assert read(other, KEYS[0]) is None


def test_a_file_that_was_made_without_the_secret_is_no_block(tmp_path):
    secret = opened(tmp_path / "ours", secret=b"s" * 16)
    secret.write(KEYS[0], block(0))
    plain = opened(tmp_path / "theirs")
    plain.write(KEYS[0], block(1))
    (ours,), (theirs,) = files_of(secret.root), files_of(plain.root)
    ours.path.write_bytes(theirs.path.read_bytes())
    assert read(secret, KEYS[0]) is None


def test_any_changed_byte_and_any_cut_make_a_file_a_miss_that_is_removed(tmp_path):
    files, draw = opened(tmp_path), random.Random(1)
    for turn in range(topics.cases(500, 10_000)):
        files.write(KEYS[0], block(0))
        ((path,),) = [[file.path for file in files_of(tmp_path)]]
        data = bytearray(path.read_bytes())
        match turn % 3:
            case 0:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            case 1:
                del data[draw.randrange(len(data)) :]
            case _:
                data += draw.randbytes(1 + draw.randrange(9))
        path.write_bytes(data)
        assert read(files, KEYS[0]) is None
        assert not files.has(KEYS[0])
        assert not path.exists()


def test_a_block_under_the_name_of_another_is_a_miss(tmp_path):
    files = opened(tmp_path)
    files.write(KEYS[0], block(0))
    ((first,),) = [[file.path for file in files_of(tmp_path)]]
    files.write(KEYS[1], block(1))
    (second,) = [file.path for file in files_of(tmp_path) if file.path != first]
    second.write_bytes(first.read_bytes())
    assert read(files, KEYS[0]) == block(0)
    assert read(files, KEYS[1]) is None


def test_what_was_used_longest_ago_goes_first(tmp_path):
    files = opened(tmp_path, most_bytes=10 * (SIZE + 100))
    for number, key in enumerate(KEYS[:9]):
        files.write(key, block(number))
        for file in files_of(tmp_path):
            if file.path.stem == files.name_of(key):
                os.utime(file.path, (number, number))
    assert read(files, KEYS[0]) == block(0)  # now it was used last
    files.write(KEYS[9], block(9))
    files.write(KEYS[10], block(10))
    assert files.has(KEYS[0])
    assert not files.has(KEYS[1])
    assert files.has(KEYS[10])
    assert sum(file.n_bytes for file in files_of(tmp_path)) <= 10 * (SIZE + 100)
    assert files.held_bytes == sum(file.n_bytes for file in files_of(tmp_path))


def test_trimming_to_nothing_leaves_nothing(tmp_path):
    files = opened(tmp_path)
    for number, key in enumerate(KEYS):
        files.write(key, block(number))
    assert trim(tmp_path, 0) == (0, len(KEYS))
    assert list(files_of(tmp_path)) == []
    assert read(files, KEYS[3]) is None


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"kv_store is .*file: Not a directory"):
        opened(tmp_path / "file")


# Writes the same blocks again and again, and says when it begins.
WRITER = """
import sys
from pathlib import Path
from lanewise.store.block_files import BlockFiles
files = BlockFiles(Path(sys.argv[1]), b"model", most_bytes=1 << 40)
print("begins", flush=True)
while True:
    for number in range(4):
        files.write(bytes([number]) * 16, bytearray([number]) * (1 << 20))
"""


def test_a_writer_that_is_killed_leaves_whole_blocks_or_none(tmp_path):
    draw = random.Random(2)
    for _ in range(100 if topics.THOROUGH else 5):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            time.sleep(draw.random() * 0.02)
            process.kill()
        files = BlockFiles(tmp_path, b"model", most_bytes=1 << 40)
        for number in range(4):
            key, into = bytes([number]) * 16, bytearray(1 << 20)
            assert files.read(key, into) == files.has(key)
            assert not files.has(key) or into == bytes([number]) * (1 << 20)


def test_what_killed_writers_left_goes_at_the_next_opening(tmp_path):
    files = opened(tmp_path)
    files.write(KEYS[0], block(0))
    ((path,),) = [[file.path for file in files_of(tmp_path)]]
    old, new = path.with_name(f"old.1.1{HALF}"), path.with_name(f"new.1.1{HALF}")
    for half in (old, new):
        half.write_bytes(b"some")
    long_ago = time.time() - 2 * HALF_S
    os.utime(old, (long_ago, long_ago))
    opened(tmp_path)
    assert not old.exists()
    assert new.exists()
    assert path.exists()


def test_two_writers_of_one_block_never_show_half_of_it(tmp_path):
    files, seen = opened(tmp_path), 0
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "begins\n"
        while seen < 200:
            number = seen % 4
            key, into = bytes([number]) * 16, bytearray(1 << 20)
            path = files._path(files.name_of(key))
            if path.exists():
                assert files.read(key, into)
                assert into == bytes([number]) * (1 << 20)
                seen += 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
def test_a_clock_that_jumps_changes_only_what_goes_first(tmp_path, monkeypatch, jump_s):
    now = time.time()
    files = opened(tmp_path, most_bytes=10 * (SIZE + 100))
    files.write(KEYS[0], block(0))
    (half,) = [file.path.with_name(f"other.1.1{HALF}") for file in files_of(tmp_path)]
    half.write_bytes(b"some")
    monkeypatch.setattr(time, "time", lambda: now + jump_s)
    again = opened(tmp_path, most_bytes=10 * (SIZE + 100))
    assert half.exists() == (jump_s < 0)
    for file in files_of(tmp_path):
        os.utime(file.path, (now + jump_s, now + jump_s))
    for number, key in enumerate(KEYS):
        again.write(key, block(number))
        assert read(again, key) == block(number)
    assert sum(file.n_bytes for file in files_of(tmp_path)) <= 10 * (SIZE + 100)


def test_a_file_that_a_sweep_has_taken_from_its_writer_is_not_written(tmp_path, monkeypatch):
    """A clock that jumps makes another server take a file for one of a killed writer."""
    files = opened(tmp_path)
    replaced = type(tmp_path).replace

    def swept(path, target):
        path.unlink()
        return replaced(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(type(tmp_path), "replace", swept)
        with pytest.raises(FileNotFoundError):
            files.write(KEYS[0], block(0))
    assert not files.has(KEYS[0])
    files.write(KEYS[0], block(0))
    assert read(files, KEYS[0]) == block(0)


def test_a_block_of_another_version_is_a_miss(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(block_files, "VERSION", block_files.VERSION + 1)
        opened(tmp_path).write(KEYS[0], block(0))
    files = opened(tmp_path)
    assert [is_whole(file.path) for file in files_of(tmp_path)] == [False]
    assert read(files, KEYS[0]) is None
    assert not list(files_of(tmp_path))


def test_a_directory_that_is_removed_is_made_again(tmp_path):
    files = opened(tmp_path / "store")
    files.write(KEYS[0], block(0))
    shutil.rmtree(tmp_path / "store")
    assert read(files, KEYS[0]) is None
    files.write(KEYS[1], block(1))
    assert read(files, KEYS[1]) == block(1)
