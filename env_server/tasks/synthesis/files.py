"""Files and folders: where walks begin, which actions they are made of, and the words for what they have changed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from posixpath import basename, dirname

from computerrl.common.messages import Action
from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.facts import Facts
from computerrl.env_server.tasks.forge.plan import call, key, typed
from computerrl.env_server.tasks.synthesis.changes import Change, Differing, UnsaidError, change, quoted
from computerrl.env_server.tasks.synthesis.start import Start

FOLDER = ("folder",)
"""Fact of a folder's path; that of a file's is its text or its archive's content."""
_FOLDERS = ("archive", "drafts", "inbox", "office", "projects", "reports")
_NEW_FOLDERS = ("backup", "invoices", "minutes", "orders", "samples")
_ENDINGS = ("log", "md", "txt", "ini")
_MAX_LINES = 3


def start(rng: random.Random) -> Start:
    """A few text files, some in folders."""
    folders = rng.sample(_FOLDERS, rng.choice((2, 3)))
    names = rng.sample(sorted({*content.PRODUCTS, *content.CITIES}), rng.randrange(4, 8))
    paths = [f"{rng.choice(('', '', f'{rng.choice(folders)}/'))}{name.lower()}.{rng.choice(_ENDINGS)}" for name in names]
    texts = content.sentences(rng, len(paths))
    files = {path: f"{text}\n".encode() for path, text in zip(sorted(paths), texts, strict=True)}
    return Start("", files, draw=lambda rng: _draw(rng, sorted(files), folders), folders=tuple(folders))


def _draw(rng: random.Random, paths: Sequence[str], folders: Sequence[str]) -> list[Action]:
    """One move."""
    path = rng.choice(paths)
    folder = rng.choice((*folders, *_NEW_FOLDERS))
    ending = path.rpartition(".")[2]
    new = f"{rng.choice(content.EVENTS).replace(' ', '-')}-{rng.randrange(100, 999)}.{ending}"
    line = f"{rng.choice(content.PRODUCTS)}: {rng.randrange(2, 90)}"
    shown = [path for path in paths if "/" not in path]
    by_hand = (
        [
            Action("click", {"target": rng.choice(shown)}),
            key("f2"),
            key("ctrl+a"),
            typed(new),
            Action("click", {"target": "Rename"}),
        ]
        if shown
        else [key("f5")]
    )
    moves = (
        lambda: [call("files.rename", path=path, new_name=new)],
        lambda: [call("files.move", path=path, folder=folder)],
        lambda: [call("files.copy", path=path, target=rng.choice((folder, new)))],
        lambda: [call("files.delete", path=path)],
        lambda: [call("files.make_folder", path=folder)],
        lambda: [call("files.write", path=new, text=f"{line}\n")],
        lambda: [call("files.append", path=path, text=f"{line}\n")],
        lambda: [call("files.compress", path=rng.choice(folders), archive=f"{folder}-{rng.randrange(2021, 2026)}.zip")],
        lambda: by_hand,
        lambda: [call("files.list")],
        lambda: [call("files.info", path=path)],
    )
    return rng.choice(moves)()


def changes(before: Facts, after: Facts) -> list[Change]:
    """The changes between two trees of files. Raises `UnsaidError`."""
    differing = Differing(before, after)
    added = {path: after[path] for path in differing.names() if path not in before and after[path] != FOLDER}
    removed = {path: before[path] for path in differing.names() if path not in after and before[path] != FOLDER}
    found = [change("files.make folder", folder=path) for path in differing.names() if _is_new_folder(path, before, after)]
    differing.take(one.as_dict()["folder"] for one in found)
    for old, text in removed.items():
        targets = [path for path, other in added.items() if other == text]
        if len(targets) > 1 or sum(other == text for other in removed.values()) > 1:
            raise UnsaidError("several files of the same content moved")
        if targets:
            found.append(_moved(old, targets[0]))
            del added[targets[0]]
        else:
            found.append(change("files.delete", path=old))
        differing.take([old, *targets])
    for path, text in added.items():
        found.append(_new_file(path, text, before))
        differing.take([path])
    for path in differing.names():
        if isinstance(before.get(path), str) and isinstance(after.get(path), str):
            found.append(_rewritten(path, str(before[path]), str(after[path])))
            differing.take([path])
    if differing.names():
        raise UnsaidError("a folder is gone, or a file became another kind")
    return found


def _is_new_folder(path: str, before: Facts, after: Facts) -> bool:
    return path not in before and after.get(path) == FOLDER


def _moved(old: str, new: str) -> Change:
    if dirname(old) == dirname(new):
        return change("files.rename", path=old, name=basename(new))
    if basename(old) == basename(new):
        return change("files.move", path=old, folder=_folder(dirname(new)))
    return change("files.move and rename", path=old, folder=_folder(dirname(new)), name=basename(new))


def _folder(path: str) -> str:
    return f"the folder {path}" if path else "the home folder"


def _new_file(path: str, content_: object, before: Facts) -> Change:
    """A copy, an archive or a new text."""
    if isinstance(content_, Mapping):
        folders = [name for name, fact in before.items() if fact == FOLDER and _below(name, before) == content_]
        if len(folders) != 1 or not content_:
            raise UnsaidError("an archive of something else than one folder")
        return change("files.pack", folder=folders[0], archive=path)
    sources = [name for name, fact in before.items() if fact == content_]
    if len(sources) > 1:
        raise UnsaidError("a copy of one of several equal files")
    return (
        change("files.copy", path=sources[0], target=path) if sources else change("files.write", path=path, text=_lines(content_))
    )


def _below(folder: str, facts: Facts) -> dict[str, object]:
    """Contents of the files below a folder, as an archive of it holds them."""
    return {path[len(folder) + 1 :]: fact for path, fact in facts.items() if path.startswith(f"{folder}/") and fact != FOLDER}


def _lines(text: object) -> str:
    """A short text, line by line."""
    lines = str(text).split("\n")
    if not isinstance(text, str) or not 0 < len(lines) <= _MAX_LINES:
        raise UnsaidError("a text of many lines")
    return ", ".join(quoted(line) for line in lines)


def _rewritten(path: str, old: str, new: str) -> Change:
    if new.startswith(f"{old}\n"):
        return change("files.append", path=path, text=_lines(new[len(old) + 1 :]))
    return change("files.rewrite", path=path, text=_lines(new))
