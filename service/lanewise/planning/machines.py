"""Machines: what their cores multiply and their memory reads, from the tables beside this file."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

from lanewise.host import GIB

STREAM_SHARE = 0.8  # of the peak of a processor's memory: what programs that only read get


@dataclass(frozen=True, slots=True)
class Kernels:
    """What an engine's kernels reach on one core, in multiplications a second."""

    rows: tuple[float, ...]  # ascending
    macs_s: tuple[float, ...]  # with so many rows, Q4_0
    types: Mapping[str, tuple[float, float]]  # relative to Q4_0, of one row and of many
    attention_s: float
    values_s: float
    # Reading and multiplying take (a^overlap + b^overlap)^(1/overlap) together: infinite where the
    # longer of both hides the other one, 1 where neither hides any of it.
    overlap: float = inf


@dataclass(frozen=True, slots=True)
class Team:
    """What it costs that several threads work together."""

    serial: float  # part of the arithmetic that does not become faster with threads
    phases: int  # waits of all for each other in a layer
    wait_s: float  # each of them
    # A query head's attention is shared by as many threads as there are of so many tokens in what
    # it sees; 0: it is not shared.
    attention_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """As many cores as threads compute, and the memory they share."""

    name: str
    isa: str
    threads: int
    read_s: float  # bytes a second of all threads together
    kernels: Kernels
    team: Team


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour costs, and who said so when; ``as_of`` is None where the user did."""

    usd_hour: float
    region: str | None = None
    as_of: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine that can be rented."""

    name: str
    chip: str
    core: str
    isa: str
    clock_ghz: float
    cores: int
    memory_bytes: int
    read_gb_s: float
    core_gb_s: float
    is_shared: bool  # other tenants of the processor read from the same memory
    price: Price | None
    source: str
    estimates: tuple[str, ...]  # fields that the provider has not published


def instances() -> Iterator[Instance]:
    """All that the table has, in its order."""
    tables = _table("instances.toml")
    for family in tables["families"]:
        for size, (cpus, *usd) in family["sizes"].items():
            chip = tables["chips"][family["chip"]]
            cores = cpus // family.get("threads_per_core", 1)
            sockets = -(-cores // chip["socket_cores"])
            most = STREAM_SHARE * sockets * chip["socket_gb_s"]
            listed = tables["prices"][family["prices"]] if usd else {}
            price = {key: str(value) for key, value in listed.items()}
            yield Instance(
                name=_name(family["name"], size),
                chip=family["chip"],
                core=chip["core"],
                isa=_table("rates.toml")["cores"][chip["core"]]["isa"],
                clock_ghz=chip["clock_ghz"],
                cores=cores,
                memory_bytes=int(cpus * family["memory_gib"] * GIB),
                read_gb_s=min(most, cores * chip["core_gb_s"]),
                core_gb_s=chip["core_gb_s"],
                is_shared=cores % chip["socket_cores"] != 0,
                price=Price(usd[0], **price) if usd else None,
                source=chip["source"],
                estimates=tuple(chip["estimates"]),
            )


def find_instance(name: str) -> Instance | None:
    """The one of this name, in any case."""
    return next((one for one in instances() if one.name.lower() == name.lower()), None)


def machine_of(
    instance: Instance,
    engine: str,
    *,
    threads: int | None = None,
    read_gb_s: float | None = None,
    kv_type: str = "f16",
) -> Machine:
    """An instance as an engine uses it: so many of its cores, all when not given."""
    threads = threads or instance.cores
    if read_gb_s is None:
        read_gb_s = min(instance.read_gb_s, threads * instance.core_gb_s)
    hertz = 1e9 * instance.clock_ghz
    return Machine(
        name=instance.name,
        isa=instance.isa,
        threads=threads,
        read_s=1e9 * read_gb_s,
        kernels=kernels_of(instance.core, engine, hertz, kv_type),
        team=team_of(engine, threads),
    )


def kernels_of(core: str, engine: str, hertz: float, kv_type: str = "f16") -> Kernels:
    """What an engine's kernels reach on a core of this kind."""
    tables = _table("rates.toml")
    of_core, of_engine = tables["cores"][core], tables["engines"][engine]
    rates = of_engine["cores"][core]
    speed = hertz * of_core["efficiency"]
    attention = of_core["attention" if kv_type in ("f16", "f32") else "attention_int8"]
    return Kernels(
        rows=tuple(map(float, rates["rows"])),
        macs_s=tuple(speed * rate for rate in rates["macs_per_cycle"]),
        types={name: (one, many) for name, (one, many) in of_engine["types"].items()},
        attention_s=speed * attention,
        values_s=speed * of_core["values"],
        overlap=of_core.get("overlap", inf),
    )


def team_of(engine: str, threads: int) -> Team:
    """What so many threads of an engine cost each other."""
    table = _table("rates.toml")["engines"][engine]
    wait_us = table["phase_us"] + table["phase_us_per_thread"] * threads
    return Team(
        table["serial"],
        table["phases"],
        1e-6 * wait_us if threads > 1 else 0.0,
        table["attention_tokens"],
    )


def _name(family: str, size: str) -> str:
    """``c7g.4xlarge`` of AWS, ``Standard_D16ps_v6`` of Azure, ``c4a-standard-16`` of Google."""
    if "*" in family:
        return family.replace("*", size)
    if size.isdecimal():
        return f"{family}-{size}"
    return f"{family}.{size}"


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
