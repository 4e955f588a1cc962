"""What towers see of images: sizes, tiles and pixels as transformers makes them, and odd files."""

import contextlib
import hashlib
import importlib.util
import json
import struct
import time
import zlib
from pathlib import Path

import pytest
from PIL import Image

import topics
from goldens import check_goldens
from lanewise.text.images.families import family_of
from lanewise.text.images.layouts import Family, ImageError, Layout, PreprocessorError
from lanewise.text.images.reading import FIRST_ONLY, ImageReader
from pictures import encoded, picture, png

MAKER = Path(__file__).parents[1] / "golden" / "images" / "make_images.py"
GOLDEN = json.loads(MAKER.with_name("images.json").read_text())
PLAIN = {"do_image_splitting": False, "max_image_size": {"longest_edge": 32}}
IDEFICS3 = {"family": "idefics3", "patch_size": 4, "merge": 4, "preprocessor": PLAIN}


def reader(most_pixels: int = 1 << 20, **preprocessor: object) -> ImageReader:
    facts = IDEFICS3 | {"preprocessor": preprocessor}
    return ImageReader(family_of(facts, "<image>"), b"", most_pixels)


def check(case: dict, preprocessor: dict) -> None:
    """One image is what the reference made of it."""
    data = encoded(picture(*case["size"], case["seed"]), "BMP")
    given = reader(**preprocessor, do_image_splitting=case["splits"])
    found = given.read(data, "auto", wants_pixels=True)
    assert list(found["tiles"]) == [case["rows"], case["columns"]]
    n_tiles, height, width, _ = case["shape"]
    assert found["views"] == [(width, height, (height // 16) * (width // 16), 1)] * n_tiles
    assert hashlib.sha256(found["raw"]).hexdigest() == case["digest"], case


@pytest.mark.parametrize("case", GOLDEN["idefics3"]["cases"], ids=lambda case: str(case["size"]))
def test_tiles_and_pixels_are_those_of_transformers(case: dict) -> None:
    check(case, GOLDEN["idefics3"]["preprocessor"])


def family_of_other(name: str, **preprocessor: object) -> Family:
    facts = {"family": name, "patch_size": 4, "merge": 2, "image_size": 32}
    return family_of(facts | {"preprocessor": preprocessor}, "<row>")


def check_other(case: dict) -> None:
    """One image of another family is what the reference made of it."""
    preprocessor = GOLDEN["others"]["preprocessors"][case["family"]]
    given = ImageReader(family_of_other(case["family"], **preprocessor), b"", 1 << 20)
    data = encoded(picture(*case["size"], case["seed"]), "BMP")
    if case["shape"] is None:
        with pytest.raises(ImageError, match=r"at most \d+ times the other"):
            given.read(data, "auto", wants_pixels=True)
        return
    found = given.read(data, "auto", wants_pixels=True)
    height, width, _ = case["shape"]
    ((*size, n_tokens, lines),) = found["views"]
    assert size == [width, height]
    assert n_tokens == (height // 8) * (width // 8)
    assert lines == (height // 8 if case["family"] == "mistral3" else 1)
    assert found["text"].count("<row>") == lines
    assert hashlib.sha256(found["raw"]).hexdigest() == case["digest"], case


@pytest.mark.parametrize(
    "case", GOLDEN["others"]["cases"], ids=lambda case: f"{case['family']}-{case['size']}"
)
def test_pixels_of_other_families_are_those_of_transformers(case: dict) -> None:
    check_other(case)


def test_tiles_of_lfm2_are_those_of_the_nearest_shape() -> None:
    family = family_of_other("lfm2_vl", tile_size=64, min_image_tokens=16, max_image_tokens=64)
    small = family.layout((64, 64), "auto")
    assert [view.size for view in small.views] == [(64, 64)]
    assert family.text(small) == "<|image_start|><row><|image_end|>"
    # Two tiles by two and three by three are of one shape; only the first are full enough.
    square = family.layout((128, 128), "auto")
    assert (square.rows, square.columns, len(square.views)) == (2, 2, 5)
    larger = family.layout((144, 144), "auto")
    assert (larger.rows, larger.columns) == (3, 3)
    wide = family.layout((500, 90), "auto")
    assert (wide.rows, wide.columns) == (1, 6)
    assert wide.views[-1].n_tokens <= 64
    text = family.text(wide)
    assert text.startswith("<|image_start|><|img_row_1_col_1|><row><|img_row_1_col_2|><row>")
    assert text.endswith("<|img_thumbnail|><row><|image_end|>")
    assert len(family.layout((500, 90), "low").views) == 1
    without = family_of_other("lfm2_vl", tile_size=64, use_thumbnail=False, max_image_tokens=64)
    assert len(without.layout((500, 90), "auto").views) == 6


def test_the_texts_of_other_families_have_a_placeholder_for_each_line() -> None:
    gemma = family_of_other("gemma3")
    rows = gemma.text(gemma.layout((5, 5), "auto"))
    assert rows == "\n\n<start_of_image><row><end_of_image>\n\n"
    mistral = family_of_other("mistral3", size={"longest_edge": 96})
    lines = mistral.layout((24, 17), "auto")
    assert mistral.text(lines) == "<row>[IMG_BREAK]<row>[IMG_BREAK]<row>[IMG_END]"
    later = family_of_other("gemma4")
    assert later.text(later.layout((30, 20), "auto")) == "<|image><row><image|>"
    tokens = [later.layout((30, 20), one).n_tokens for one in ("low", "auto", "high")]
    assert tokens == [60, 260, 1080]
    facts = {"family": "gemma4", "patch_size": 4, "merge": 2, "preprocessor": {}}
    assert (
        family_of(facts | {"max_tokens_per_image": 512}, "").layout((9, 9), "high").n_tokens <= 280
    )
    assert family_of_other("qwen3_5").mark == "<row>"
    assert mistral.layout((960, 960), "low").n_tokens == 64


def test_the_text_around_tiles_is_that_of_transformers() -> None:
    family = family_of(IDEFICS3, "<image>")
    for rows, columns, text in GOLDEN["idefics3"]["texts"]:
        ours = family.text(Layout((), rows, columns))
        assert ours.replace("<image>", "<image>" * 3) == text


@pytest.mark.reference
def test_goldens_are_what_transformers_makes_now_and_so_are_others() -> None:
    if importlib.util.find_spec("transformers") is None:
        topics.skip("reference", "transformers is not installed")
    spec = importlib.util.spec_from_file_location("make_images", MAKER)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert json.loads(json.dumps(maker.make())) == GOLDEN
    for seed, size in enumerate(maker.sizes(200, 2)):
        case = maker.idefics3(size, seed, True)
        check({"size": size, "seed": seed, "splits": True, **case}, maker.IDEFICS3)
    for family in maker.OTHERS:
        for seed, size in enumerate(maker.sizes(100, 4)):
            check_other(json.loads(json.dumps(maker.other(family, size, seed))))


@pytest.mark.reference
def test_answers_are_what_transformers_gives_now() -> None:
    check_goldens(MAKER.with_name("make_answers.py"))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_an_image_is_turned_as_its_file_says(turn: int, kind: str) -> None:
    image = picture(20, 10)
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"lossless": True} if kind == "WEBP" else {}
    found = reader(**PLAIN).read(
        encoded(image, kind, exif=exif, **options), "auto", wants_pixels=True
    )
    assert tuple(found["size"]) == ((20, 10) if turn < 5 else (10, 20))
    if kind != "JPEG":
        turned = {
            2: Image.Transpose.FLIP_LEFT_RIGHT,
            3: Image.Transpose.ROTATE_180,
            4: Image.Transpose.FLIP_TOP_BOTTOM,
            5: Image.Transpose.TRANSPOSE,
            6: Image.Transpose.ROTATE_270,
            7: Image.Transpose.TRANSVERSE,
            8: Image.Transpose.ROTATE_90,
        }
        upright = image.transpose(turned[turn]) if turn > 1 else image
        again = reader(**PLAIN).read(encoded(upright), "auto", wants_pixels=True)
        assert found["raw"] == again["raw"]
        assert found["digests"] == again["digests"]


def colour(image: Image.Image, kind: str = "PNG", **options: object) -> tuple[int, ...]:
    """Of an image of one colour, what the tower sees."""
    data = encoded(image, kind, **options)
    raw = reader(**PLAIN).read(data, "auto", wants_pixels=True)["raw"]
    assert raw == raw[:3] * (len(raw) // 3)
    return tuple(raw[:3])


def test_what_is_transparent_is_white() -> None:
    assert colour(Image.new("RGBA", (8, 8), (255, 0, 0, 0))) == (255, 255, 255)
    assert colour(Image.new("LA", (8, 8), (0, 0))) == (255, 255, 255)
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([255, 0, 0])
    assert colour(palette) == (255, 0, 0)
    assert colour(palette, transparency=0) == (255, 255, 255)


@pytest.mark.parametrize(("value", "seen"), [(0, 0), (40000, 156), (65535, 255), (128, 0)])
def test_16_bits_are_scaled_and_not_clipped(value: int, seen: int) -> None:
    for kind in ("PNG", "TIFF"):
        assert colour(Image.new("I;16", (8, 8), value), kind) == (seen,) * 3


def test_other_kinds_of_pixels() -> None:
    assert colour(Image.new("1", (8, 8), 1)) == (255, 255, 255)
    assert colour(Image.new("L", (8, 8), 7)) == (7, 7, 7)
    red, green, blue = colour(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_several_frames_the_first_is_read_and_that_is_said(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), one) for one in [(0, 0, 255), (255, 0, 0), (0, 255, 0)]]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    found = reader(**PLAIN).read(data, "auto", wants_pixels=True)
    assert found["notes"] == [FIRST_ONLY]
    assert tuple(found["raw"][:3]) == (0, 0, 255)
    assert reader(**PLAIN).read(png(8, 8), "auto", wants_pixels=False)["notes"] == []


def refusal(data: bytes, **options: int) -> tuple[str, str]:
    with pytest.raises(ImageError) as caught:
        reader(**options, **PLAIN).read(data, "auto", wants_pixels=True)
    return caught.value.code, str(caught.value)


def test_what_is_no_image_is_refused_by_its_reason() -> None:
    assert refusal(b"")[0] == "empty_image_file"
    for data in (
        b"%PDF-1.7\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\0\0\0\x18ftypheic",
    ):
        code, message = refusal(data)
        assert code == "invalid_image_format"
        assert "accepted: JPEG, PNG, WebP, GIF, TIFF and BMP" in message
    assert refusal(png(64, 64)[:-40])[0] == "image_parse_error"
    assert refusal(encoded(picture(64, 64), "JPEG")[:-200])[0] == "image_parse_error"
    values = Image.new("F", (4, 4), 0.5)
    assert refusal(encoded(values, "TIFF")) == (
        "invalid_image_format",
        "values of 32 bits; accepted: 8 or 16 bits a channel",
    )


def test_a_bomb_is_refused_by_the_size_that_it_claims() -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + crc

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0"))
    began = time.process_time()
    code, message = refusal(bomb, most_pixels=50_000_000)
    assert time.process_time() - began < 0.1  # of its 1.2 GB nothing is made
    assert code == "image_too_large"
    assert message == "20000 x 20000 pixels; accepted: at most 50000000 in all"
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2 << 20)))
    small = png(4, 4)
    end = small.index(b"IDAT") - 4
    assert refusal(small[:end] + text + small[end:])[0] == "image_parse_error"


def test_with_little_detail_there_is_one_tile() -> None:
    given = reader(size={"longest_edge": 160}, max_image_size={"longest_edge": 32})
    data = png(100, 40)
    many, one = (given.read(data, detail, wants_pixels=True) for detail in ("high", "low"))
    assert len(many["views"]) == 5 * 2 + 1
    assert one["views"] == [(32, 32, 4, 1)]
    assert one["text"] == "<fake_token_around_image><global-img><image><fake_token_around_image>"


def test_digests_tell_pixels_and_models_apart() -> None:
    def digest(data: bytes, settings: bytes = b"") -> str:
        made = ImageReader(family_of(IDEFICS3, "<image>"), settings, 1 << 20)
        return made.read(data, "auto", wants_pixels=True)["digests"][0]

    same = digest(png(8, 8))
    assert digest(encoded(picture(8, 8), "BMP")) == same
    assert digest(png(8, 8, seed=1)) != same
    assert digest(png(8, 8), b"another model") != same


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_image_size": {"longest_edge": 33}}, "max_image_size.longest_edge is 33"),
        ({"size": {"height": 3}}, "size.longest_edge is None"),
        ({"image_size": 64}, "longest_edge is 32; accepted: 64"),
        ({"resample": 7}, "resample is 7"),
    ],
)
def test_what_the_files_of_a_model_must_not_say(fields: dict, said: str) -> None:
    with pytest.raises(PreprocessorError, match=said):
        family_of(IDEFICS3 | fields | {"preprocessor": PLAIN | fields}, "<image>")
    with pytest.raises(PreprocessorError, match=r"no_such_family.*accepted: gemma3, gemma4"):
        family_of(IDEFICS3 | {"family": "no_such_family"}, "<image>")


def test_mutated_files_are_read_or_refused() -> None:
    given = reader(**PLAIN)
    whole = [
        encoded(picture(24, 17), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")
    ]
    for seed in range(topics.cases(300, 2000)):
        data = bytearray(whole[seed % len(whole)])
        for at in range(seed % 7 + 1):
            data[(seed * 7919 + at * 104729) % len(data)] = (seed * 31 + at) % 256
        with contextlib.suppress(ImageError):
            assert given.read(bytes(data), "auto", wants_pixels=True)["views"] == [(32, 32, 4, 1)]
