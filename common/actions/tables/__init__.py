"""All actions, one table per application. `common.actions` parses and renders them; the guest implements them by name."""

from __future__ import annotations

from computerrl.common.actions.tables import apps, calc, gui, impress, system, writer

TABLES = (
    gui.TABLE,
    calc.TABLE,
    writer.TABLE,
    impress.TABLE,
    system.FILES,
    system.EDITOR,
    system.APPS,
    apps.CHROME,
    apps.VLC,
    apps.CODE,
    apps.GIMP,
)
