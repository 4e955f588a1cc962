"""What ``lanewise quantize`` says before and while it works: larger results, and what is left."""

from types import SimpleNamespace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import TensorType
from lanewise_quantizer.commands import quantize
from lanewise_quantizer.commands.quantize import COST_ON_TEXT, cost_of, larger_than_source, spared
from lanewise_quantizer.commands.tables import Fitting

NO_TABLES = Fitting({})


def target(kind=TensorType.Q4_1, role=Role.FFN_DOWN, type_="q8_0", n_bytes=1000, is_matrix=True):
    source = SimpleNamespace(type=kind, role=role, layer=0, n_bytes=n_bytes, rows=10, cols=32)
    return SimpleNamespace(name="t", type=type_, source=source, is_matrix=is_matrix)


def test_a_file_larger_than_its_quantized_source_is_told():
    said = larger_than_source([target(), target(n_bytes=500)], 2000)
    assert "is larger than its source" in said
    assert "cannot be better" in said
    assert larger_than_source([target()], 1000) is None


def test_floats_may_become_anything():
    assert larger_than_source([target(TensorType.F16)], 5000) is None
    norm = target(TensorType.F32, is_matrix=False)
    assert larger_than_source([target(TensorType.BF16), norm], 5000) is None


def test_what_is_fitted_to_a_text_counts_for_what_it_takes(monkeypatch):
    """Bytes alone said two seconds of three minutes: the embedding is many, and quick."""
    monkeypatch.setattr(quantize, "is_copied", lambda target, fitting: target.type == "q4_1")
    fitted = target(type_="q4_0")
    embedding = target(type_="q4_0", role=Role.TOKEN_EMBEDDING)
    copied, norm = target(type_="q4_1"), target(type_="f32", is_matrix=False)
    assert cost_of(fitted, NO_TABLES, True) == 1000 * COST_ON_TEXT
    for quick in (embedding, copied, norm):
        assert cost_of(quick, NO_TABLES, True) == 1000
    assert cost_of(fitted, NO_TABLES, False) == 1000


def test_what_is_spared_is_named():
    def matrix(name, type_, row_bytes):
        made = target(type_=type_)
        made.name, made.row_bytes, made.n_bytes = name, row_bytes, 10 * row_bytes
        return made

    most = [matrix(f"m{n}", "q4_0", 18) for n in range(200)]
    assert spared(most) is None
    few = [matrix("a", "q8_0", 34), matrix("b", "f16", 64)]
    assert spared([*most, *few]) == "spared, for they lose most: b f16, a q8_0"
    assert str(spared([*most, *few, *few, *few])).endswith("a q8_0, a q8_0 and 1 more")
