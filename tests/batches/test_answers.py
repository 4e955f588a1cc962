"""Files of answers: whole lines or none, whatever happened to the process or the disk."""

import asyncio
import errno
import json
import os
from contextlib import asynccontextmanager

import pytest

from lanewise.batches import work as work_module
from lanewise.batches.answers import BEGINNING, Answers, NotAnswersError
from lanewise.batches.forms import ANTHROPIC, OPENAI, Reply
from lanewise.batches.lines import Limits
from lanewise.batches.work import Paths, Work
from lanewise.records.files import DiskFullError

REPLY = Reply(200, b'{"a":\n1}', "r")
LINES = [OPENAI.replied(f"n{i}", REPLY) for i in range(5)]


def ids_in(path, **options):
    found = []
    answers = Answers(path, lambda said: found.append(said["custom_id"]), **options)
    answers.close()
    return found


@pytest.mark.parametrize("cut", range(1, len(LINES[-1]) + 1, 7))
def test_a_torn_end_is_cut_off(tmp_path, cut):
    path = tmp_path / "answers"
    path.write_bytes(b"".join(LINES)[:-cut])
    assert ids_in(path) == ["n0", "n1", "n2", "n3"]
    assert path.read_bytes() == b"".join(LINES[:4])


@pytest.mark.parametrize(
    "rest", [bytes(5000), b'{"custom_id":7}\n', b"[]\n", b'{"a":1}\n' + LINES[4]]
)
def test_what_is_no_answer_ends_the_file(tmp_path, rest):
    """As after a loss of power, where a file may be longer than what was written of it."""
    path = tmp_path / "answers"
    path.write_bytes(b"".join(LINES[:2]) + rest)
    assert ids_in(path) == ["n0", "n1"]
    assert path.read_bytes() == b"".join(LINES[:2])


@pytest.mark.parametrize("rest", [b'{"a":1}\n', b'{"a":1}', b"text"])
def test_a_file_of_somebody_else_is_left_alone(tmp_path, rest):
    path = tmp_path / "answers"
    path.write_bytes(rest)
    with pytest.raises(NotAnswersError, match="something else"):
        ids_in(path, may_be_foreign=True)
    assert path.read_bytes() == rest
    path.write_bytes(LINES[0] + BEGINNING[:9])
    assert ids_in(path, may_be_foreign=True) == ["n0"]


def test_two_writers_are_one_too_many(tmp_path):
    first = Answers(tmp_path / "answers", lambda said: None)
    with pytest.raises(NotAnswersError, match="another process"):
        Answers(tmp_path / "answers", lambda said: None)
    first.close()
    assert ids_in(tmp_path / "answers") == []


def test_a_line_is_one_line(tmp_path):
    for form in (OPENAI, ANTHROPIC):
        for line in (form.replied("a\n", REPLY), form.unanswered("a\n", "expired")):
            assert line.count(b"\n") == 1
            assert json.loads(line)["custom_id"] == "a\n"
            assert form.is_unanswered(json.loads(line)) == (b"expired" in line)


class Disk:
    """Writes to files until it is full, and then a part of what it is given."""

    def __init__(self, monkeypatch, room):
        self.room, self._write = room, os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, number, data, place):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(data))
        self.room -= taken
        return self._write(number, data[:taken], place)


def test_a_full_disk_keeps_whole_lines_only(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, len(LINES[0]) + 10)
    answers = Answers(tmp_path / "answers", lambda said: None)
    answers.append(LINES[:1])
    with pytest.raises(DiskFullError):
        answers.append(LINES[1:])
    assert answers.path.read_bytes() == LINES[0]
    disk.room = 1 << 20
    answers.append(LINES[1:])
    answers.close()
    assert answers.path.read_bytes() == b"".join(LINES)


@asynccontextmanager
async def anytime():
    yield


def test_answers_wait_while_the_disk_is_full_and_are_not_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(work_module, "FIRST_PAUSE_S", 0.01)
    disk = Disk(monkeypatch, 100)
    lines = [{"custom_id": f"{i}", "url": "/a", "body": {}} for i in range(30)]
    paths = Paths(tmp_path / "in", tmp_path / "out", tmp_path / "errors")
    paths.requests.write_text("\n".join(map(json.dumps, lines)))
    work = Work(paths, OPENAI, Limits(["/a"], 1000))
    work.open()
    asked = []

    async def ask(path, line):
        asked.append(json.loads(line)["custom_id"])
        return Reply(200 if len(asked) % 3 else 400, b"{}", "r")

    async def main():
        running = asyncio.create_task(work.run(ask, anytime, 4))
        await asyncio.sleep(0.2)
        assert len(asked) <= 8  # what is not written bounds what is asked
        assert work.counts.left == 30
        disk.room = 1 << 20
        await running

    asyncio.run(main())
    work.close()
    assert sorted(asked, key=int) == [f"{i}" for i in range(30)]
    assert (work.counts.completed, work.counts.failed) == (20, 10)
    assert sorted(ids_in(paths.answers) + ids_in(paths.errors), key=int) == [
        f"{i}" for i in range(30)
    ]


def test_a_work_that_is_stopped_has_written_what_it_was_told(tmp_path):
    lines = [{"custom_id": f"{i}", "url": "/a", "body": {}} for i in range(200)]
    paths = Paths(tmp_path / "in", tmp_path / "out")
    paths.requests.write_text("\n".join(map(json.dumps, lines)))

    async def ask(path, line):
        await asyncio.sleep(0.001)
        return Reply(200, b"{}", "r")

    async def some():
        running = asyncio.create_task(work.run(ask, anytime, 4))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait({running})
        await work.settle()

    seen = 0
    while seen < 200:
        work = Work(paths, OPENAI, Limits(["/a"], 1000))
        work.open()
        assert work.counts.completed == seen
        asyncio.run(some())
        work.close()
        assert work.counts.completed > seen
        seen = work.counts.completed
    assert sorted(ids_in(paths.answers), key=int) == [f"{i}" for i in range(200)]
