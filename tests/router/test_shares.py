"""Keys share the processor, not models: what each process is given, and how it is set."""

import os
import resource
import signal
import threading
from pathlib import Path

import httpx
import pytest

from lanewise.router import shares
from lanewise.router.shares import Shares, niceness
from processes import command_line
from serving import wait_for
from toy_router import toy_router

MIB = 1 << 20


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {}),
        ({1: [7]}, {1: 0}),
        ({1: [7], 2: []}, {1: 0}),
        ({1: [7], 2: [8]}, {1: 0, 2: 0}),
        ({1: [7], 2: [7], 3: [7], 4: [8]}, {1: 5, 2: 5, 3: 5, 4: 0}),  # 1.25 ** 5 is 3.05
        ({1: [7], 2: [7]}, {1: 0, 2: 0}),  # nobody to give way to
        ({1: [7, 8], 2: [8]}, {1: 0, 2: 5}),  # one and a half, and a half
        ({1: range(200), 2: [0]}, {1: 0, 2: 19}),
    ],
)
def test_a_key_has_one_share_whatever_models_it_keeps_busy(keys, expected):
    assert niceness(keys) == expected


def tree(tmp_path, *, enabled="1", cgroup="4:memory:/x\n1:cpu:/\n0::/\n", capabilities="0"):
    kernel = tmp_path / "proc/sys/kernel"
    kernel.mkdir(parents=True)
    (kernel / "sched_autogroup_enabled").write_text(f"{enabled}\n")
    own = tmp_path / "proc/self"
    own.mkdir()
    (own / "cgroup").write_text(cgroup)
    (own / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    for pid in (11, 12):
        (tmp_path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/autogroup").write_text("/autogroup-1 nice 0\n")
    return tmp_path


def test_sessions_get_their_shares_and_give_them_back(tmp_path):
    root = tree(tmp_path)
    own = Shares(root)

    def told():
        return [(root / f"proc/{pid}/autogroup").read_text() for pid in (11, 12)]

    assert own.is_possible
    own.set({11: [1, 2], 12: [2]})
    assert told() == ["/autogroup-1 nice 0\n", "5"]
    own.set({11: [], 12: [2]})
    assert told() == ["/autogroup-1 nice 0\n", "0"]
    (root / "proc/12/autogroup").unlink()
    (root / "proc/12/autogroup").mkdir()  # cannot be written
    own.set({11: [1, 2], 12: [2]})
    (root / "proc/12/autogroup").rmdir()
    own.set({11: [1, 2], 12: [2]})  # is tried again
    assert (root / "proc/12/autogroup").read_text() == "5"


@pytest.mark.parametrize(
    ("more", "limit", "possible"),
    [
        ({}, 0, True),
        ({"enabled": "0"}, 0, False),
        ({"cgroup": "0::/system.slice/lanewise.service\n"}, 0, False),
        ({"cgroup": "2:cpu,cpuacct:/docker/1\n"}, 0, False),
        ({"enabled": "0"}, 20, True),
        ({"enabled": "0", "capabilities": "800000"}, 0, True),
    ],
)
def test_what_could_not_be_taken_back_is_not_set(tmp_path, monkeypatch, more, limit, possible):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert Shares(tree(tmp_path, **more)).is_possible is possible


def test_threads_are_set_where_sessions_have_no_share(tmp_path, monkeypatch):
    root = tree(tmp_path, enabled="0", capabilities="800000")
    calls = []
    monkeypatch.setattr(os, "setpriority", lambda *given: calls.append(given))
    own = shares.Shares(root)
    for _ in range(2):
        own.set({11: [1, 2], 12: [2]})
    assert calls == [(os.PRIO_PROCESS, 12, 5)]


@pytest.mark.skipif(not Shares()._by_group, reason="[machine] no sessions that share time")
def test_a_key_that_keeps_two_models_busy_has_no_more_than_one_that_keeps_one(tmp_path):
    models = [{"name": n, "model": f"{n}.gguf", "memory": 100 * MIB} for n in "abc"]
    catalogue = {"models": models, "memory": 400 * MIB}
    with toy_router(tmp_path, catalogue, api_key=["one", "two"]) as router:

        def ask(name, key):
            body = {"model": name, "prompt": "a", "max_tokens": 4}
            headers = {"authorization": f"Bearer {key}"}
            return httpx.post(
                f"{router.url}/v1/completions", json=body, headers=headers, timeout=60
            )

        pids = []
        for number, name in enumerate("abc", 1):
            assert ask(name, "one").status_code == 200
            of = f"/{number}.sock"
            pids += [pid for pid in router.children() if of in " ".join(command_line(pid))]

        def told():
            return [Path(f"/proc/{pid}/autogroup").read_text().split()[-1] for pid in pids]

        assert told() == ["0", "0", "0"]
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)  # it computes no further step
        keys = [("a", "one"), ("b", "one"), ("c", "two")]
        asking = [threading.Thread(target=ask, args=one) for one in keys]
        for one in asking:
            one.start()
        wait_for(lambda: told() == ["3", "3", "0"], "half a share for each of two models")
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        for one in asking:
            one.join()
        wait_for(lambda: told() == ["0", "0", "0"], "a whole share for idle ones")
