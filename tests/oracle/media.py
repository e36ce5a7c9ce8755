"""Pictures, PDF files, archives, books, sound and film."""

from __future__ import annotations

import io
import math
import struct
import wave
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from tests.oracle.pairs import Judge, Pair, broken, each_alone, each_with_base, write


def photo() -> Image.Image:
    """A picture with colours, edges and a left and a right that differ."""
    rows, columns = np.mgrid[0:60, 0:80]
    pixels = np.stack([60 + columns, 80 + rows, 150 - rows // 2], axis=2).astype(np.uint8)
    image = Image.fromarray(pixels)
    ImageDraw.Draw(image).rectangle((10, 10, 25, 40), fill=(200, 60, 60))
    return image


def _noise(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (image.height, image.width, 3), dtype=np.uint8))


def _saturated(image: Image.Image) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    return Image.merge("HSV", (hue, saturation.point(lambda level: min(255, level + 40)), value)).convert("RGB")


def _framed(image: Image.Image) -> Image.Image:
    large = Image.new("RGBA", (120, 100), (0, 0, 0, 0))
    large.paste(image, (20, 20))
    return large


def _drawn(background: str, box: tuple[int, int, int, int], fill: str) -> Callable[[Image.Image], Image.Image]:
    def draw(image: Image.Image) -> Image.Image:
        fresh = Image.new("RGB", image.size, background)
        ImageDraw.Draw(fresh).rectangle(box, fill=fill)
        return fresh

    return draw


EDITS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "base": lambda image: image,
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "noise": _noise,
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.4),
    "less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.6),
    "more colour": _saturated,
    "less colour": lambda image: ImageEnhance.Color(image).enhance(0.5),
    "grey": lambda image: image.convert("L"),
    "palette": lambda image: image.quantize(64),
    "palette of four": lambda image: image.quantize(4),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
    "sharper": lambda image: image.filter(ImageFilter.UnsharpMask(2, 200)),
    "larger": lambda image: image.resize((160, 120), Image.Resampling.BICUBIC),
    "smaller": lambda image: image.resize((40, 30), Image.Resampling.BICUBIC),
    "transparent frame": _framed,
    "one pixel": lambda image: _one_pixel(image),
    "with alpha": lambda image: image.convert("RGBA"),
    "tiny": lambda image: image.resize((5, 5)),
    "triangle in the middle": _drawn("white", (30, 20, 50, 40), "yellow"),
    "triangle at the side": _drawn("white", (0, 0, 20, 20), "yellow"),
    "text at the left": _drawn("white", (1, 20, 20, 30), "black"),
    "text in the middle": _drawn("white", (30, 20, 50, 30), "black"),
    "green with an object": _drawn("lime", (30, 20, 50, 30), "black"),
    "white with an object": _drawn("white", (30, 20, 50, 30), "black"),
}


def _one_pixel(image: Image.Image) -> Image.Image:
    changed = image.copy()
    changed.putpixel((5, 5), (0, 0, 0))
    return changed


def pictures(folder: Path) -> Iterator[Pair]:
    """Pictures."""

    def saved(edit: Callable[[Image.Image], Image.Image]) -> Callable[[Path], Any]:
        return lambda place: edit(photo()).save(place)

    photo().save(folder / "whole.png")
    contents: dict[str, Any] = {name: saved(edit) for name, edit in EDITS.items()}
    files = write(folder / "pictures", ".png", {**contents, **broken((folder / "whole.png").read_bytes())})
    photo().save(folder / "photo.jpg", quality=80)
    photo().save(folder / "photo.gif")
    files |= {"jpeg": str(folder / "photo.jpg"), "gif": str(folder / "photo.gif")}
    yield from each_with_base(
        (
            *(
                Judge(name)
                for name in (
                    "compare_images",
                    "compare_image_list",
                    "check_structure_sim",
                    "check_file_exists_and_structure_sim",
                    "check_structure_sim_resized",
                    "check_image_mirror",
                    "check_brightness_decrease_and_structure_sim",
                    "check_saturation_increase_and_structure_sim",
                    "check_contrast_increase_and_structure_sim",
                    "check_sharper",
                    "check_palette_and_structure_sim",
                    "check_green_background",
                )
            ),
            Judge("compare_images", {"reference_base_result": 0.11}, word="base"),
        ),
        files,
        every=3,
    )
    yield from each_alone(
        (
            Judge("check_textbox_on_leftside"),
            Judge("check_triangle_position"),
            Judge("check_image_size", rules={"height": 60, "width": 80}),
            Judge("check_image_size", rules={"height": 60}, word="one"),
            Judge("check_image_size", rules={"width": 80, "ignore_transparent": True}, word="transparent"),
            Judge("check_image_file_size", rules={"max_size": 1000}),
            Judge("check_image_file_size", rules={"max_size": 10**6}, word="large"),
        ),
        files,
    )


# --- PDF -------------------------------------------------------------------------------------------------------------


def pdf(*texts: str) -> bytes:
    """A page for each text."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in texts:
        stream = f"BT /F1 24 Tf 20 100 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        content = f"/Resources << /Font << /F1 3 0 R >> >> /Contents {len(objects)} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] {content} >>")
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    tail = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
    return data + f"{tail}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n".encode()


def _picture_pdf(*edits: str) -> bytes:
    data = io.BytesIO()
    pages = [EDITS[name](photo()).convert("RGB") for name in edits]
    pages[0].save(data, "PDF", save_all=True, append_images=pages[1:])
    return data.getvalue()


PDFS: dict[str, bytes | str] = {
    "base": pdf("Hello world", "Second page"),
    "written again": pdf("Hello world", "Second page") + b"\n% again\n",
    "near miss": pdf("Hello worlds", "Second page"),
    "other": pdf("Something else"),
    "page less": pdf("Hello world"),
    "page more": pdf("Hello world", "Second page", "Third"),
    "picture": _picture_pdf("base"),
    "same picture": _picture_pdf("base"),
    "other picture": _picture_pdf("upside down"),
    "two pictures": _picture_pdf("base", "noise"),
    **broken(pdf("Hello world")),
}


def pdfs(folder: Path) -> Iterator[Pair]:
    """PDF files."""
    files = write(folder / "pdfs", ".pdf", PDFS)
    yield from each_with_base((Judge("compare_pdfs"), Judge("compare_pdf_images")), files)
    for name in ("same picture", "other picture", "two pictures"):
        yield Pair("compare_pdf_images", f"{name} = picture", (files[name], files["picture"]))
    yield Pair("compare_pdfs", "lists", ([files["base"], files["other"]], [files["base"], files["base"]]))
    for relation in ("eq", "ge", "lt"):
        yield from each_alone([Judge("check_pdf_pages", rules={"relation": relation, "ref_value": 2}, word=relation)], files)
    for number, text in enumerate(('{"a": "Hello", "b": "Second"}', '{"a": "Third"}', "{}")):
        place = folder / f"texts-{number}.json"
        place.write_text(text)
        yield from each_alone([Judge("is_gold_text_included_in_pdf", rules=str(place), word=str(number))], files)


# --- archives --------------------------------------------------------------------------------------------------------


def _zip(members: Mapping[str, bytes | str], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


_PDF = pdf("Hello world")
ZIPS: dict[str, bytes | str] = {
    "base": _zip({"a.txt": "x\n", "b.txt": "y\n"}),
    "stored": _zip({"a.txt": "x\n", "b.txt": "y\n"}, compression=0),
    "other order": _zip({"b.txt": "y\n", "a.txt": "x\n"}),
    "other content": _zip({"a.txt": "x\n", "b.txt": "z\n"}),
    "file more": _zip({"a.txt": "x\n", "b.txt": "y\n", "c.txt": ""}),
    "file less": _zip({"a.txt": "x\n"}),
    "other name": _zip({"a.txt": "x\n", "B.txt": "y\n"}),
    "folder": _zip({"in/a.txt": "x\n", "in/b.txt": "y\n"}),
    "windows line ends": _zip({"a.txt": "x\r\n", "b.txt": "y\r\n"}),
    "pdf": _zip({"a.pdf": _PDF}),
    "pdf written again": _zip({"a.pdf": _PDF + b"\n% again\n"}),
    "other pdf": _zip({"a.pdf": pdf("Bye")}),
    "nothing": _zip({}),
    **broken(_zip({"a.txt": "x\n"})),
}
_OPF = '<package xmlns="http://www.idpf.org/2007/opf">\n<dc:identifier xmlns:dc="http://purl.org/dc/elements/1.1/">{}</dc:identifier>\n<title>{}</title>\n</package>'
_EPUB: dict[str, bytes | str] = {
    "mimetype": "application/epub+zip",
    "toc.ncx": '<ncx>\n<navPoint id="1"/>\n<text>One</text>\n</ncx>',
    "content.opf": _OPF.format("1", "T"),
    "page.html": "<html><body><p>Hello</p><p>World</p></body></html>",
}
EPUBS: dict[str, bytes | str] = {
    "base": _zip(_EPUB),
    "other identifier": _zip({**_EPUB, "content.opf": _OPF.format("2", "T")}),
    "other title": _zip({**_EPUB, "content.opf": _OPF.format("1", "U")}),
    "other page": _zip({**_EPUB, "page.html": "<html><body><p>Hello</p><p>You</p></body></html>"}),
    "line breaks": _zip({**_EPUB, "page.html": "<html>\n<body><p>Hello</p>\n<p>World</p></body></html>"}),
    "page less": _zip({name: text for name, text in _EPUB.items() if name != "page.html"}),
    "page more": _zip({**_EPUB, "q.html": "<html><body><p>More</p></body></html>"}),
    **broken(_zip(_EPUB)),
}


def archives(folder: Path) -> Iterator[Pair]:
    """Archives and books."""
    files = write(folder / "zips", ".zip", ZIPS)
    yield from each_with_base((Judge("compare_zip_files"),), files)
    for name in files:
        for other in dict.fromkeys(("base", "pdf", name)):
            # The published function unpacks beside the archive: each call has files of its own.
            for kind in ("text", "pdf") if "pdf" in (name, other) else ("text",):
                places = write(
                    folder / f"archive {name} {other} {kind}",
                    ".zip",
                    {side: Path(files[which]).read_bytes() for side, which in (("found", name), ("gold", other))},
                )
                yield Pair("compare_archive", f"{name} = {other} ({kind})", tuple(places.values()), {"file_type": kind})
    yield from each_with_base((Judge("compare_epub"),), write(folder / "epubs", ".epub", EPUBS))


# --- sound and film --------------------------------------------------------------------------------------------------


def _tune(*notes: float, volume: float = 0.5, rate: int = 16000) -> Callable[[Path], Any]:
    def write_tune(place: Path) -> None:
        with wave.open(str(place), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(rate)
            for note in notes:
                samples = [int(32767 * volume * math.sin(2 * math.pi * note * step / rate)) for step in range(rate // 2)]
                sound.writeframes(struct.pack(f"<{len(samples)}h", *samples))

    return write_tune


def _film(*sides: str, fps: int = 5) -> Callable[[Path], Any]:
    def write_film(place: Path) -> None:
        import av

        with av.open(str(place), "w", format="mp4") as container:
            stream = container.add_stream("mpeg4", rate=fps)
            stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
            for side in sides:
                image = EDITS[side](photo()).convert("RGB").resize((160, 120))
                container.mux(stream.encode(av.VideoFrame.from_image(image)))
            container.mux(stream.encode())

    return write_film


def _mp3(**tags: str) -> Callable[[Path], Any]:
    def write_mp3(place: Path) -> None:
        import av
        import mutagen.easyid3

        sound = place.with_suffix(".wav")
        _tune(440)(sound)
        with av.open(str(sound)) as source, av.open(str(place), "w", format="mp3") as target:
            stream = target.add_stream("libmp3lame", rate=16000)
            for frame in source.decode(audio=0):
                target.mux(stream.encode(frame))
            target.mux(stream.encode())
        if tags:
            words = mutagen.easyid3.EasyID3()
            words.update(tags)
            words.save(place)

    return write_mp3


def sounds(folder: Path) -> Iterator[Pair]:
    """Sound and film."""
    tunes: dict[str, Any] = {
        "base": _tune(440, 880, 660),
        "quieter": _tune(440, 880, 660, volume=0.3),
        "other tune": _tune(3000, 200, 1500),
        "shorter": _tune(440),
        "other rate": _tune(440, 880, 660, rate=22050),
        "silent": _tune(440, 880, 660, volume=0.0),
        "nothing": _tune(),
        "empty": b"",
        "no sound": b"x" * 100,
    }
    yield from each_with_base((Judge("compare_audios"),), write(folder / "tunes", ".wav", tunes))
    films: dict[str, Any] = {
        "base": _film(*["base"] * 12),
        "mirrored": _film(*["mirrored"] * 12),
        "noise": _film(*["noise"] * 12),
        "shorter": _film(*["base"] * 6),
        "a little darker": _film(*["darker"] * 12),
        "one frame": _film(*["base"] * 11, "noise"),
        "empty": b"",
        "no film": b"x" * 100,
    }
    judges = (Judge("compare_videos"), Judge("compare_videos", {"max_frames_to_check": 5}, word="five"))
    yield from each_with_base(judges, write(folder / "films", ".mp4", films))
    songs: dict[str, Any] = {
        "tagged": _mp3(artist="A", title="T"),
        "other": _mp3(artist="B", title="T"),
        "one tag": _mp3(artist="A"),
        "longer": _mp3(artist="A B", title="T"),
        "no tags": _mp3(),
        "empty": b"",
        "no sound": b"x" * 100,
    }
    wishes: dict[str, dict[str, Any]] = {
        "both": {"artist": {"method": "eq", "ref": "A"}, "title": {"method": "eq", "ref": "T"}},
        "one": {"artist": {"method": "re", "ref": "^A"}},
        "missing": {"album": {"method": "eq", "ref": ""}},
        "unlike": {"artist": {"method": "ne", "ref": "B"}},
        "nothing": {},
    }
    judges = tuple(Judge("check_mp3_meta", rules=rule, word=name) for name, rule in wishes.items())
    yield from each_alone(judges, write(folder / "songs", ".mp3", songs))
