"""Documents and presentations for the tests of the office's tools."""

from __future__ import annotations

import copy
import io
import struct
import wave

from docx import Document
from docx.enum.text import WD_COLOR_INDEX
from PIL import Image
from pptx import Presentation
from pptx.util import Cm

NUM_LINES, NUM_SLIDES = 20, 8


def written(document) -> bytes:
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def add_line(document) -> None:
    """Runs of several formats and two highlighted words."""
    line = document.add_paragraph("The red fox ")
    line.add_run("jumps over").bold = True
    line.add_run(" the ")
    line.add_run("lazy").font.highlight_color = WD_COLOR_INDEX.YELLOW
    line.add_run(" ")
    line.add_run("dog").font.highlight_color = WD_COLOR_INDEX.BRIGHT_GREEN
    line.add_run(".")


def report() -> bytes:
    """Five paragraphs: a heading, a line as above, an empty one, two plain ones; then a table of two cells, which ends it."""
    document = Document()
    document.add_heading("annual report", 1)
    add_line(document)
    document.add_paragraph("")
    document.add_paragraph("Total: 42 apples and 7 pears at NASA's shop")
    document.add_paragraph("last line")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "red cell", "blue cell"
    return written(document)


def lines() -> bytes:
    """Many such lines, for tests that need one each."""
    document = Document()
    for _ in range(NUM_LINES):
        add_line(document)
    return written(document)


def picture(width: int = 200, height: int = 100) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(stream, "PNG")
    return stream.getvalue()


def sound() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(struct.pack("<800h", *([0] * 800)))
    return stream.getvalue()


def add_points(deck) -> None:
    """A slide of title, three points, a text box, a picture, a table: boxes 0 to 4."""
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Points"
    slide.placeholders[1].text = "alpha\nbeta\ngamma"
    slide.shapes.add_textbox(Cm(2), Cm(5), Cm(8), Cm(2)).text_frame.text = "free text"
    slide.shapes.add_picture(io.BytesIO(picture()), Cm(12), Cm(5), Cm(4), Cm(2))
    table = slide.shapes.add_table(1, 2, Cm(2), Cm(9), Cm(10), Cm(2)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "left cell", "right cell"


def slides() -> bytes:
    """1: title and subtitle; 2: as above; 3: an empty title and a slide number."""
    deck = Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[0])
    first.shapes.title.text, first.placeholders[1].text = "Opening", "by the team"
    add_points(deck)
    third = deck.slides.add_slide(deck.slide_layouts[5])
    number = next(box for box in deck.slide_layouts[5].placeholders if "sldNum" in box._element.xml)
    third.shapes._spTree.append(copy.deepcopy(number._element))
    return written(deck)


def many_slides() -> bytes:
    """Many slides as above, for tests that need one each."""
    deck = Presentation()
    for _ in range(NUM_SLIDES):
        add_points(deck)
    return written(deck)
