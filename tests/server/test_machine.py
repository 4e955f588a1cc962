"""What the machine does to the server: metrics from control groups, and a line about a quota."""

import asyncio
import logging

from prometheus_client import CollectorRegistry

from lanewise.server.machine import MachineMetrics, watch_quota


def group(tree, periods, throttled, usec):
    return tree(
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\n"
            f"throttled_usec {usec}\n",
            "sys/fs/cgroup/memory.max": "4096000\n",
            "sys/fs/cgroup/memory.current": "1024000\n",
        }
    )


def test_metrics_are_read_when_they_are_scraped(tree):
    registry = CollectorRegistry()
    MachineMetrics(registry, group(tree, 100, 10, 500_000))
    read = registry.get_sample_value
    assert read("lanewise_memory_limit_bytes") == 4_096_000
    assert read("lanewise_memory_used_bytes") == 1_024_000
    group(tree, 200, 30, 2_500_000)
    assert read("lanewise_cpu_periods_total") == 200
    assert read("lanewise_cpu_throttled_periods_total") == 30
    assert read("lanewise_cpu_throttled_seconds_total") == 2.5


def test_metrics_exist_without_any_limit(tree):
    registry = CollectorRegistry()
    MachineMetrics(registry, tree({}))
    assert registry.get_sample_value("lanewise_cpu_throttled_seconds_total") == 0
    assert registry.get_sample_value("lanewise_memory_limit_bytes") == 0


def watch(tree, caplog, *readings):
    """Watch through readings, the last of which must be much; the lines."""

    async def run():
        root = group(tree, 1000, 900, 0)  # of before the server began: no news
        watching = asyncio.create_task(watch_quota(3, root, interval_s=0))
        for reading in readings:
            assert not watching.done()
            for _ in range(3):  # so that it looks at each
                await asyncio.sleep(0)
            group(tree, *reading)
        async with asyncio.timeout(60):
            await watching

    with caplog.at_level(logging.INFO, "lanewise"):
        asyncio.run(run())
    return caplog.messages


def test_a_quota_that_stops_the_server_often_is_told_once(tree, caplog):
    few, seldom, often = (1010, 910, 0), (1610, 914, 0), (2210, 974, 0)
    [line] = watch(tree, caplog, few, seldom, often)
    assert line.startswith("the CPU quota of 2 CPUs stopped the server in 60 of 600 periods (10 %)")
    assert "more than --threads (now 3)" in line
