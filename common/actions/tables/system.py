"""Files, the editor and the windows: our own, since ComputerRL has no class for the operating system."""

from __future__ import annotations

from computerrl.common.actions.spec import table, text

FILES = table(
    "files",
    ("list", (text("folder", "."),), "list a folder"),
    ("rename", (text("path"), text("new_name")), "rename a file"),
    ("move", (text("path"), text("folder")), "move a file into a folder"),
    ("copy", (text("path"), text("target")), "copy a file"),
    ("delete", (text("path"),), "delete a file"),
    ("make_folder", (text("path"),), "make a folder"),
    ("read", (text("path"),), "read a text file"),
    ("write", (text("path"), text("text")), "write a text file"),
    ("append", (text("path"), text("text")), "add to the end of a text file"),
    ("find", (text("pattern"), text("folder", ".")), "paths below a folder whose name matches, like *.txt"),
    ("search", (text("words"), text("folder", ".")), "lines of text files below a folder that contain the words"),
    ("info", (text("path"),), "size, time of change and permissions of a file"),
    ("set_permissions", (text("path"), text("mode")), 'set permissions, like "644" or "u+x"'),
    ("compress", (text("path"), text("archive")), "pack a file or folder into a .zip or .tar.gz"),
    ("extract", (text("archive"), text("folder", ".")), "unpack a .zip or .tar.gz"),
    ("open", (text("path"),), "open a file or folder with its application"),
)
EDITOR = table("editor", ("save", (), "save the document in the editor"))
APPS = table(
    "apps",
    ("switch", (text("app"),), "bring an application's window to the front"),
    ("list", (), "the windows that are open"),
    ("open", (text("app"),), "open an application"),
)
