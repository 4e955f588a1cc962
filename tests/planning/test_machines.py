"""The tables of machines: whole, sourced, and used as they say."""

from dataclasses import replace
from datetime import date

from lanewise.planning.machines import (
    find_instance,
    instances,
    kernels_of,
    machine_of,
    team_of,
)

ALL = list(instances())


def test_names_are_those_of_the_clouds():
    names = [one.name for one in ALL]
    assert len(set(names)) == len(names) > 100
    assert {"c7g.4xlarge", "c8g.48xlarge", "Standard_D16ps_v6", "c4a-standard-72"} <= set(names)
    assert find_instance("C7G.4XLARGE").name == "c7g.4xlarge"
    assert find_instance("c7g") is None


def test_every_machine_has_its_sources_and_is_possible():
    for one in ALL:
        assert one.source, one
        assert one.cores >= 1, one
        assert one.memory_bytes >= one.cores << 30, one
        assert 0 < one.read_gb_s <= one.cores * one.core_gb_s, one
        assert set(one.estimates) <= {"clock_ghz", "socket_cores", "socket_gb_s", "core_gb_s"}, one


def test_every_price_has_a_place_a_date_and_a_source():
    priced = [one for one in ALL if one.price is not None]
    assert len(priced) > 80
    for one in priced:
        assert 0.02 < one.price.usd_hour / one.cores < 0.2, one
        assert all((one.price.region, one.price.source)), one
        assert date.fromisoformat(one.price.as_of) > date(2026, 1, 1), one


def test_every_core_has_rates_of_every_engine():
    for engine in ("lanewise", "llama.cpp"):
        for core in {one.core for one in ALL}:
            kernels = kernels_of(core, engine, 1e9)
            assert list(kernels.rows) == sorted(kernels.rows)
            assert kernels.macs_s[-1] >= kernels.macs_s[0] > 0
            assert {"q8_0", "q4_k", "q6_k", "others"} <= set(kernels.types)


def test_two_processors_read_twice_as_much_and_a_part_of_one_shares_it():
    one, two = find_instance("c8g.24xlarge"), find_instance("c8g.48xlarge")
    assert two.read_gb_s == 2 * one.read_gb_s
    assert not one.is_shared
    assert not two.is_shared
    assert find_instance("c8g.4xlarge").is_shared


def test_hardware_threads_are_no_cores():
    assert find_instance("c7i.4xlarge").cores == 8


def test_a_machine_uses_as_many_cores_as_are_asked_for():
    instance = find_instance("c7g.16xlarge")
    whole, part = machine_of(instance, "lanewise"), machine_of(instance, "lanewise", threads=2)
    assert (whole.threads, part.threads) == (64, 2)
    assert part.read_s == 2e9 * instance.core_gb_s < whole.read_s
    assert machine_of(instance, "lanewise", read_gb_s=77.0).read_s == 77e9


def test_int8_keys_and_values_have_attention_of_their_own():
    f16, int8 = (kernels_of("neoverse-v2", "lanewise", 1e9, kind) for kind in ("f16", "int8"))
    assert int8.attention_s > f16.attention_s
    assert replace(int8, attention_s=f16.attention_s) == f16


def test_one_thread_waits_for_nobody():
    assert team_of("llama.cpp", 1).wait_s == 0
    assert team_of("llama.cpp", 32).wait_s == 2 * team_of("llama.cpp", 16).wait_s > 0
