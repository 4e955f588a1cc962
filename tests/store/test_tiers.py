"""A directory in front of a bucket of an S3 server: what one server wrote, another one reads."""

import random
import time

import pytest

from lanewise.store import tiers
from lanewise.store.block_files import BlockFiles, StoreError, files_of
from lanewise.store.bucket import MOST_FAILURES, Bucket
from lanewise.store.tiers import TieredFiles
from s3_server import BUCKET, s3_server

SIZE = 4096
KEYS = [bytes([number]) * 16 for number in range(50)]


@pytest.fixture
def s3(monkeypatch):
    with s3_server(delay_s=0.01) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def opened(tmp_path):
    """Opens stores with directories of their own and the same bucket, and closes them."""
    found = []

    def run(name="one", **more):
        near = BlockFiles(tmp_path / name, b"model", most_bytes=1 << 20, **more)
        found.append(TieredFiles(near, Bucket(f"s3://{BUCKET}/some/prefix")))
        return found[-1]

    yield run
    for one in found:
        one.close()


def block(number: int) -> bytearray:
    return bytearray(random.Random(number).randbytes(SIZE))


def read(files: TieredFiles, key: bytes) -> bytearray | None:
    into = bytearray(SIZE)
    return into if files.read(key, into) else None


def wait_until(condition, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def blocks_of(s3) -> list[str]:
    return [path for path in s3.paths() if path.endswith(".kv")]


def test_what_one_server_has_written_another_one_reads(s3, opened):
    first = opened("one")
    for number, key in enumerate(KEYS):
        first.write(key, block(number))
    wait_until(lambda: len(blocks_of(s3)) == len(KEYS))
    second = opened("other")
    wait_until(lambda: all(second.has(key) for key in KEYS))
    assert not any(second.is_near(key) for key in KEYS)
    second.expect(KEYS)
    assert [read(second, key) for key in KEYS] == [block(n) for n in range(len(KEYS))]
    assert all(second.is_near(key) for key in KEYS)
    assert s3.asked["GET"] >= len(KEYS)
    counts = second.take_remote_counts()
    assert counts["read"] == len(KEYS)
    assert counts["bytes_read"] > SIZE * len(KEYS)
    n_asked = s3.asked["GET"]
    assert read(second, KEYS[0]) == block(0)  # from the directory by now
    assert s3.asked["GET"] == n_asked
    wait_until(lambda: any(path.endswith("about.json") for path in s3.paths()))


def test_what_could_not_be_sent_is_sent_after_a_later_listing(s3, opened, monkeypatch):
    monkeypatch.setattr(tiers, "LIST_S", 0.0)
    files = opened()
    wait_until(lambda: files._list_at < float("inf"))
    s3.status = 503
    files.write(KEYS[0], block(0))
    wait_until(lambda: not files._sending)
    assert files.take_remote_counts()["failed"] >= 1
    s3.status = 0
    assert blocks_of(s3) == []

    def looked():
        files.look()
        return len(blocks_of(s3)) == 1

    wait_until(looked)


@pytest.mark.parametrize("change", ["cut", "bit", "other", "gone"])
def test_an_object_that_is_spoiled_is_a_miss_and_is_written_again(s3, opened, change):
    first = opened("one")
    first.write(KEYS[0], block(0))
    first.write(KEYS[1], block(1))
    wait_until(lambda: len(blocks_of(s3)) == 2)
    second = opened("other")
    wait_until(lambda: second.has(KEYS[0]) and second.has(KEYS[1]))
    (path,) = [one for one in blocks_of(s3) if second._near.name_of(KEYS[0]) in one]
    (other,) = [one for one in blocks_of(s3) if one != path]
    data = bytearray(s3.read(path))
    if change == "cut":
        del data[-1]
    elif change == "bit":
        data[1000] ^= 1
    elif change == "other":
        data = bytearray(s3.read(other))
    if change == "gone":
        s3.delete(path)
    else:
        s3.write(path, bytes(data))
    assert read(second, KEYS[0]) is None
    assert not second.has(KEYS[0])
    assert not list(files_of(second._near.root))
    second.write(KEYS[0], block(0))
    wait_until(lambda: not second._sending)
    third = opened("third")
    wait_until(lambda: third.has(KEYS[0]))
    assert read(third, KEYS[0]) == block(0)


def test_a_bucket_that_fails_is_left_alone_for_a_while(s3, opened, caplog):
    first = opened("one")
    for number, key in enumerate(KEYS[:10]):
        first.write(key, block(number))
    wait_until(lambda: len(blocks_of(s3)) == 10)
    second = opened("other")
    wait_until(lambda: second.has(KEYS[9]) and second._is_told)
    s3.status = 403
    for key in KEYS[:MOST_FAILURES]:
        assert second.has(key)
        assert read(second, key) is None
    assert not any(map(second.has, KEYS))
    assert caplog.text.count("is left alone for 5 s") == 1
    n_asked = sum(s3.asked.values())
    assert read(second, KEYS[9]) is None
    second.write(KEYS[20], block(20))
    assert read(second, KEYS[20]) == block(20)  # the directory works on
    assert sum(s3.asked.values()) == n_asked


def test_objects_without_the_secret_are_not_used(s3, opened):
    plain = opened("one")
    plain.write(KEYS[0], block(0))
    wait_until(lambda: len(blocks_of(s3)) == 1)
    signed = opened("other", secret=b"s" * 16)
    wait_until(lambda: signed._list_at < float("inf"))
    assert not signed.has(KEYS[0])
    # Even under the name that the secret gives: it was not made with it.
    signed.write(KEYS[0], block(1))
    wait_until(lambda: len(blocks_of(s3)) == 2)
    ours, theirs = sorted(blocks_of(s3), key=lambda path: signed._near.name_of(KEYS[0]) not in path)
    s3.write(ours, s3.read(theirs))
    third = opened("third", secret=b"s" * 16)
    wait_until(lambda: third.has(KEYS[0]))
    assert read(third, KEYS[0]) is None


@pytest.mark.parametrize("url", ["prompts", "ftp://prompts/x", "s3://", "s3:/x", "file:///x"])
def test_urls_that_name_no_bucket_are_refused(url):
    with pytest.raises(StoreError, match=r"kv_store_remote is .*accepted: s3://BUCKET/PREFIX"):
        Bucket(url)
