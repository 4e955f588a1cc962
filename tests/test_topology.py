"""Nodes and cores from file trees of hosts, and what is done about them."""

import re

import pytest

from lanewise.host import GIB, MIB, HostError, MemoryLimit, default_threads
from lanewise.settings import ModelSettings
from lanewise.topology import (
    Core,
    Placement,
    choose_cpus,
    format_list,
    parse_list,
    place,
    read_topology,
)

PLENTY = MemoryLimit(512 * GIB, "test", False)
KIB = 1024


def meminfo(node, total, free=None):
    lines = {
        "MemTotal": total,
        "MemFree": total // 2 if free is None else free,
        "Active(file)": 3 * MIB if total else 0,
        "Inactive(file)": 2 * MIB if total else 0,
        "SReclaimable": MIB if total else 0,
        "FilePages": total,  # shared memory too, which nobody can have
    }
    return "".join(f"Node {node} {name}:  {size // KIB} kB\n" for name, size in lines.items())


@pytest.fixture
def host(tree):
    """Writes the files of a host: lists of the CPUs of each node, and of the CPUs of each core."""

    def write(nodes, cores, memory=256 * GIB, mems_allowed=None, quota=None):
        files = {}
        for node, cpus in enumerate(nodes):
            folder = f"sys/devices/system/node/node{node}"
            files[f"{folder}/cpulist"] = f"{cpus}\n"
            size = memory[node] if isinstance(memory, list) else memory
            files[f"{folder}/meminfo"] = meminfo(node, size)
        for core in cores:
            for cpu in parse_list(core):
                files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{core}\n"
        if mems_allowed is not None:
            files["proc/self/status"] = f"Name:\tx\nMems_allowed_list:\t{mems_allowed}\n"
        if quota is not None:
            files["proc/self/cgroup"] = "0::/\n"
            files["proc/self/mountinfo"] = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
            files["sys/fs/cgroup/cpu.max"] = f"{quota * 100_000:.0f} 100000\n"
        return tree(files)

    return write


@pytest.fixture
def altra(host):
    """Two sockets of 80 cores without SMT."""
    return host(["0-79", "80-159"], [str(cpu) for cpu in range(160)])


@pytest.fixture
def xeon(host):
    """Two sockets of four cores with two hardware threads each, numbered as Linux does."""
    return host(["0-3,8-11", "4-7,12-15"], [f"{core},{core + 8}" for core in range(8)])


def decide(root, affinity, *, weights=10 * GIB, limit=PLENTY, refused=None, threads=None, **wishes):
    return place(
        ModelSettings(**wishes),
        threads or len(read_topology(root, affinity).cores),
        weight_bytes=weights,
        limit=limit,
        refusal=lambda nodes: refused,
        root=root,
        affinity=affinity,
    )


def test_lists_of_the_kernel():
    assert parse_list(" 0-3,8\n") == [0, 1, 2, 3, 8]
    assert parse_list("") == []
    assert format_list([8, 3, 0, 1, 2]) == "0-3,8"
    assert format_list(()) == ""


def test_cores_with_two_hardware_threads_on_two_nodes(xeon):
    topology = read_topology(xeon, range(16))
    assert topology.cores[0] == Core((0, 8), 0)
    assert topology.cores[7] == Core((7, 15), 1)
    assert len(topology.cores) == 8
    assert topology.nodes() == [0, 1]
    assert topology.cpus(1) == [4, 5, 6, 7, 12, 13, 14, 15]
    # Free memory, and what the kernel gives back.
    assert topology.memory == {0: 128 * GIB + 6 * MIB, 1: 128 * GIB + 6 * MIB}


def test_cores_without_smt(altra):
    topology = read_topology(altra, range(160))
    assert [core.cpus for core in topology.cores] == [(cpu,) for cpu in range(160)]
    assert {core.node for core in topology.cores[80:]} == {1}


def test_only_cpus_and_nodes_of_the_cpuset_count(host):
    root = host(
        ["0-3,8-11", "4-7,12-15"],
        [f"{core},{core + 8}" for core in range(8)],
        mems_allowed="1",
    )
    topology = read_topology(root, [2, 4, 5, 12])
    assert topology.cores == (Core((2,), 0), Core((4, 12), 1), Core((5,), 1))
    assert list(topology.memory) == [1]


def test_node_without_memory_gets_none(host):
    root = host(["0", "1"], ["0", "1"], memory=[GIB, 0])
    assert list(read_topology(root, [0, 1]).memory) == [0]
    placed = decide(root, [0, 1], cpu_pinning="on", numa="interleave")
    assert placed.nodes == (0,)


def test_missing_files_are_one_node_of_unknown_cores(tmp_path):
    topology = read_topology(tmp_path, [0, 3])
    assert topology.cores == (Core((0,), 0), Core((3,), 0))
    assert not topology.knows_cores
    assert topology.memory == {}
    placed = decide(tmp_path, [0, 3])
    assert placed == Placement(
        cpus=(),
        threads="not pinned: physical cores unknown",
        numa="off",
        nodes=(),
        replica_of_thread=(),
        memory="wherever the system puts it: one memory node",
    )
    assert decide(tmp_path, [0, 3], cpu_pinning="on").cpus == (0, 3)
    assert decide(tmp_path, [0, 3], numa="interleave").numa == "off"


@pytest.mark.parametrize(
    ("threads", "cpus"),
    [
        (1, [0]),
        (3, [0, 1, 2]),  # fits one node
        (4, [0, 1, 2, 3]),
        (5, [0, 1, 2, 4, 5]),  # the same number on each, as far as possible
        (8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (10, [0, 1, 2, 3, 8, 4, 5, 6, 7, 12]),  # second hardware threads when no core is left
        (16, [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]),
    ],
)
def test_threads_take_the_fewest_nodes_and_fill_them_evenly(xeon, threads, cpus):
    assert choose_cpus(read_topology(xeon, range(16)), threads) == cpus


def test_threads_take_the_node_with_most_cores(xeon):
    topology = read_topology(xeon, [2, 3, 4, 5, 6, 7])
    assert choose_cpus(topology, 2) == [4, 5]
    assert choose_cpus(topology, 6) == [2, 3, 4, 5, 6, 7]


def test_whole_host_of_two_nodes_is_pinned_with_a_copy_on_each(altra):
    placed = decide(altra, range(160))
    assert placed.cpus == tuple(range(160))
    assert placed.threads == "pinned to CPUs 0-159 (80 on node 0, 80 on node 1)"
    assert (placed.numa, placed.nodes) == ("replicate", (0, 1))
    assert placed.replica_of_thread == (0,) * 80 + (1,) * 80
    assert placed.memory == (
        "a copy of the weights on each of nodes 0, 1, KV cache interleaved over them: "
        "2 copies of 10.00 GiB are at most half the memory"
    )


@pytest.mark.parametrize("of_node", [128, 192, 512])
def test_the_largest_hosts_are_placed_by_default(host, of_node):
    cpus = range(2 * of_node)
    nodes = [f"0-{of_node - 1}", f"{of_node}-{2 * of_node - 1}"]
    root = host(nodes, [str(cpu) for cpu in cpus])
    threads = default_threads(root, cpus).threads
    placed = decide(root, cpus, threads=threads)
    assert placed.cpus == tuple(cpus)
    assert (placed.numa, placed.nodes) == ("replicate", (0, 1))
    assert placed.replica_of_thread == (0,) * of_node + (1,) * of_node


@pytest.mark.parametrize(
    ("weights", "limit"),
    [(129 * GIB, PLENTY), (10 * GIB, MemoryLimit(39 * GIB, "test", True))],
)
def test_weights_too_large_for_copies_are_interleaved(altra, weights, limit):
    placed = decide(altra, range(160), weights=weights, limit=limit)
    assert (placed.numa, placed.nodes, placed.replica_of_thread) == ("interleave", (0, 1), ())
    assert "weights and KV cache interleaved over nodes 0, 1: a copy" in placed.memory


def test_without_a_model_the_size_that_decides_is_told(altra):
    assert "if the weights take at most 128.0" in decide(altra, range(160), weights=None).memory


def test_auto_keeps_its_hands_off_what_others_may_use(altra, host):
    placed = decide(altra, range(160), threads=40)
    assert (placed.cpus, placed.numa, placed.nodes) == ((), "interleave", (0, 1))
    assert "over nodes 0, 1: threads may run on any of them; cpu_pinning on" in placed.memory
    assert decide(altra, range(160), threads=40, load="map").numa == "off"
    assert placed.threads == "not pinned: 40 threads and 160 cores, which others may use too"
    root = host(["0-79", "80-159"], [str(cpu) for cpu in range(160)], quota=7.5)
    placed = decide(root, range(160))
    assert placed.threads == "not pinned: a CPU quota (7.5 CPUs) shares the cores with others"
    assert placed.memory == "wherever the system puts it: threads are not pinned"
    root = host(["0-79", "80-159"], [str(cpu) for cpu in range(160)], quota=160)
    assert len(decide(root, range(160)).cpus) == 160


def test_threads_of_one_node_are_pinned_too(altra):
    placed = decide(altra, range(80))
    assert placed.threads == "pinned to CPUs 0-79 (80 on node 0)"
    assert (placed.numa, placed.memory) == ("off", "wherever the system puts it: one memory node")
    assert decide(altra, range(80), cpu_pinning="off").cpus == ()


def test_a_pinned_thread_has_a_core_to_itself(xeon):
    assert decide(xeon, [0, 1, 8, 9]).cpus == (0, 1)


def test_quota_and_company_do_not_matter_to_who_asks(altra):
    placed = decide(altra, range(160), threads=40, cpu_pinning="on")
    assert placed.threads == "pinned to CPUs 0-39 of 160 (40 on node 0)"
    assert placed.numa == "off"
    placed = decide(altra, range(160), cpu_pinning="off", numa="interleave")
    assert (placed.cpus, placed.numa, placed.nodes) == ((), "interleave", (0, 1))
    assert decide(altra, range(160), cpu_pinning="off").threads == "not pinned: as asked for"
    assert decide(altra, range(160), numa="off").memory.endswith(": as asked for")


def test_mapped_files_are_left_alone_or_refused(altra):
    assert "load is map" in decide(altra, range(160), load="map").memory
    with pytest.raises(
        HostError, match=r"load is map and numa is interleave.* accepted: load auto"
    ):
        decide(altra, range(160), load="map", numa="interleave")


@pytest.mark.parametrize("numa", ["auto", "interleave", "replicate"])
def test_system_that_forbids_placing_is_told(altra, numa):
    placed = decide(altra, range(160), numa=numa, refused="numa: mbind: Operation not permitted")
    assert (placed.numa, placed.nodes, placed.replica_of_thread) == ("off", (), ())
    assert placed.memory.endswith(" is not possible here: numa: mbind: Operation not permitted")
    assert len(placed.cpus) == 160


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"threads": 161, "cpu_pinning": "on"},
            "cpu_pinning is on and threads is 161; accepted: at most 160, the CPUs in the",
        ),
        (
            {"cpu_pinning": "off", "numa": "replicate"},
            "numa is replicate and threads are not pinned (as asked for); accepted: cpu_pinning on",
        ),
        (
            {"numa": "replicate", "limit": MemoryLimit(20 * GIB, "the test's limit", True)},
            "numa is replicate: 2 copies of 10.00 GiB of weights do not fit into 20.00 GiB "
            "(the test's limit) less a margin of 1.00 GiB; accepted: numa interleave or off",
        ),
        (
            {"numa": "replicate", "weights": 130 * GIB},
            "numa is replicate: 2 copies of 130.00 GiB of weights, and node 0 has 128.01 GiB free",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(altra, changes, message):
    with pytest.raises(HostError, match=re.escape(message)):
        decide(altra, range(160), **changes)


def test_copies_on_one_node_gain_nothing(altra):
    placed = decide(altra, range(80), cpu_pinning="on", numa="replicate")
    assert placed.memory == "wherever the system puts it: one memory node"
