"""OSWorld and OfficeWorld tasks, from their own files, on contained desktops.

    read_task_file -> TaskFile -> refusals (what a contained desktop cannot honour) -> OsworldTask -> TaskInstance
    set-up steps and getters act on `desktop.OsworldDesktop`; metrics are pure functions over files and values on the host

Nothing here opens a connection, evaluates text or knows how a desktop is contained.
"""

from __future__ import annotations

from computerrl.env_server.tasks.osworld.abilities import Abilities, Refusal, refusals
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import TaskFile, read_task_file
from computerrl.env_server.tasks.osworld.task import OsworldTask, load_task

__all__ = ["Abilities", "Assets", "OsworldTask", "Refusal", "TaskFile", "load_task", "read_task_file", "refusals"]
