"""Metrics over pictures, PDF files, sound and film, with files made here."""

from __future__ import annotations

import math
import struct
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.similarity import ssim

Edit = Callable[[Image.Image], Image.Image]


def _photo() -> Image.Image:
    """A picture with colours, edges and a left and a right that differ."""
    rows, columns = np.mgrid[0:60, 0:80]
    pixels = np.stack([60 + columns, 80 + rows, 150 - rows // 2], axis=2).astype(np.uint8)
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).rectangle((10, 10, 25, 40), fill=(200, 60, 60))
    return image


def _save(place: Path, image: Image.Image) -> str:
    image.save(place)
    return str(place)


def _noise(image: Image.Image) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 255, (image.height, image.width, 3), dtype=np.uint8))


def _more_colour(image: Image.Image) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    return Image.merge("HSV", (hue, saturation.point(lambda level: min(255, level + 40)), value)).convert("RGB")


EDITS: list[tuple[str, Edit, Edit]] = [
    # metric, an edit of the picture that passes, one that misses
    ("compare_images", lambda image: image, _noise),
    ("compare_image_list", lambda image: image, ImageOps.mirror),
    ("check_structure_sim", lambda image: image, ImageOps.mirror),
    ("check_file_exists_and_structure_sim", lambda image: image, _noise),
    ("check_structure_sim_with_threshold", lambda image: image.resize((160, 120), Image.Resampling.BICUBIC), ImageOps.flip),
    ("check_structure_sim_resized", lambda image: image.resize((160, 120), Image.Resampling.BICUBIC), ImageOps.flip),
    ("check_image_mirror", ImageOps.mirror, lambda image: image),
    (
        "check_brightness_decrease_and_structure_sim",
        lambda image: ImageEnhance.Brightness(image).enhance(0.6),
        lambda image: image,
    ),
    ("check_saturation_increase_and_structure_sim", _more_colour, lambda image: ImageEnhance.Color(image).enhance(0.5)),
    ("check_contrast_increase_and_structure_sim", lambda image: ImageEnhance.Contrast(image).enhance(1.4), lambda image: image),
    ("check_sharper", lambda image: image.filter(ImageFilter.SHARPEN), lambda image: image.filter(ImageFilter.BLUR)),
    ("check_palette_and_structure_sim", lambda image: image.quantize(256), lambda image: image),
]


@pytest.mark.parametrize(("name", "passes", "misses"), EDITS, ids=[case[0] for case in EDITS])
def test_image_edit_pass_and_near_miss(name: str, passes: Edit, misses: Edit, tmp_path: Path) -> None:
    gold = _save(tmp_path / "gold.png", _photo())
    assert metric(name)(_save(tmp_path / "a.png", passes(_photo())), gold) >= 0.99
    assert metric(name)(_save(tmp_path / "b.png", misses(_photo())), gold) < 0.5
    (tmp_path / "c.png").write_bytes(b"\x89PNG")
    with pytest.raises(BrokenFile):
        metric(name)(str(tmp_path / "c.png"), gold)


def test_ssim_against_the_formula_on_one_window() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(0, 255, (7, 7)), rng.uniform(0, 255, (7, 7))
    c_1, c_2 = 6.5025, 58.5225
    covariance = np.cov(a.ravel(), b.ravel())
    wanted = ((2 * a.mean() * b.mean() + c_1) * (2 * covariance[0, 1] + c_2)) / (
        (a.mean() ** 2 + b.mean() ** 2 + c_1) * (covariance[0, 0] + covariance[1, 1] + c_2)
    )
    assert ssim(a, b) == pytest.approx(wanted)
    assert ssim(a, a) == pytest.approx(1.0)


def test_compare_images_base_result_stretches_the_rest(tmp_path: Path) -> None:
    gold = _save(tmp_path / "gold.png", _photo())
    assert metric("compare_images")(gold, gold, reference_base_result=0.8) == pytest.approx(1.0)
    assert metric("compare_images")(_save(tmp_path / "a.png", _noise(_photo())), gold, reference_base_result=0.8) == 0.0


def test_check_image_size_visible_part_on_demand(tmp_path: Path) -> None:
    image = Image.new("RGBA", (40, 30), (0, 0, 0, 0))
    ImageDraw.Draw(image).rectangle((5, 5, 24, 14), fill=(255, 0, 0, 255))
    place = _save(tmp_path / "a.png", image)
    assert metric("check_image_size")(place, {"height": 30}) == 1.0
    assert metric("check_image_size")(place, {"height": 10, "width": 20, "ignore_transparent": True}) == 1.0
    assert metric("check_image_size")(place, {"height": 31}) == 0.0


def test_check_image_file_size_below_the_limit(tmp_path: Path) -> None:
    place = _save(tmp_path / "a.png", _photo())
    size = Path(place).stat().st_size
    assert metric("check_image_file_size")(place, {"max_size": size + 1}) == 1.0
    assert metric("check_image_file_size")(place, {"max_size": size}) == 0.0


def test_check_green_background_object_must_stay(tmp_path: Path) -> None:
    def picture(back: str, thing: str) -> Image.Image:
        image = Image.new("RGB", (60, 60), back)
        ImageDraw.Draw(image).rectangle((20, 20, 40, 40), fill=thing)
        return image

    gold = _save(tmp_path / "gold.png", picture("white", "red"))
    assert metric("check_green_background")(_save(tmp_path / "a.png", picture("green", "red")), gold) == 1.0
    assert metric("check_green_background")(_save(tmp_path / "b.png", picture("green", "green")), gold) == 0.0
    assert metric("check_green_background")(_save(tmp_path / "c.png", picture("white", "red")), gold) == 0.0


@pytest.mark.parametrize(
    ("name", "color", "good", "bad"),
    [
        ("check_textbox_on_leftside", "black", (1, 20, 30, 40), (10, 20, 40, 40)),
        ("check_triangle_position", "yellow", (45, 45, 55, 55), (30, 30, 40, 40)),
    ],
)
def test_position_metrics_pass_and_near_miss(
    name: str, color: str, good: tuple[int, ...], bad: tuple[int, ...], tmp_path: Path
) -> None:
    for box, wanted in ((good, 1.0), (bad, 0.0)):
        image = Image.new("RGB", (100, 100), "white")
        ImageDraw.Draw(image).rectangle(box, fill=color)
        assert metric(name)(_save(tmp_path / "a.png", image)) == wanted


# --- PDF -------------------------------------------------------------------------------------------------------------


def _pdf(place: Path, *texts: str) -> str:
    """A page for each text, written by hand: nothing else here makes PDF text."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in texts:
        stream = f"BT /F1 24 Tf 20 100 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {len(objects)} 0 R >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    tail = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    place.write_bytes(data + tail.encode() + end.encode())
    return str(place)


def test_compare_zip_files_pdf_files_by_their_text(tmp_path: Path) -> None:
    gold, other = (Path(_pdf(tmp_path / f"{name}.pdf", text)).read_bytes() for name, text in (("a", "Hello world"), ("b", "Bye")))
    # Applications write a time and an identifier into each export.
    again = gold + b"\n% another time\n"
    places = {}
    for name, data in {"gold": gold, "again": again, "other": other, "broken": b"%PDF-1.4"}.items():
        places[name] = str(tmp_path / f"{name}.zip")
        with zipfile.ZipFile(places[name], "w") as archive:
            archive.writestr("paper.PDF", data)
            archive.writestr("notes.txt", "x")
    assert metric("compare_zip_files")(places["again"], places["gold"]) == 1.0
    assert metric("compare_zip_files")(places["other"], places["gold"]) == 0.0
    assert metric("compare_zip_files")(places["broken"], places["gold"]) == 0.0


def test_pdf_metrics_pass_and_near_miss(tmp_path: Path) -> None:
    gold, same = _pdf(tmp_path / "gold.pdf", "Hello world", "Second page"), _pdf(tmp_path / "a.pdf", "Hello world", "Second page")
    other = _pdf(tmp_path / "b.pdf", "Something else")
    assert metric("compare_pdfs")(same, gold) == 1.0
    assert metric("compare_pdfs")(other, gold) < 0.7
    assert metric("check_pdf_pages")(same, {"relation": "eq", "ref_value": 2}) == 1.0
    assert metric("check_pdf_pages")(other, {"relation": "ge", "ref_value": 2}) == 0.0
    assert metric("compare_pdf_images")(same, gold) == 1.0
    assert metric("compare_pdf_images")(_pdf(tmp_path / "c.pdf", "Hello world", "XXXX XXXXXX XX"), gold) == 0.5
    (tmp_path / "gold.json").write_text('{"a": "Second"}')
    assert metric("is_gold_text_included_in_pdf")(same, str(tmp_path / "gold.json")) == 1.0
    assert metric("is_gold_text_included_in_pdf")(other, str(tmp_path / "gold.json")) == 0.0
    (tmp_path / "bad.pdf").write_bytes(b"%PDF")
    with pytest.raises(BrokenFile):
        metric("compare_pdfs")(str(tmp_path / "bad.pdf"), gold)


# --- sound and film --------------------------------------------------------------------------------------------------


def _tune(place: Path, *notes: float, volume: float = 0.5) -> str:
    with wave.open(str(place), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        for note in notes:
            samples = [int(32767 * volume * math.sin(2 * math.pi * note * step / 16000)) for step in range(8000)]
            sound.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return str(place)


def test_compare_audios_same_tune_quieter_and_another(tmp_path: Path) -> None:
    gold = _tune(tmp_path / "gold.wav", 440, 880, 660)
    assert metric("compare_audios")(gold, gold) == 1.0
    assert metric("compare_audios")(_tune(tmp_path / "a.wav", 440, 880, 660, volume=0.4), gold) > 0.95
    assert metric("compare_audios")(_tune(tmp_path / "b.wav", 3000, 200, 1500), gold) < 0.6
    assert metric("compare_audios")(_tune(tmp_path / "c.wav", 440), gold) == 0.0


def _constant(place: Path, sample: float) -> str:
    """One and a half seconds of one sample."""
    data = struct.pack("<24000f", *[sample] * 24000)
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, 16000, 64000, 4, 32) + b"data" + struct.pack("<I", len(data))
    place.write_bytes(b"RIFF" + struct.pack("<I", 28 + len(head) + len(data)) + head + data)
    return str(place)


def test_compare_audios_sound_that_is_no_number_is_not_alike(tmp_path: Path) -> None:
    """Any comparison with what is no number is false, and the smaller of it and 1 is 1."""
    gold = _tune(tmp_path / "gold.wav", 440, 880, 660)
    assert metric("compare_audios")(_constant(tmp_path / "loud.wav", 3e38), gold) < 0.6
    for sample in (math.nan, math.inf):
        with pytest.raises(BrokenFile, match="no numbers"):
            metric("compare_audios")(_constant(tmp_path / "made.wav", sample), gold)


def _film(place: Path, *colors: str) -> str:
    import av

    with av.open(str(place), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for color in colors:
            image = Image.new("RGB", (64, 48), "black")
            ImageDraw.Draw(image).rectangle((0, 0, 31, 47) if color == "left" else (32, 0, 63, 47), fill="white")
            for packet in stream.encode(av.VideoFrame.from_image(image)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return str(place)


def test_compare_videos_picture_by_picture(tmp_path: Path) -> None:
    gold = _film(tmp_path / "gold.mp4", "left", "right", "left")
    assert metric("compare_videos")(_film(tmp_path / "a.mp4", "left", "right", "left"), gold) == 1.0
    assert metric("compare_videos")(_film(tmp_path / "b.mp4", "left", "right", "right"), gold) == 0.0


def test_check_mp3_meta_tags_by_rule(tmp_path: Path) -> None:
    import mutagen.id3

    tags = mutagen.id3.ID3()
    tags.add(mutagen.id3.TIT2(encoding=3, text="Title"))
    tags.save(str(tmp_path / "a.mp3"))
    assert metric("check_mp3_meta")(str(tmp_path / "a.mp3"), {"TIT2": {"method": "eq", "ref": "Title"}}) == 1.0
    assert metric("check_mp3_meta")(str(tmp_path / "a.mp3"), {"title": {"method": "eq", "ref": "Title"}}) == 1.0
    assert metric("check_mp3_meta")(str(tmp_path / "a.mp3"), {"title": {"method": "eq", "ref": "Titel"}}) == 0.0
    assert metric("check_mp3_meta")(str(tmp_path / "a.mp3"), {"artist": {"method": "eq", "ref": "Title"}}) == 0.0
    assert metric("check_mp3_meta")(str(tmp_path / "a.mp3"), {"TPE1": {"method": "eq", "ref": "Title"}}) == 0.0


def test_check_green_background_no_background_before_pays_nothing(tmp_path: Path) -> None:
    place = _save(tmp_path / "photo.png", _photo())
    assert metric("check_green_background")(place, place) == 0.0


def test_compare_images_with_a_base_is_measured_in_grey(tmp_path: Path) -> None:
    photo, grey = _save(tmp_path / "photo.png", _photo()), _save(tmp_path / "grey.png", _photo().convert("L"))
    assert metric("compare_images")(grey, photo) < 0.9
    assert metric("compare_images")(grey, photo, reference_base_result=0.5) == 1.0
