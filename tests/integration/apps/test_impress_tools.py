"""Impress's API on one real desktop: every method's effect read back from the saved file, and what bad arguments give."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from lxml import etree
from PIL import Image
from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.shapes import MSO_SHAPE_TYPE
from pptx.enum.text import PP_ALIGN
from pptx.util import Pt

from computerrl.common.actions import parse_action
from computerrl.common.messages import Action, Evaluation, Observation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers.guest_driver import GuestDriver
from tests.support.data.office_files import NUM_SLIDES, many_slides, picture, slides, sound
from tests.support.desktops import SharedDesktops

A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
OOR = "{http://openoffice.org/2001/registry}"


@pytest.fixture(scope="module")
def desktop(shared_desktops: SharedDesktops) -> GuestDriver:
    return shared_desktops.get("full").driver


TITLE, POINTS, FREE, PICTURE, TABLE = range(5)
shared = {"used": NUM_SLIDES}
"""How many slides of the deck of many were given out; all of them when another one is open."""


def open_slides(desktop: GuestDriver, data: bytes | None = None) -> Observation:
    shared["used"] = NUM_SLIDES
    steps = (
        SetupStep("put_file", {"path": "deck.pptx", "data": data or slides()}),
        SetupStep("put_file", {"path": "red.png", "data": picture()}),
        SetupStep("put_file", {"path": "beep.wav", "data": sound()}),
        SetupStep("write_file", {"path": "no.png", "text": "no picture"}),
        SetupStep("write_file", {"path": "taken.odp", "text": "taken"}),
        SetupStep("open", {"path": "deck.pptx"}),
    )
    task = TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {}))
    return desktop.reset(task)[1]


@pytest.fixture
def slide(desktop: GuestDriver) -> int:
    """The number of a slide that no test has touched: opening a deck for each test would take most of the time."""
    if shared["used"] >= NUM_SLIDES:
        open_slides(desktop, many_slides())
        shared["used"] = 0
    shared["used"] += 1
    return shared["used"]


def act(desktop: GuestDriver, text: str) -> str:
    result = desktop.step(parse_action(text))
    assert result.action_error == "", (text, result.action_error)
    return result.observation.result


def saved(desktop: GuestDriver):
    act(desktop, "impress.save()")
    return Presentation(io.BytesIO(desktop.get("file_bytes", path="deck.pptx")))


def box_of(desktop: GuestDriver, slide: int, box: int):
    """A box as the saved file has it."""
    return list(saved(desktop).slides[slide - 1].shapes)[box]


def runs(box) -> list:
    return [run for paragraph in box.text_frame.paragraphs for run in paragraph.runs]


def xml(part) -> str:
    return etree.tostring(part._element).decode()


# --- what is on screen ---


def test_opened_presentation_shows_its_texts_and_not_the_sheet_behind_it(desktop: GuestDriver) -> None:
    shown = open_slides(desktop)
    assert shown.app == "impress" and "deck.pptx" in shown.window_title
    content = [(element.role, element.text) for element in shown.elements if element.in_content]
    assert content[:2] == [("paragraph", "Opening"), ("paragraph", "by the team")]
    assert [text for role, text in content if role == "list-item"] == ["Opening", "Points", "Slide 3"]
    assert not any("sheet" in text.lower() for _, text in content)
    target = next(element for element in shown.elements if element.text == "by the team")
    act(desktop, f"double_click({target.number})")
    act(desktop, 'key("ctrl+a")')
    act(desktop, 'type("typed")')
    act(desktop, 'key("escape")')
    assert box_of(desktop, 1, 1).text_frame.text == "typed"


def test_reset_ends_a_running_show(desktop: GuestDriver, slide: int) -> None:
    act(desktop, 'key("f5")')
    assert open_slides(desktop).app == "impress"
    assert act(desktop, "impress.get_slide_count()") == "3"


def test_slides_are_listed_shown_counted_and_copied(desktop: GuestDriver) -> None:
    open_slides(desktop)
    shown = desktop.step(parse_action("impress.go_to_slide(2)")).observation
    assert any(element.text == "free text" for element in shown.elements if element.in_content)
    lines = act(desktop, "impress.env_info()").split("\n")
    assert lines[:3] == ["deck.pptx: 3 slides, current: 2", "Slide 1:", "  Box 0 (title): Opening"]
    assert "  Box 1 (outline): alpha\\nbeta\\ngamma" in lines and "  Box 4 (table): left cell | right cell" in lines
    assert "  Box 3 (picture): " in lines and "  Box 0 (title): (empty)" in lines
    assert act(desktop, "impress.duplicate_slide(1)") == "slide 4 is a copy of slide 1"
    assert act(desktop, "impress.get_slide_count()") == "4"
    titles = [slide.shapes.title.text for slide in saved(desktop).slides]
    assert titles == ["Opening", "Points", "", "Opening"]
    assert "current: 2" in act(desktop, "impress.env_info()")


def test_set_slide_background_of_one_and_of_all_slides_and_the_numbers_colour(desktop: GuestDriver) -> None:
    open_slides(desktop)
    act(desktop, 'impress.set_slide_background(2, "#00FF00")')
    act(desktop, 'impress.set_slide_number_color("red")')
    deck = saved(desktop)
    assert deck.slides[1].background.fill.fore_color.rgb == RGBColor(0, 255, 0)
    assert "00ff00" not in xml(deck.slides[0]).lower()
    master = deck.slides[2].slide_layout.slide_master
    numbers = [xml(box) for box in (*master.placeholders, *deck.slides[2].placeholders) if "sldNum" in box._element.xml]
    # The slide's own number says nothing of colour: it is its master's.
    assert len(numbers) == 2 and "ff0000" in numbers[0] and "srgbClr" not in numbers[1]
    act(desktop, 'impress.set_slide_background(image_path="red.png")')
    for slide in saved(desktop).slides:
        assert list(slide._element.find(f"{P}cSld").find(f"{P}bg").iter(f"{A}blip"))
    act(desktop, 'impress.set_slide_background(color="blue")')
    assert {slide.background.fill.fore_color.rgb for slide in saved(desktop).slides} == {RGBColor(0, 0, 255)}


def test_set_slide_orientation_turns_slides_and_keeps_boxes_on_them(desktop: GuestDriver) -> None:
    open_slides(desktop)
    act(desktop, 'impress.set_slide_orientation("portrait")')
    deck = saved(desktop)
    assert deck.slide_width < deck.slide_height
    for slide in deck.slides:
        for box in slide.shapes:
            assert box.left + box.width <= deck.slide_width * 1.01 and box.top + box.height <= deck.slide_height * 1.01
    assert "already" in act(desktop, 'impress.set_slide_orientation("portrait")')
    act(desktop, 'impress.set_slide_orientation("landscape")')
    deck = saved(desktop)
    assert deck.slide_width > deck.slide_height


# --- texts and boxes ---


def test_write_text_replaces_appends_and_formats(desktop: GuestDriver, slide: int) -> None:
    act(desktop, f'impress.write_text("Title\\n\U0001f600 second", {slide}, {TITLE}, bold=True, italic=True, size=30)')
    act(desktop, f'impress.write_text(" more", {slide}, {TITLE}, append=True)')
    box = box_of(desktop, slide, TITLE)
    assert [paragraph.text for paragraph in box.text_frame.paragraphs] == ["Title", "\U0001f600 second more"]
    styled = [run for run in runs(box) if run.font.bold and run.font.italic and run.font.size == Pt(30)]
    assert "".join(run.text for run in styled) == "Title\U0001f600 second"
    assert runs(box)[-1].text == " more" and not runs(box)[-1].font.bold and not runs(box)[-1].font.italic


def test_write_text_fills_an_empty_placeholder(desktop: GuestDriver) -> None:
    open_slides(desktop)
    act(desktop, 'impress.write_text("filled", 3, 0, append=True)')
    assert saved(desktop).slides[2].shapes.title.text == "filled"


def test_set_style_switches_only_what_is_said(desktop: GuestDriver, slide: int) -> None:
    act(desktop, f"impress.set_style({slide}, {FREE}, bold=True, underline=True)")
    run = runs(box_of(desktop, slide, FREE))[0]
    assert run.font.bold and run.font.underline and not run.font.italic
    act(desktop, f"impress.set_style({slide}, {FREE}, italic=True, underline=False)")
    run = runs(box_of(desktop, slide, FREE))[0]
    assert run.font.bold and run.font.italic and not run.font.underline


def test_set_slide_font_and_colours_also_in_tables(desktop: GuestDriver, slide: int) -> None:
    act(desktop, f'impress.set_slide_font({slide}, "DejaVu Sans")')
    act(desktop, f'impress.set_text_color({slide}, {POINTS}, "#0000FF")')
    act(desktop, f'impress.set_text_color({slide}, {TABLE}, "red")')
    act(desktop, f'impress.set_background_color({slide}, {FREE}, "yellow")')
    boxes = list(saved(desktop).slides[slide - 1].shapes)
    cell = boxes[TABLE].table.cell(0, 1)
    assert {run.font.name for box in (*boxes[:PICTURE], cell) for run in runs(box)} == {"DejaVu Sans"}
    assert [run.font.color.rgb for run in runs(boxes[POINTS])] == [RGBColor(0, 0, 255)] * 3
    assert runs(cell)[0].font.color.rgb == RGBColor(255, 0, 0)
    assert boxes[FREE].fill.fore_color.rgb == RGBColor(255, 255, 0)


def test_set_text_strikethrough_of_lines(desktop: GuestDriver, slide: int) -> None:
    def struck() -> list[bool]:
        return [run._r.rPr.get("strike") == "sngStrike" for run in runs(box_of(desktop, slide, POINTS))]

    act(desktop, f"impress.set_text_strikethrough({slide}, {POINTS}, [0, 2], True)")
    assert struck() == [True, False, True]
    act(desktop, f"impress.set_text_strikethrough({slide}, {POINTS}, [0], False)")
    assert struck() == [False, False, True]


def test_set_textbox_alignment(desktop: GuestDriver, slide: int) -> None:
    for side in ("center", "right", "justify"):
        act(desktop, f'impress.set_textbox_alignment({slide}, {POINTS}, "{side}")')
        paragraphs = box_of(desktop, slide, POINTS).text_frame.paragraphs
        assert {paragraph.alignment for paragraph in paragraphs} == {PP_ALIGN[side.upper()]}


def test_position_box_in_all_nine_places(desktop: GuestDriver, slide: int) -> None:
    for place in ("left", "right", "center", "top", "bottom", "top-left", "top-right", "bottom-left", "bottom-right"):
        act(desktop, f'impress.position_box({slide}, {FREE}, "{place}")')
        deck = saved(desktop)
        box = list(deck.slides[slide - 1].shapes)[FREE]
        across = (box.left + box.width / 2) / deck.slide_width
        down = (box.top + box.height / 2) / deck.slide_height
        assert (across < 0.4) == ("left" in place) and (across > 0.6) == ("right" in place), (place, across)
        assert (down < 0.4) == ("top" in place) and (down > 0.6) == ("bottom" in place), (place, down)


def test_delete_content_removes_the_box(desktop: GuestDriver, slide: int) -> None:
    assert "picture" in act(desktop, f"impress.delete_content({slide}, {PICTURE})")
    act(desktop, f"impress.delete_content({slide}, {POINTS})")
    shapes = saved(desktop).slides[slide - 1].shapes
    assert len(shapes) == 3 and not any(box.shape_type == MSO_SHAPE_TYPE.PICTURE for box in shapes)


# --- files ---


def test_save_as_other_formats_which_open_again(desktop: GuestDriver) -> None:
    open_slides(desktop)
    act(desktop, 'impress.save_as("copy.pdf")')
    assert desktop.get("file_bytes", path="copy.pdf").startswith(b"%PDF-")
    act(desktop, 'impress.save_as("new.pptx")')
    assert len(Presentation(io.BytesIO(desktop.get("file_bytes", path="new.pptx"))).slides) == 3
    assert act(desktop, "impress.save()") == "saved new.pptx"
    act(desktop, 'impress.save_as("taken.odp", overwrite=True)')
    with zipfile.ZipFile(io.BytesIO(desktop.get("file_bytes", path="taken.odp"))) as archive:
        assert archive.read("mimetype") == b"application/vnd.oasis.opendocument.presentation"
    data = desktop.get("file_bytes", path="taken.odp")
    steps = SetupStep("put_file", {"path": "open.odp", "data": data}), SetupStep("open", {"path": "open.odp"})
    shown = desktop.reset(TaskInstance("x", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {})))[1]
    assert shown.app == "impress" and "Opening" in [element.text for element in shown.elements if element.in_content]
    act(desktop, 'impress.write_text("Changed", 1, 0)')
    assert act(desktop, "impress.save()") == "saved open.odp"
    with zipfile.ZipFile(io.BytesIO(desktop.get("file_bytes", path="open.odp"))) as archive:
        content = archive.read("content.xml")
    assert b">Changed<" in content and b">Opening<" not in content  # the slide keeps that as its name


def test_export_to_image_of_one_slide_and_of_all(desktop: GuestDriver) -> None:
    open_slides(desktop)
    for name in ("png", "jpeg", "gif", "bmp", "tiff"):
        act(desktop, f'impress.export_to_image("slide.{name}", "{name}", 2)')
        image = Image.open(io.BytesIO(desktop.get("file_bytes", path=f"slide.{name}")))
        assert image.format == name.upper() and image.size == (1280, 960)
    act(desktop, 'impress.export_to_image("all", "png")')
    assert {"all_1.png", "all_2.png", "all_3.png"} <= set(desktop.get("folder_listing"))


def test_insert_image_sizes_and_places(desktop: GuestDriver, slide: int) -> None:
    act(desktop, f'impress.insert_image({slide}, "red.png", 5, 3, "top-left")')
    act(desktop, f'impress.insert_image({slide}, "red.png", width=6, position="bottom-right")')
    act(desktop, f'impress.insert_image({slide}, "red.png")')
    deck = saved(desktop)
    pictures = [box for box in deck.slides[slide - 1].shapes if box.shape_type == MSO_SHAPE_TYPE.PICTURE]
    sizes = [tuple(round(value / 360000, 1) for value in (box.width, box.height)) for box in pictures]
    assert sizes == [(4, 2), (5, 3), (6, 3), (5.3, 2.6)]
    assert (pictures[1].left, pictures[1].top) == (0, 0)
    assert abs(pictures[2].left + pictures[2].width - deck.slide_width) < 36000


def test_insert_file_embeds_media_and_plays_it_by_itself(desktop: GuestDriver) -> None:
    open_slides(desktop)
    act(desktop, 'impress.insert_file("beep.wav", 2, "bottom-left", [3, 2], True)')
    act(desktop, "impress.save()")
    with zipfile.ZipFile(io.BytesIO(desktop.get("file_bytes", path="deck.pptx"))) as archive:
        media = [name for name in archive.namelist() if name.endswith(".wav")]
        assert media and archive.read(media[0]) == sound()
        slide = archive.read("ppt/slides/slide2.xml").decode()
    assert ("audioFile" in slide or "videoFile" in slide) and '<p:cmd type="call" cmd="play"' in slide
    act(desktop, 'impress.save_as("deck.odp")')
    with zipfile.ZipFile(io.BytesIO(desktop.get("file_bytes", path="deck.odp"))) as archive:
        assert any(name.endswith("beep.wav") for name in archive.namelist())


def options_of(desktop: GuestDriver) -> dict[str, str]:
    """The office's own options as its profile holds them on the desktop's disk."""
    pending, found = [desktop.pid], {}
    while pending:
        pid = pending.pop()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pending += [int(child) for child in (thread / "children").read_text().split()]
        if Path(f"/proc/{pid}/comm").read_text().strip() == "soffice.bin":
            profile = Path(f"/proc/{pid}/root/home/user/.config/libreoffice/4/user/registrymodifications.xcu")
            for item in etree.fromstring(profile.read_bytes()):
                node = item.get(f"{OOR}path").rpartition("/")[2]
                found |= {f"{node}/{prop.get(f'{OOR}name')}": "".join(prop.itertext()) for prop in item.iter("prop")}
    return found


def test_options_are_changed_and_put_back_by_the_next_task(desktop: GuestDriver, slide: int) -> None:
    assert act(desktop, "impress.configure_auto_save(True, 5)") == "saves by itself every 5 minutes"
    assert act(desktop, "impress.configure_display_settings(use_presenter_view=False)") == "presenter view off"
    now = options_of(desktop)
    assert (now["AutoSave/Enabled"], now["AutoSave/TimeIntervall"], now["Start/EnablePresenterScreen"]) == ("true", "5", "false")
    assert act(desktop, "impress.configure_auto_save(False)") == "does not save by itself"
    assert act(desktop, "impress.configure_display_settings(True, True)") == "presenter view on, monitor 1"
    assert act(desktop, "impress.configure_display_settings(monitor_for_presentation=2)") == "monitor 2"
    act(desktop, "impress.configure_display_settings(False)")
    assert options_of(desktop)["Misc/Display"] == "2"
    open_slides(desktop)
    now = options_of(desktop)
    assert (now["AutoSave/TimeIntervall"], now["Start/EnablePresenterScreen"], now["Misc/Display"]) == ("10", "true", "0")


# --- what does not work ---

BAD = {
    "go_to_slide(0)": "there is no slide 0",
    "duplicate_slide(4)": "there is no slide 4",
    'save_as("taken.odp")': "is there already",
    'save_as("deck.xyz")': "no ending that Impress saves",
    'save_as("nowhere/deck.odp")': "there is no folder nowhere",
    'save_as("../deck.odp")': "outside the folder",
    'export_to_image("a.png", "gif", 1)': "does not end as a gif file",
    'export_to_image("a.png", "png", 9)': "there is no slide 9",
    'export_to_image("none/a.png", "png", 1)': "there is no folder none",
    'write_text("x", 9, 0)': "there is no slide 9",
    'write_text("x", 1, 5)': "slide 1 has no box 5",
    'write_text("x", 1, 0, size=0)': "font size is between",
    'write_text("x", 2, 3)': "is a picture: no text can be written",
    'write_text("x", 2, 4)': "is a table: no text can be written",
    "set_style(1, 0)": "at least one of",
    "set_style(1, -1, bold=True)": "slide 1 has no box -1",
    "set_style(2, 3, bold=True)": "is a picture: it holds no text",
    'set_slide_font(0, "Arial")': "there is no slide 0",
    'set_slide_font(1, "")': "font name is needed",
    'set_text_color(1, 0, "reddish")': "no colour",
    'set_text_color(1, 7, "red")': "slide 1 has no box 7",
    'set_background_color(1, 0, "#12")': "no colour",
    'set_background_color(1, 7, "red")': "slide 1 has no box 7",
    "set_text_strikethrough(2, 1, [3], True)": "has no line 3",
    "set_text_strikethrough(2, 1, [], True)": "line_numbers is empty",
    'set_textbox_alignment(2, 9, "left")': "slide 2 has no box 9",
    'position_box(2, 9, "left")': "slide 2 has no box 9",
    "delete_content(2, 9)": "slide 2 has no box 9",
    'insert_image(1, "none.png")': "there is no file none.png",
    'insert_image(1, "no.png")': "no picture",
    'insert_image(1, "red.png", -1)': "width must lie above 0",
    'insert_image(7, "red.png")': "there is no slide 7",
    'insert_file("none.wav")': "there is no file none.wav",
    'insert_file("red.png", 1)': "no audio or video file",
    'insert_file("beep.wav", 9)': "there is no slide 9",
    'insert_file("beep.wav", 1, size=[1])': "size is [width, height]",
    "set_slide_background(1)": "either color or image_path",
    'set_slide_background(1, "red", "red.png")': "either color or image_path",
    'set_slide_background(9, "red")': "there is no slide 9",
    'set_slide_background(1, image_path="no.png")': "no picture",
    'set_slide_number_color("nope")': "no colour",
    "configure_auto_save(True, 0)": "interval_minutes is between",
    "configure_display_settings()": "at least one of",
    "configure_display_settings(monitor_for_presentation=0)": "monitor_for_presentation is between",
    "configure_display_settings(primary_monitor_only=True, monitor_for_presentation=2)": "must be 1",
}


@pytest.fixture(scope="module")
def untouched(desktop: GuestDriver) -> GuestDriver:
    open_slides(desktop)
    return desktop


@pytest.mark.parametrize("call", list(BAD))
def test_bad_argument_gives_a_clear_error_and_a_healthy_desktop(untouched: GuestDriver, call: str) -> None:
    result = untouched.step(parse_action(f"impress.{call}"))
    assert BAD[call] in result.action_error and len(result.action_error) < 600
    assert result.observation.app == "impress" and untouched.healthy()


def test_bad_arguments_changed_nothing(untouched: GuestDriver) -> None:
    deck, before = saved(untouched), Presentation(io.BytesIO(slides()))
    assert [len(slide.shapes) for slide in deck.slides] == [len(slide.shapes) for slide in before.slides]
