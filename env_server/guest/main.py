"""The guest's process: starts the desktop, then answers the host's requests one after another until the host is gone.

Started as ``python3 -m guest.main`` with its settings as JSON in the first argument and the host's socket as standard output.
Ends when that socket does; the container and everything in it end with it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from . import confinement, processes
from .desktop import Desktop
from .faults import DesktopError, Refused, TaskError
from .files.leftovers import WRITABLE
from .screen.connection import DisplayGone
from .screen.windows import APP_FAILURES
from .session import FRAME_NAME, Places, Session
from .web.site_copy import SiteCopy
from .wire import MAX_MESSAGE_CHARS, MAX_RESULT_CHARS, Wire, WireClosed

_FRAME_LIMIT_S = 10.0
"""For the rest of a frame whose beginning is here."""


def main() -> int:
    """Run until the host closes the connection."""
    settings = json.loads(sys.argv[1])
    os.umask(0o077)
    wire = Wire(socket.socket(fileno=os.dup(1)))
    os.dup2(2, 1)  # all output of this process goes to the log
    processes.give_memory_back()
    processes.adopt_orphans()
    started = time.monotonic()
    deadline = started + settings["start_deadline_s"]
    try:
        confinement.confine()
        found = confinement.findings()
        places = Places.make(home=Path(settings["home"]), user_home=Path(settings["user_home"]))
        confinement.keep_changes_to((*WRITABLE, "/dev", str(places.agent)))
        size = {"width": settings["width"], "height": settings["height"]}
        session = Session(places, base_env=os.environ, **size, deadline=deadline)
        copy = SiteCopy(wire)
        desktop = Desktop(
            places,
            session,
            **size,
            copy=copy,
            pages=Path(settings["pages"]),
            settle_quiet_s=settings["settle_quiet_s"],
            settle_deadline_s=settings["settle_deadline_s"],
        )
        desktop.start(settings["apps"], deadline=deadline)
    except Exception as error:  # noqa: BLE001  (process boundary: the host must hear why)
        traceback.print_exc()
        wire.send({"error": "broken", "message": f"the desktop did not start: {error!r}"})
        return 1
    wire.send({"ready": True, "start_s": time.monotonic() - started, "found": found})
    try:
        serve(desktop, wire, copy, frame=places.frame / FRAME_NAME)
    except WireClosed:
        pass
    return 0


def serve(desktop: Desktop, wire: Wire, copy: SiteCopy, *, frame: Path) -> None:
    """Answer requests until the connection ends (`WireClosed`)."""
    while True:
        desktop.wait_for(wire)
        request = wire.receive(timeout_s=_FRAME_LIMIT_S)
        if request.get("request") == "screen":
            with open(frame, "rb") as file:
                wire.send_descriptor(file.fileno())
            continue
        copy.host_listens = True
        try:
            answer = handle(desktop, request)
        except TaskError as error:
            answer = {"error": "task", "message": str(error)}
        except (*APP_FAILURES, *DisplayGone) as error:
            traceback.print_exc()
            answer = {"error": "broken", "message": f"{type(error).__name__}: {error}"}
        except Exception as error:  # noqa: BLE001  (process boundary: a mistake of ours must reach the host's log)
            traceback.print_exc()
            answer = {"error": "broken", "message": repr(error)}
        copy.host_listens = False
        if "message" in answer:
            answer = {**answer, "message": answer["message"][:MAX_MESSAGE_CHARS]}
        wire.send({**answer, "echo": request["echo"]} if "echo" in request else answer)


def handle(desktop: Desktop, request: dict[str, Any]) -> dict[str, Any]:
    """One request's answer."""
    deadline = time.monotonic() + float(request["limit_s"])
    name = request["request"]
    desktop.check()
    if name == "ping":
        return {}
    how = {"deadline": deadline, "with_tree": request.get("with_tree", True), "known_tree": request.get("known_tree", 0)}
    if name == "reset":
        settled = desktop.reset(request["setup"], deadline=deadline, with_tree=how["with_tree"])
        return desktop.observe(settled, **how)
    if name == "step":
        error, result = "", ""
        try:
            result = desktop.act(request["action"], request["args"], deadline=deadline)
        except Refused as refused:
            error = str(refused)
        answer = desktop.observe(desktop.settle(), **how)
        return {**answer, "action_error": error[:MAX_MESSAGE_CHARS], "result": result[:MAX_RESULT_CHARS]}
    if name == "observe":
        return desktop.observe(desktop.settle(), **how) if request.get("settle") else desktop.observe(**how)
    if name == "get":
        return {"value": desktop.get(request["kind"], request["args"], deadline=deadline)}
    raise DesktopError(f"unknown request {name!r}")


if __name__ == "__main__":
    sys.exit(main())
