"""Threads under the memory model of C11: every order of events, every value a load may read.

The sources themselves are explored (explorer/explorer.h), compiled by gcc -fsanitize=thread against
a runtime that is a model of memory. x86 hides most of what C11 and Arm allow, so no other test can
tell whether an order is strong enough; here each is weakened in turn and must be missed.
"""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import topics

ROOT = Path(__file__).resolve().parents[2]
EXPLORER = ROOT / "tests" / "native" / "explorer"
SOURCES = ("thread_pool.h", "thread_pool.c", "step/ahead.c")
SCENARIOS = ("scenarios_pool.c", "scenarios_ahead.c", "scenarios_litmus.c")
MACHINE = (
    "machine.c",
    "races.c",
    "order.c",
    "state.c",
    "entries.c",
    "scheduler.c",
    "hooks.c",
    "system.c",
)

# DWARF 4: addr2line mistakes the files of DWARF 5.
COMMON = [
    "-std=gnu11",
    "-D_GNU_SOURCE=",
    "-gdwarf-4",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-I{EXPLORER}",
]
# Locals lie on the stack and nowhere else, so that stacks tell states apart; calls are not inlined,
# so that each operation of the source has one place.
EXPLORED = [
    *("-fsanitize=thread", "-O0", "-fno-omit-frame-pointer", "-mno-red-zone"),
    *("-ftrivial-auto-var-init=zero", "-ffixed-rbx", "-ffixed-r12", "-ffixed-r13", "-ffixed-r14"),
    *("-ffixed-r15", "-include", "system.h"),
    *(f"-I{ROOT / 'native' / folder}" for folder in ("src", "include")),
]

pytestmark = [
    pytest.mark.slow,
    topics.skip_if(
        platform.machine() != "x86_64" or shutil.which("gcc") is None,
        "machine",
        "the explorer enters its calls in x86-64 assembly, built with gcc",
    ),
]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check(*command: str | Path) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stderr


# Spinning longer is reading more often what has been read already; groups of two take few threads.
SMALLER = (
    ("thread_pool.c", "SPINS = 400", "SPINS = 1"),
    ("thread_pool.h", "LW_POOL_GROUP = 8", "LW_POOL_GROUP = 2"),
)


def build(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """The explorer with the sources as they are, but for `changes`: (source, text, its place)."""
    changes = (*SMALLER, *changes)
    objects = []
    for name in (*SOURCES, *SCENARIOS, *MACHINE):
        at = EXPLORER / name if name in (*SCENARIOS, *MACHINE) else ROOT / "native" / "src" / name
        text = at.read_text()
        for _, old, new in (change for change in changes if change[0] == name):
            assert text.count(old) == 1, f"{name}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        copy = folder / at.name
        copy.write_text(text)
        if copy.suffix == ".c":
            options = ["-O2"] if name in MACHINE else EXPLORED
            objects.append(copy.with_suffix(".o"))
            check("gcc", *COMMON, *options, "-c", copy, "-o", objects[-1])
    check("gcc", "-no-pie", *objects, "-o", folder / "explore")
    return folder / "explore"


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("explorer"))


# What the registers may hold at the end by RC11, or, behind colons, x and y.
LITMUS = {
    "message passing": ("Wxx1,Wyr1/Rya0,Rxx1", "00 01 11"),
    "message passing, relaxed store": ("Wxx1,Wyx1/Rya0,Rxx1", "00 01 11 10"),
    "message passing, relaxed load": ("Wxx1,Wyr1/Ryx0,Rxx1", "00 01 11 10"),
    "a release sequence": ("Wxx1,Wyr1/Ayx1/Rya0,Rxx1", "00 01 11 21 10"),
    "store buffering": ("Wxs1,Rys0/Wys1,Rxs1", "01 10 11"),
    "store buffering, weaker": ("Wxr1,Rya0/Wyr1,Rxa1", "01 10 11 00"),
    "store buffering, modifications": ("Axs1,Rys0/Ays1,Rxs1", "01 10 11"),
    "store buffering, one weaker": ("Axs1,Rya0/Ays1,Rxs1", "01 10 11 00"),
    "coherence": ("Wxx1/Rxx0,Rxx1", "00 01 11"),
    "independent reads": ("Wxs1/Wys1/Rxs0,Rys1/Rys2,Rxs3", "no 1010"),
    "independent reads, weaker": ("Wxr1/Wyr1/Rxa0,Rya1/Rya2,Rxa3", "has 1010"),
    "two writers": ("Wxx1,Wyx2/Wyx1,Wxx2", ":11 :12 :21 :22"),
    "two writers, ordered": ("Wxs1,Wys2/Wys1,Wxs2", ":12 :21 :22"),
    "additions": ("Axx1/Axx1/Axx1", ":30"),
    "load buffering": ("Rxx0,Wyx1/Ryx1,Wxx1", "00 01 10"),
    "an order that relaxed reads do not follow": ("Wxs1,Wyx1/Ryx0,Rxs1", "00 01 11 10"),
}


@pytest.mark.parametrize("every", ["-e0", "-e1"], ids=["states once", "every execution"])
@pytest.mark.parametrize("name", LITMUS)
def test_outcomes_are_those_of_the_standard(explorer: Path, name: str, every: str) -> None:
    program, expected = LITMUS[name]
    done = run(explorer, "litmus", f"-{program}", every, "-r0")
    assert done.returncode == 0, done.stdout
    outcomes = re.findall(r"^outcome (\d{4})(\d\d)$", done.stdout, re.M)
    registers = {registers for registers, _ in outcomes}
    if expected.startswith(":"):
        assert {f":{objects}" for _, objects in outcomes} == set(expected.split())
    elif expected.startswith(("no", "has")):
        assert len(registers) > 10
        assert (expected.split()[1] in registers) == expected.startswith("has")
    else:
        assert registers == {f"{each:0<4}" for each in expected.split()}


# -n: threads that compute (or wait), -k: runs of the pool, -b: barriers inside each, -r: wake-ups
# for nothing and timeouts, -h: holds. Each with how many executions it has at least: fewer say that
# something is not explored.
PROOFS = {
    "pool -n2 -k2 -b2": 400,
    "pool -n3 -k1 -b0 -r0": 10_000,
    "pool -n4 -k0": 1_000,
    "groups -n3 -k1 -r0": 100,
    "work -n2 -k2 -i3": 400,
    "items -n2 -k2 -i3": 400,
    "shares -n2 -k1 -i5": 300,
    "counts -n3 -r0": 10_000,
    "gate -n1": 250,
    "gate -n2 -r0": 10_000,
    "steps_ahead": 50,
    "steps_that_fail": 20,
    "held_draws -h2": 900,
}


LONG = ("pool -n3 -k1 -b0 -r0", "counts -n3 -r0", "groups -n3 -k1 -r0", "gate -n2 -r0")


@pytest.mark.parametrize(
    "scenario", [*(one for one in PROOFS if one not in LONG), *topics.thorough(*LONG)]
)
def test_every_execution_does_what_it_should(explorer: Path, scenario: str) -> None:
    done = run(explorer, *scenario.split())
    assert done.returncode == 0, done.stdout
    executions = re.search(r": (\d+) executions", done.stdout)
    assert executions is not None
    assert int(executions[1]) >= PROOFS[scenario]


RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = 0, 2, 3, 4, 5
NAMES = {
    RELAXED: "relaxed",
    ACQUIRE: "acquire",
    RELEASE: "release",
    ACQ_REL: "acq_rel",
    SEQ_CST: "seq_cst",
}
QUICK = (
    "gate",
    "counts",
    "pool -k1 -b1",
    "steps_ahead",
    "held_draws",
    "work -k2",
    "items -k2",
    "shares -k1",
)


@dataclass(frozen=True)
class Operation:
    """One atomic operation of the sources, in one scenario that comes by it."""

    scenario: str
    address: str
    order: int
    function: str
    text: str

    def weaker(self) -> Iterator[int]:
        if self.order == SEQ_CST:
            yield ACQUIRE if "_load" in self.text else RELEASE if "_store" in self.text else ACQ_REL
        if self.order == ACQ_REL:
            yield from (ACQUIRE, RELEASE)
        if self.order != RELAXED:
            yield RELAXED


def operations(explorer: Path) -> list[Operation]:
    found = []
    for scenario in QUICK:
        sites = re.findall(r"^site (\S+) (\d)$", run(explorer, *scenario.split()).stdout, re.M)
        for address, order in sites:
            before = hex(int(address, 16) - 1)
            function, place = run("addr2line", "-f", "-e", explorer, before).stdout.split("\n")[:2]
            name, line = place.partition(" (discriminator")[0].rsplit(":", 1)
            text = Path(name).read_text().splitlines()[int(line) - 1].strip()
            if not Path(name).name.startswith("scenarios"):
                found.append(Operation(scenario, address, int(order), function, text))
    return found


def is_missed(explorer: Path, operation: Operation, order: int) -> bool:
    done = run(explorer, *operation.scenario.split(), f"--weaken={operation.address},{order}")
    return done.returncode == 1


def test_every_order_is_as_weak_as_it_may_be(explorer: Path) -> None:
    """Each atomic operation with each weaker order: some scenario goes wrong."""
    places: dict[str, list[Operation]] = {}
    for operation in operations(explorer):
        places.setdefault(f"{operation.function}: {operation.text}", []).append(operation)
    assert any(place.startswith("lw_gate_is_open") for place in places)
    assert len(places) >= 16
    survivors = [
        f"{place}: {NAMES[order]}"
        for place, found in places.items()
        for order in found[0].weaker()
        if not any(is_missed(explorer, operation, order) for operation in found)
    ]
    assert survivors == []


@dataclass(frozen=True)
class Fault:
    """`text` of a source is `instead` something that a scenario must find out."""

    scenario: str
    source: str
    text: str
    instead: str


RUN, MEET = "    work(context, 0);\n", "    lw_pool_barrier(pool, 0);\n"
TAKE = "*begin = atomic_fetch_add_explicit(&work->next, chunk, memory_order_relaxed);"
RESET = "atomic_store_explicit(&here->come, 0, memory_order_relaxed);"
RAISE = "raise_signal(&here->left);"
POOL, AHEAD = "thread_pool.c", "step/ahead.c"
FAULTS = {
    "nobody is woken": Fault("pool", POOL, "if (atomic_load(&word->sleepers) != 0)", "if (0)"),
    "sleepers are not counted": Fault("pool", POOL, "atomic_fetch_add(&word->sleepers, 1);", ""),
    "a wake-up is believed": Fault(
        "pool", POOL, "while (atomic_load(&word->value) ==", "if (atomic_load(&word->value) =="
    ),
    "a gate is opened silently": Fault("gate", POOL, "if (holds == 1) wake_sleepers(gate);", ""),
    "one release opens a gate": Fault("gate", POOL, "&holds, holds - 1)", "&holds, 0)"),
    "arrivals are reset too late": Fault("pool -b1", POOL, RAISE, RAISE + RESET),
    "a run waits for nobody": Fault("pool", POOL, RUN + MEET, RUN),
    "a group is not started": Fault("pool -n3 -b0 -r0", POOL, "    start_next(pool, 0);", ""),
    "a group that does not run is started": Fault(
        "groups -k1 -r0", POOL, "next < pool->running_groups", "next < pool->n_groups"
    ),
    "groups do not meet": Fault(
        "pool -n3 -b0 -r0",
        POOL,
        "if (pool->running_groups == 1) return;",
        "if (pool->running_groups > 0) return;",
    ),
    "groups are not told": Fault(
        "pool -n3 -b0 -r0", POOL, "        raise_signal(&all->left);", "        (void)0;"
    ),
    "threads are not joined": Fault("pool", POOL, "pthread_join(pool->handles[i], NULL)", ""),
    "items are taken in two steps": Fault(
        "work",
        "thread_pool.h",
        TAKE,
        "*begin = atomic_load(&work->next), atomic_store(&work->next, *begin + chunk);",
    ),
    "the end of a step is not told": Fault(
        "steps_ahead", AHEAD, "if (a->failed || a->n_run == a->n_started) pthread", "if (0) pthread"
    ),
    "a step is begun silently": Fault(
        "steps_ahead",
        AHEAD,
        ".drawn = drawn};\n    pthread_cond_signal(&a->begun);",
        ".drawn = drawn};",
    ),
    "the runner believes a wake-up": Fault(
        "steps_ahead", AHEAD, "while (a->n_run == a->n_started", "if (a->n_run == a->n_started"
    ),
    "finish believes a wake-up": Fault(
        "steps_that_fail",
        AHEAD,
        "while (a->n_run == a->n_finished) p",
        "if (a->n_run == a->n_finished) p",
    ),
    "a step ends without the lock": Fault(
        "steps_ahead", AHEAD, "pthread_mutex_lock(&a->lock);\n            a->failed", "a->failed"
    ),
    "a failure is forgotten": Fault(
        "steps_that_fail", AHEAD, "a->failed = step->status != LW_OK;", "a->failed = 0;"
    ),
}


SOME = list(FAULTS)[::6]


@pytest.mark.parametrize(
    "fault", [*SOME, *topics.thorough(*(one for one in FAULTS if one not in SOME))]
)
def test_faults_are_found(tmp_path: Path, fault: str) -> None:
    what = FAULTS[fault]
    changed = build(tmp_path, (what.source, what.text, what.instead))
    done = run(changed, *what.scenario.split())
    assert done.returncode == 1, done.stdout
