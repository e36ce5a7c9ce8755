"""GIMP by the agent's API; the effect is read back from the file that GIMP writes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from computerrl.env_server.driver import SetupStep
from tests.support.desktops import Player, SharedDesktops

FILES = SetupStep("files_open", {"folder": "."})


def picture() -> bytes:
    """40 x 20: the left half dark red, the right half light gray, a white corner at the top left."""
    pixels = np.full((20, 40, 3), 200, dtype=np.uint8)
    pixels[:, :20] = (120, 40, 40)
    pixels[:4, :4] = 255
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


PUT = SetupStep("put_file", {"path": "a.png", "data": picture()})
BEGIN = (PUT, SetupStep("open", {"path": "a.png"}))


@pytest.fixture(scope="module")
def player(shared_desktops: SharedDesktops) -> Player:
    return Player(shared_desktops.get("full").driver)


@pytest.fixture(scope="module")
def begun(player: Player) -> Player:
    """One task for all changes, since GIMP's start takes seconds."""
    shown = player.start(*BEGIN)
    assert shown.app == "gimp" and "a.png" in shown.window_title
    return player


@pytest.fixture
def gimp(begun: Player) -> Player:
    """The picture opened anew in that task."""
    assert begun.ask('gimp.open("a.png")').startswith("a.png: 40 x 20 pixels, rgb; layers, top first: Background")
    return begun


def exported(player: Player, path: str = "out.png") -> Image.Image:
    assert player.ask(f'gimp.export("{path}")') == f"exported {path}"
    image = Image.open(io.BytesIO(player.desktop.get("file_bytes", path=path)))
    image.load()
    return image


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


def test_picture_opened_for_a_task_is_on_screen(begun: Player) -> None:
    assert begun.ask("gimp.env_info()") == "a.png: 40 x 20 pixels, rgb; layers, top first: Background"
    assert {"Colors", "Filters"} <= {element.text for element in begun.desktop.observe().elements}


def test_export_gives_the_same_picture_in_each_format(gimp: Player) -> None:
    for path in ("out.png", "out.bmp", "out.tif", "out.jpg"):
        image = exported(gimp, path)
        assert image.size == (40, 20) and abs(pixels(image) - pixels(Image.open(io.BytesIO(picture())))).mean() < 6
    assert gimp.ask('gimp.export("out.xcf")') == "exported out.xcf"
    assert gimp.desktop.get("file_bytes", path="out.xcf").startswith(b"gimp xcf")


def test_scale_and_crop(gimp: Player) -> None:
    assert gimp.ask("gimp.scale(80, 60)").startswith("a.png: 80 x 60 pixels")
    gimp.do("gimp.crop(0, 0, 30, 60)")
    image = exported(gimp)
    assert image.size == (30, 60) and tuple(pixels(image)[50, 25]) == (120, 40, 40)


def test_rotate_and_flip(gimp: Player) -> None:
    gimp.do("gimp.rotate(90)")
    turned = exported(gimp)
    assert turned.size == (20, 40) and tuple(pixels(turned)[0, 19]) == (255, 255, 255)
    gimp.do('gimp.flip("horizontal")')
    assert tuple(pixels(exported(gimp))[0, 0]) == (255, 255, 255)
    gimp.do('gimp.flip("vertical")')
    assert tuple(pixels(exported(gimp))[39, 0]) == (255, 255, 255)


def test_brightness_contrast_and_saturation(gimp: Player) -> None:
    before = pixels(exported(gimp))
    gimp.do("gimp.brightness_contrast(30)")
    brighter = pixels(exported(gimp))
    assert brighter.mean() > before.mean() + 10
    gimp.do("gimp.brightness_contrast(contrast=40)")
    assert pixels(exported(gimp)).std() > brighter.std() + 2
    red = pixels(exported(gimp))[10, 10]
    gimp.do("gimp.saturation(-100)")
    gray = pixels(exported(gimp))[10, 10]
    assert np.ptp(red) > 40 and np.ptp(gray) < 4


def test_modes(gimp: Player) -> None:
    assert ", gray;" in gimp.ask('gimp.set_mode("gray")')
    assert exported(gimp).mode in ("L", "LA")
    assert gimp.ask('gimp.set_mode("gray")') == "it is gray already"
    assert ", rgb;" in gimp.ask('gimp.set_mode("rgb")')
    assert ", indexed;" in gimp.ask('gimp.set_mode("indexed")')
    assert "indexed" in gimp.refusal("gimp.blur(2)") and "colour" in gimp.refusal("gimp.saturation(10)")


def test_blur_fill_text_and_undo(gimp: Player) -> None:
    edge = pixels(exported(gimp))[10, 19:21, 1]
    gimp.do("gimp.blur(6)")
    assert np.ptp(pixels(exported(gimp))[10, 19:21, 1]) < np.ptp(edge) / 2
    gimp.do("gimp.undo()")
    assert np.ptp(pixels(exported(gimp))[10, 19:21, 1]) == np.ptp(edge)
    gimp.do('gimp.fill("#0000ff")')
    assert tuple(pixels(exported(gimp))[10, 10]) == (0, 0, 255)
    assert "top first: " in gimp.ask('gimp.add_text("W\\"(gimp-quit 1)", 0, 0, 18, "white")')
    assert (pixels(exported(gimp)).min(axis=2) > 200).sum() > 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('gimp.open("none.png")', "there is no"),
        ('gimp.open("../x.png")', "outside"),
        ('gimp.open("text.txt")', "cannot read"),
        ('gimp.export("out.doc")', "ending"),
        ('gimp.export("none/out.png")', "no folder"),
        ('gimp.export("../out.png")', "outside"),
        ("gimp.scale(0, 10)", "no size"),
        ("gimp.scale(100000, 100000)", "no size"),
        ("gimp.crop(30, 0, 20, 20)", "not inside"),
        ("gimp.crop(-1, 0, 5, 5)", "not inside"),
        ("gimp.rotate(45)", "90, 180 or 270"),
        ("gimp.brightness_contrast(200)", "-100 to 100"),
        ("gimp.saturation(101)", "-100 to 100"),
        ("gimp.blur(0)", "radius"),
        ('gimp.fill("nocolour")', "is no colour"),
        ('gimp.add_text(" ", 0, 0)', "text"),
        ('gimp.add_text("x", 0, 0, 0)', "size"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(gimp: Player, text: str, words: str) -> None:
    gimp.do('files.write("text.txt", "no picture")')
    assert words in gimp.refusal(text)


def test_gimp_that_was_quit_is_started_again(gimp: Player, player: Player) -> None:
    gimp.do('gimp.flip("horizontal")')
    assert player.do('key("ctrl+q")').window_title == "Quit GIMP"
    player.do('key("ctrl+d")')
    player.wait_for(lambda shown: shown.app != "gimp")
    player.do('apps.open("gimp")')
    player.wait_for(lambda shown: shown.app == "gimp")
    assert player.ask("gimp.env_info()") == "no image is open"


def test_without_an_image_changes_are_refused_and_nothing_is_left_of_the_last_task(player: Player) -> None:
    player.start(PUT, SetupStep("open_app", {"app": "gimp"}))
    assert player.ask("gimp.env_info()") == "no image is open"
    for text in ("gimp.rotate(90)", "gimp.undo()", 'gimp.export("x.png")', "gimp.crop(0, 0, 1, 1)"):
        assert "no image is open" in player.refusal(text)
