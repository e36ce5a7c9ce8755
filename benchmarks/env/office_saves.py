"""Deaths of offices that are written into and saved, again and again, on a busy machine.

LibreOffice destroys objects that Python released in another thread, without a lock where texts of slides are concerned; see
`env_server.guest.office.main_thread`. Six desktops write into a presentation and save it without end; what counts is how many
offices died. `--quick` is one minute, which shows that it runs and little more.
"""

from __future__ import annotations

import io
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pptx import Presentation

from computerrl.common import log
from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig
from computerrl.common.errors import DesktopBroken
from computerrl.common.messages import Action, Evaluation
from computerrl.env_server.driver import SetupStep, TaskInstance
from computerrl.env_server.drivers import make_driver
from computerrl.env_server.drivers.guest_driver import GuestDriver

_NUM_DESKTOPS = 6
_TITLE_AND_CONTENT = 1
_WRITES, _WRITES_PER_SAVE = 12, 3


def run(quick: bool) -> list[dict[str, Any]]:
    """The rows; needs Apptainer and the image `full`."""
    log.configure(level="error")
    until = time.monotonic() + (60.0 if quick else 300.0)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(_NUM_DESKTOPS) as pool:
        folder = Path(name)
        results = list(pool.map(lambda index: _play(index, folder, until), range(_NUM_DESKTOPS)))
    num_rounds, deaths = sum(rounds for rounds, _ in results), [reason for _, reasons in results for reason in reasons]
    for reason in deaths:
        print(reason)
    num_writes, num_saves = num_rounds * _WRITES, num_rounds * _WRITES // _WRITES_PER_SAVE
    what = f"offices that died in {num_writes} writes and {num_saves} saves, {_NUM_DESKTOPS} desktops"
    return [{"name": what, "value": len(deaths), "unit": "", "better": "lower", "target": 0}]


def _play(index: int, folder: Path, until: float) -> tuple[int, list[str]]:
    """Whole rounds, and why desktops broke."""
    num_rounds, reasons = 0, []
    while time.monotonic() < until:
        driver = make_driver(DesktopConfig(image="full"), index=index, folder=folder / "logs", screenshots=None)
        assert isinstance(driver, GuestDriver)
        try:
            while time.monotonic() < until:
                _round(driver)
                num_rounds += 1
        except DesktopBroken as error:
            reasons.append(str(error))
        finally:
            driver.close()
    return num_rounds, reasons


def _round(driver: GuestDriver) -> None:
    steps = SetupStep("put_file", {"path": "deck.pptx", "data": _slides()}), SetupStep("open", {"path": "deck.pptx"})
    driver.reset(TaskInstance("Write.", steps, lambda get: Evaluation(0.0, False, ""), lambda *_: Action("done", {})))
    _act(driver, 'impress.save_as("deck.odp")')
    for number in range(_WRITES):
        _act(driver, f'impress.write_text("written {number}", 1, {number % 2})')
        if number % _WRITES_PER_SAVE == _WRITES_PER_SAVE - 1:
            _act(driver, "impress.save()")


def _act(driver: GuestDriver, text: str) -> None:
    result = driver.step(parse_action(text))
    assert not result.action_error, (text, result.action_error)


def _slides() -> bytes:
    deck = Presentation()
    for number in range(3):
        slide = deck.slides.add_slide(deck.slide_layouts[_TITLE_AND_CONTENT])
        slide.shapes.title.text, slide.placeholders[1].text = f"Slide {number}", "one\ntwo\nthree"
    stream = io.BytesIO()
    deck.save(stream)
    return stream.getvalue()
