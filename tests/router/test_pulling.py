"""Models of the hub that requests name, where the operator allows it."""

import pytest

from lanewise.router import fleet as fleets
from lanewise.router.entries import Catalogue, Entry
from lanewise.router.fleet import BusyError, Fleet
from toy_router import toy_router

MIB = 1 << 20
OWN = {"name": "own", "model": "own.gguf", "memory": 100 * MIB}
ASK = {"prompt": "ab", "max_tokens": 2}


def test_a_model_that_is_allowed_is_loaded_by_all_its_names(tmp_path):
    models = {"models": [OWN], "memory": 300 * MIB, "pull": ["Qwen/*"]}
    with toy_router(tmp_path, models) as router:

        def status(name):
            return router.client.post("/v1/completions", json=ASK | {"model": name})

        names = [
            "hf.co/Qwen/Qwen3-0.6B",
            "Qwen/Qwen3-0.6B",
            "huggingface.co/Qwen/Qwen3-0.6B:latest",
        ]
        assert [status(name).status_code for name in names] == [200] * 3
        assert len(router.children()) == 1
        listed = [one["id"] for one in router.client.get("/v1/models").json()["data"]]
        assert listed == ["own", "Qwen/Qwen3-0.6B"]
        pulled = router.client.post("/api/pull", json={"model": names[0], "stream": False})
        assert pulled.json() == {"status": "success"}
        for name in (
            "other/model",
            "Qwen/a/b",
            "Qwen/..",
            "hf.co/Qwen/a:Q4_K_M",
            "Qwen/a:../b.gguf/",
        ):
            assert status(name).status_code == 404
        assert set(router.states()) == {"own", "Qwen/Qwen3-0.6B"}


def test_without_a_word_of_the_operator_nothing_is_pulled(tmp_path):
    with toy_router(tmp_path, {"models": [OWN], "memory": 300 * MIB}) as router:
        answer = router.client.post("/v1/completions", json=ASK | {"model": "hf.co/Qwen/Qwen3"})
        assert answer.status_code == 404
        assert router.states() == {"own": "unloaded"}


def of_the_hub(**more):
    own = Entry(name="own", settings={}, aliases=("hf.co/a/taken",))
    return Fleet(Catalogue(entries=(own,), pull=("a/*",), **more), None, 1)


def test_names_are_bounded_and_the_ones_in_use_stay(monkeypatch):
    monkeypatch.setattr(fleets, "MAX_PULLED", 2)
    fleet = of_the_hub()
    first, second = fleet.find("a/1"), fleet.find("hf.co/a/2:some.gguf")
    assert fleet.find("hf.co/a/1") is first
    first.waits[0] = 1
    third = fleet.find("a/3")
    assert set(fleet.slots) == {"own", "a/1", "a/3"}
    assert fleet.find("a/1") is first
    third.answers[0] = 1
    with pytest.raises(BusyError, match="2 models of the hub are in use") as caught:
        fleet.find("a/4")
    assert caught.value.is_full
    assert second.entry.settings["model"] == "a/2:some.gguf"


def test_a_name_of_the_file_wins_and_a_failure_is_not_listed():
    fleet = of_the_hub()
    own = fleet.find("own")
    assert fleet.find("hf.co/a/taken") is own
    taken = fleet.find("a/taken")
    assert taken is not own
    assert fleet.find("hf.co/a/taken") is own
    assert fleet.names == ["own", "hf.co/a/taken"]  # nothing of it has been read
    taken.planned = (1, {})
    assert fleet.names == ["own", "hf.co/a/taken", "a/taken"]
