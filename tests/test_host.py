"""Threads, memory and KV size from file trees of hosts and containers."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from lanewise.host import (
    ADDRESSES,
    GIB,
    MIB,
    HostError,
    MemoryLimit,
    MemoryUse,
    StateSizes,
    Throttling,
    choose_kv_blocks,
    cpu_name,
    cpu_quota,
    cpu_throttling,
    default_threads,
    format_size,
    has_spare_cpu,
    huge_pages,
    memory_limit,
    memory_use,
    physical_cores,
)

V2_MOUNT = "30 23 0:26 {inside} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup rw,nsdelegate\n"
V1_MOUNT = "32 31 0:29 {inside} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"


def v2(tree, group, files, inside="/"):
    base = {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": V2_MOUNT.format(inside=inside),
    }
    return tree(base | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def cores(*siblings):
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{text}\n"
        for cpu, text in enumerate(siblings)
    }


def test_quota_is_the_minimum_over_all_ancestors(tree):
    root = v2(
        tree,
        "/pods/pod1/web",
        {
            "pods/cpu.max": "max 100000\n",
            "pods/pod1/cpu.max": "250000 100000\n",
            "pods/pod1/web/cpu.max": "400000 100000\n",
        },
    )
    assert cpu_quota(root) == 2.5


def test_quota_max_is_no_quota(tree):
    assert cpu_quota(v2(tree, "/a", {"a/cpu.max": "max 100000\n"})) is None


def test_quota_of_a_container_whose_mount_shows_only_its_own_group(tree):
    root = v2(tree, "/docker/abc", {"cpu.max": "150000 100000\n"}, inside="/docker/abc")
    assert cpu_quota(root) == 1.5


def test_quota_of_a_group_that_the_mount_does_not_show(tree):
    assert cpu_quota(v2(tree, "/elsewhere", {"cpu.max": "50000 100000\n"})) == 0.5


def test_quota_of_a_group_above_the_namespace(tree):
    assert cpu_quota(v2(tree, "/../../other", {"cpu.max": "50000 100000\n"})) == 0.5


def test_quota_of_version_1(tree):
    root = tree(
        {
            "proc/self/cgroup": "3:cpuset:/\n1:cpuacct,cpu:/docker/abc\n0::/\n",
            "proc/self/mountinfo": V1_MOUNT.format(inside="/", name="cpu"),
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert cpu_quota(root) == 1.5


def test_no_control_groups_at_all(tree):
    assert cpu_quota(tree({})) is None
    assert cpu_throttling(tree({})) == Throttling(0, 0, 0.0)
    assert memory_use(tree({})) == MemoryUse(0, 0)


def test_throttling_by_a_group_above_counts_too(tree):
    stat = "usage_usec 5\nnr_periods {}\nnr_throttled {}\nthrottled_usec {}\n"
    root = v2(
        tree,
        "/pod/web",
        {"pod/cpu.stat": stat.format(300, 30, 2_500_000), "pod/web/cpu.stat": stat.format(0, 0, 0)},
    )
    throttling = cpu_throttling(root)
    assert throttling == Throttling(300, 30, 2.5)
    assert (throttling.share, throttling.is_much) == (0.1, True)
    assert not throttling.since(Throttling(200, 29, 2.0)).is_much


def test_throttling_of_version_1(tree):
    root = tree(
        {
            "proc/self/cgroup": "1:cpuacct,cpu:/docker/abc\n",
            "proc/self/mountinfo": V1_MOUNT.format(inside="/docker/abc", name="cpu"),
            "sys/fs/cgroup/cpu/cpu.stat": "nr_periods 8\nnr_throttled 2\n"
            "throttled_time 1500000000\n",
        }
    )
    assert cpu_throttling(root) == Throttling(8, 2, 1.5)


@pytest.mark.parametrize(
    ("quota", "siblings", "affinity", "threads", "reason"),
    [
        ("max 100000", ["0-1", "0-1", "2-3", "2-3"], range(4), 2, "2 physical cores (affinity"),
        ("max 100000", ["0-1", "0-1", "2-3", "2-3"], [0, 1], 1, "1 physical core (affinity"),
        ("max 100000", ["0", "1", "2", "3"], [2], 1, "affinity mask of 1 CPU ("),
        ("350000 100000", ["0", "1", "2", "3"], range(4), 3, "CPU quota of 3.5 CPUs ("),
        ("20000 100000", ["0", "1"], range(2), 1, "CPU quota of 0.2 CPUs ("),
        (
            "max 100000",
            [],
            range(4),
            4,
            "affinity mask of 4 CPUs (no CPU quota, physical cores unk",
        ),
    ],
)
def test_threads_are_the_smallest_of_quota_affinity_and_cores(
    tree, quota, siblings, affinity, threads, reason
):
    v2(tree, "/", {"cpu.max": quota})
    choice = default_threads(tree(cores(*siblings)), affinity=affinity)
    assert choice.threads == threads
    assert choice.reason.startswith(reason)


@pytest.mark.parametrize(
    ("quota", "affinity", "threads", "spare"),
    [
        ("max 100000", range(4), 3, True),
        ("max 100000", range(4), 4, False),
        ("max 100000", range(4), 5, False),
        ("300000 100000", range(4), 2, True),
        ("250000 100000", range(4), 2, False),
        ("600000 100000", range(2), 2, False),
    ],
)
def test_a_spare_cpu_is_one_that_quota_and_affinity_have(tree, quota, affinity, threads, spare):
    root = v2(tree, "/", {"cpu.max": quota})
    assert has_spare_cpu(threads, root, affinity) is spare


def test_cores_are_told_apart_by_their_siblings(tree):
    root = tree(cores("0,2", "1,3", "0,2", "1,3"))
    assert physical_cores({0, 2}, root) == 1
    assert physical_cores({0, 1}, root) == 2
    assert physical_cores({9}, root) is None


def test_memory_is_the_smallest_limit_of_all_ancestors_and_the_host(tree):
    root = v2(
        tree,
        "/a/b",
        {"a/memory.max": str(3 * GIB), "a/b/memory.max": "max", "a/b/memory.high": str(4 * GIB)},
    )
    tree({"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n"})
    limit = memory_limit(root)
    assert (limit.n_bytes, limit.dedicated) == (3 * GIB, True)
    assert limit.reason.endswith("sys/fs/cgroup/a/memory.max")


def test_memory_of_version_1_ignores_its_huge_number_for_no_limit(tree):
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/x\n",
            "proc/self/mountinfo": V1_MOUNT.format(inside="/", name="memory"),
            "proc/meminfo": f"MemAvailable: {2 * GIB // 1024} kB\n",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n",
        }
    )
    assert memory_limit(root) == MemoryLimit(2 * GIB, "memory available on this host", False)
    tree({"sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB)})
    assert memory_limit(root).n_bytes == GIB


def test_the_address_space_that_is_left_is_a_limit_of_memory(tree):
    line = "Max address space         {:<20} unlimited            bytes     \n"
    root = tree(
        {
            "proc/meminfo": f"MemAvailable: {2 * GIB // 1024} kB\n",
            "proc/self/limits": line.format("unlimited"),
            "proc/self/statm": f"{GIB // os.sysconf('SC_PAGE_SIZE')} 5 5 5 5 5 5\n",
        }
    )
    assert memory_limit(root).n_bytes == 2 * GIB
    tree({"proc/self/limits": line.format(3 * GIB)})
    left = MemoryLimit(2 * GIB - ADDRESSES, memory_limit(root).reason, True)
    assert memory_limit(root) == left
    assert "ulimit -v" in left.reason
    tree({"proc/self/limits": line.format(GIB)})
    assert memory_limit(root).n_bytes == 0


def test_memory_in_use_is_that_of_the_group_with_the_limit(tree):
    root = v2(
        tree,
        "/a/b",
        {
            "a/memory.max": str(3 * GIB),
            "a/memory.current": str(2 * GIB),
            "a/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
            "a/b/memory.max": "max",
            "a/b/memory.current": str(GIB),
        },
    )
    tree({"proc/meminfo": f"MemTotal: {9 * GIB // 1024} kB\nMemAvailable: {GIB // 1024} kB\n"})
    assert memory_use(root) == MemoryUse(3 * GIB // 2, 3 * GIB)
    tree({"sys/fs/cgroup/a/memory.max": "max"})
    assert memory_use(root) == MemoryUse(8 * GIB, 9 * GIB)


def test_memory_in_use_of_version_1(tree):
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/x\n",
            "proc/self/mountinfo": V1_MOUNT.format(inside="/", name="memory"),
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/x/memory.stat": "inactive_file 7\n"
            f"total_inactive_file {GIB // 4}\n",
        }
    )
    assert memory_use(root) == MemoryUse(3 * GIB // 4, 2 * GIB)


def test_memory_that_nobody_tells_is_an_error(tree):
    with pytest.raises(HostError, match="no MemAvailable"):
        memory_limit(tree({}))


def kv(limit=MemoryLimit(8 * GIB, "test", True), **changes):  # noqa: B008 - frozen
    arguments = {
        "kv_memory": None,
        "limit": limit,
        "packed_bytes": GIB,
        "block_bytes": MIB,
        "max_seqs": 10**6,
        "max_model_len": 4096,
        "sequence_blocks": 128,
    }
    return choose_kv_blocks(**(arguments | changes))


def test_kv_takes_a_share_of_what_the_model_leaves():
    margin = 8 * GIB // 20
    assert kv().n_bytes == int(0.8 * (7 * GIB - margin)) // MIB * MIB
    shared = MemoryLimit(8 * GIB, "test", False)
    assert kv(limit=shared).n_bytes == int(0.5 * (7 * GIB - margin)) // MIB * MIB


def test_kv_is_no_more_than_all_sequences_can_use():
    choice = kv(max_seqs=2, max_model_len=33, sequence_blocks=2)
    assert choice.blocks == 4
    assert choice.reason == "all that 2 sequences of 33 tokens can use"


def test_kv_memory_asked_for_is_taken_as_it_is():
    assert kv(kv_memory=5 * MIB + 1, max_seqs=1, max_model_len=32, sequence_blocks=1).blocks == 5


@pytest.mark.parametrize("changes", [{"kv_memory": MIB - 1}, {"packed_bytes": 9 * GIB}])
def test_no_room_for_one_block_is_an_error(changes):
    with pytest.raises(HostError, match=r"kv_memory: .* accepted: at least one block of 1\.00 MiB"):
        kv(**changes)


def test_states_and_snapshots_are_part_of_the_kv_memory():
    states = StateSizes(n_bytes=2 * MIB, snapshot_blocks=32)
    choice = kv(kv_memory=400 * MIB, max_seqs=16, states=states)
    # 32 MiB of sequences; then each 32 blocks have a snapshot of 2 MiB.
    assert choice.blocks == 32 * 368 // 34
    assert choice.n_snapshots == (368 - choice.blocks) // 2
    assert choice.state_bytes == (16 + choice.n_snapshots) * 2 * MIB
    asked = replace(states, snapshot_memory=101 * MIB)
    choice = kv(kv_memory=400 * MIB, max_seqs=16, states=asked)
    assert (choice.blocks, choice.n_snapshots) == (267, 50)
    choice = kv(kv_memory=400 * MIB, max_seqs=16, states=replace(states, snapshot_memory=0))
    assert (choice.blocks, choice.n_snapshots, choice.state_bytes) == (368, 0, 32 * MIB)
    none = StateSizes(snapshot_memory=100 * MIB)
    assert kv(kv_memory=400 * MIB, states=none).blocks == 400
    few = kv(max_seqs=2, max_model_len=33, sequence_blocks=2, states=states)
    assert (few.blocks, few.n_snapshots) == (4, 1)


def test_sequences_are_fewer_where_their_states_leave_too_little():
    """Half of the memory stays for keys and values; snapshots that were asked for come first."""
    states = StateSizes(n_bytes=2 * MIB, snapshot_memory=0)
    assert kv(kv_memory=400 * MIB, max_seqs=100, states=states).max_seqs == 100
    choice = kv(kv_memory=400 * MIB, max_seqs=101, states=states)
    assert (choice.max_seqs, choice.blocks, choice.state_bytes) == (100, 200, 200 * MIB)
    asked = replace(states, snapshot_memory=40 * MIB)
    choice = kv(kv_memory=400 * MIB, max_seqs=100, states=asked)
    assert (choice.max_seqs, choice.n_snapshots, choice.blocks) == (90, 20, 180)
    few = kv(kv_memory=40 * MIB, max_seqs=64, max_model_len=33, sequence_blocks=2, states=states)
    assert (few.max_seqs, few.blocks) == (10, 20)
    assert kv(max_seqs=64).max_seqs == 64


def test_no_room_for_states_is_an_error():
    states = StateSizes(n_bytes=MIB, snapshot_memory=10 * MIB)
    with pytest.raises(
        HostError, match=r"one block of 1\.00 MiB beside 11\.00 MiB for the states of one sequence"
    ):
        kv(kv_memory=11 * MIB, max_seqs=100, states=states)
    assert kv(kv_memory=12 * MIB, max_seqs=100, states=states).max_seqs == 1


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor : 0\nmodel name : Zen 5\n\nmodel name : other\n", "Zen 5"),
        ("CPU implementer : 0x41\nCPU part : 0xd40\n", "Arm Neoverse V1"),
        ("CPU implementer : 0x4e\nCPU part : 0x010\n", "NVIDIA Olympus"),
        ("CPU implementer : 0x6d\nCPU part : 0xd49\n", "Microsoft Cobalt 100"),
        ("CPU implementer : 0xc0\nCPU part : 0xac4\n", "AmpereOne"),
        ("CPU implementer : 0x46\nCPU part : 0x001\n", "Arm 0x46 0x001"),
        ("", "unknown"),
    ],
)
def test_cpu_has_a_name(tree, cpuinfo, name):
    assert cpu_name(tree({"proc/cpuinfo": cpuinfo})) == name


def test_huge_pages_in_words(tree):
    root = tree(
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "proc/sys/vm/nr_hugepages": "3\n",
        }
    )
    assert huge_pages(root) == "transparent: madvise; reserved: 3"


def test_this_host_has_threads_and_memory():
    assert default_threads().threads >= 1
    assert memory_limit().n_bytes > 64 * MIB


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(3 * GIB, "3.00 GiB"), (MIB + MIB // 2, "1.50 MiB"), (7, "7 bytes")]
)
def test_sizes_are_written_with_units(n_bytes, text):
    assert format_size(n_bytes) == text


def test_freed_memory_is_given_back():
    """Two hundred megabytes of small blocks, freed, are not resident afterwards."""
    code = (
        "import ctypes\n"
        "from lanewise.host import give_back_memory\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype = ctypes.c_void_p\n"
        "blocks = [libc.malloc(1000) for _ in range(200_000)]\n"
        "for block in blocks: ctypes.memset(block, 1, 1000)\n"
        "last = libc.malloc(1000)\n"  # keeps the heap from shrinking by itself
        "for block in blocks: libc.free(ctypes.c_void_p(block))\n"
        "before = resident()\n"
        "give_back_memory()\n"
        "print(before - resident() > 100_000_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
