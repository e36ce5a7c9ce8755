"""Files and folders: by API, in the file manager and in the editor."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from computerrl.env_server.tasks.elements import BUTTON
from computerrl.env_server.tasks.forge import content
from computerrl.env_server.tasks.forge.packing import zipped
from computerrl.env_server.tasks.forge.plan import SAVE_BY_KEYS, Forged, Move, call, forge_family, key, typed
from computerrl.env_server.tasks.forge.scripts import click_on, listed, wording

_ENDINGS = ("log", "md", "txt", "json", "ini")


def _files(rng: random.Random, count: int, endings: Sequence[str] = _ENDINGS) -> dict[str, bytes]:
    """Small text files with different stems and contents."""
    stems = rng.sample(sorted({*content.PRODUCTS, *content.CITIES}), count)
    return {f"{stem.lower()}.{rng.choice(endings)}": f"{content.sentence(rng)}\n".encode() for stem in stems}


def _moved(files: Mapping[str, bytes], folder: str, names: Sequence[str]) -> dict[str, bytes | None]:
    return {**{f"{folder}/{name}": files[name] for name in names}, **dict.fromkeys(names)}


def _sort_into_folder(rng: random.Random, level: int) -> Forged:
    ending, *others = rng.sample(_ENDINGS, 4)
    files = {**_files(rng, 2 + level, others)}
    chosen = {name: data for name, data in _files(rng, 1 + level, (ending,)).items() if name not in files}
    files.update(chosen)
    names = sorted(chosen)
    folder, other = rng.sample(("archive", "drafts", "inbox", "office", "projects", "reports"), 2)
    said = wording(
        rng,
        "Move all files that end in .{ending} into the folder {folder}.",
        "Tidy up: the .{ending} files belong into the folder {folder}, the rest stays here.",
        ending=ending,
        folder=folder,
    )

    def script(targets: Sequence[str]) -> list[Move]:
        return [call("files.move", path=name, folder=target) for name, target in zip(names, targets, strict=True)]

    return Forged(
        said,
        dict(sorted(files.items())),
        wanted=lambda: _moved(files, folder, names),
        nearly=lambda: {**_moved(files, folder, names[:-1]), **_moved(files, other, names[-1:])},
        solution=script([folder] * len(names)),
        near_miss=script([*[folder] * (len(names) - 1), other]),
        opened=(".",),
        folders=(folder, other),
        is_listing_exact=True,
    )


def _write_note(rng: random.Random, level: int) -> Forged:
    files = _files(rng, 2 + level, ("log", "md"))
    name = f"{rng.choice(content.EVENTS).replace(' ', '-')}-{rng.choice(content.CITIES).lower()}.txt"
    lines = [f"{product}: {rng.randrange(2, 90)}" for product in rng.sample(content.PRODUCTS, level + 1)]
    said = wording(
        rng,
        "Write a text file {name} with these lines: {lines}.",
        "Create {name}. It holds exactly these lines, in this order: {lines}.",
        name=name,
        lines=", ".join(f'"{line}"' for line in lines),
    )

    def script(text: Sequence[str]) -> list[Move]:
        return [call("files.write", path=name, text="\n".join(text) + "\n")]

    return Forged(
        said,
        files,
        wanted=lambda: {name: "\n".join(lines).encode()},
        nearly=lambda: {name: "\n".join(lines[:-1]).encode()},
        solution=script(lines),
        near_miss=script(lines[:-1]),
        opened=(".",),
        is_listing_exact=True,
    )


def _clean_up(rng: random.Random, level: int) -> Forged:
    places = ["", "reports/", "reports/old/"][:level]
    stems = iter(rng.sample(sorted({*content.PRODUCTS, *content.CITIES}), 6 * len(places)))
    files = {
        f"{place}{next(stems).lower()}.{ending}": f"{content.sentence(rng)}\n".encode()
        for place in places
        for ending in ("tmp", *rng.choices(("log", "md", "txt"), k=2))
    }
    doomed = [name for name in files if name.endswith(".tmp")]
    spared = next(name for name in files if not name.endswith(".tmp"))
    said = wording(
        rng,
        "Delete all temporary files (.tmp){where}; everything else stays.",
        "Files that end in .tmp are no longer needed{where}. Delete them, nothing else.",
        "Make room: remove every .tmp file{where}, and no other.",
        "Only .tmp files are to be deleted{where}. Do that.",
        where=" here and in the folders below" if level > 1 else "",
    )

    def script(names: Sequence[str]) -> list[Move]:
        return [call("files.delete", path=name) for name in names]

    return Forged(
        said,
        files,
        wanted=lambda: dict.fromkeys(doomed),
        nearly=lambda: dict.fromkeys([*doomed, spared]),
        solution=script(doomed),
        near_miss=script([*doomed, spared]),
        opened=(".",),
        is_listing_exact=True,
    )


def _pack(rng: random.Random, level: int) -> Forged:
    folder, other = rng.sample(("backup", "drafts", "invoices", "minutes", "orders"), 2)
    inside = _files(rng, 1 + level)
    beside = _files(rng, 2)
    files = {
        **{f"{folder}/{name}": data for name, data in inside.items()},
        **{f"{other}/{name}": data for name, data in beside.items()},
    }
    ending = rng.choice(("zip", "tar.gz"))
    name = f"{folder}-{rng.randrange(2021, 2026)}.{ending}"
    said = wording(
        rng,
        "Pack the folder {folder} into an archive {name}; the folder itself stays.",
        "Make an archive {name} that holds all files of the folder {folder}.",
        folder=folder,
        name=name,
    )

    def script(packed: str) -> list[Move]:
        return [call("files.compress", path=packed, archive=name)]

    return Forged(
        said,
        files,
        wanted=lambda: {name: zipped(inside)},
        nearly=lambda: {name: zipped(beside)},
        solution=script(folder),
        near_miss=script(other),
        opened=(".",),
        is_listing_exact=True,
    )


def _unpack(rng: random.Random, level: int) -> Forged:
    inside = _files(rng, 1 + level)
    name = f"{rng.choice(content.COMPANIES).lower()}-files.zip"
    folder, other = rng.sample(("incoming", "material", "samples", "studies"), 2)
    said = wording(
        rng,
        "Unpack {name} into the folder {folder}; keep the archive.",
        "Extract all files of the archive {name} to the folder {folder}.",
        name=name,
        folder=folder,
    )

    def script(target: str) -> list[Move]:
        return [call("files.extract", archive=name, folder=target)]

    return Forged(
        said,
        {name: zipped(inside)},
        wanted=lambda: {f"{folder}/{path}": data for path, data in inside.items()},
        nearly=lambda: {f"{other}/{path}": data for path, data in inside.items()},
        solution=script(folder),
        near_miss=script(other),
        opened=(".",),
        folders=(folder, other),
        is_listing_exact=True,
    )


def _find_and_copy(rng: random.Random, level: int) -> Forged:
    words = f"{rng.choice(content.COMPANIES)} {rng.randrange(2000, 9000)}"
    files = _files(rng, 3 + level, ("txt",))
    name, wrong = rng.sample(sorted(files), 2)
    files[name] = files[name] + f"Contract {words} is signed.\n".encode()
    said = wording(
        rng,
        'One of the text files mentions "{words}". Copy that file into the folder contracts.',
        'Find the file that contains "{words}" and put a copy of it into the folder contracts.',
        words=words,
    )

    def script(path: str) -> list[Move]:
        return [call("files.search", words=words), call("files.copy", path=path, target="contracts")]

    return Forged(
        said,
        files,
        wanted=lambda: {f"contracts/{name}": files[name]},
        nearly=lambda: {f"contracts/{wrong}": files[wrong]},
        solution=script(name),
        near_miss=script(wrong),
        opened=(".",),
        folders=("contracts",),
        is_listing_exact=True,
    )


def _rename_by_keys(rng: random.Random, level: int) -> Forged:
    files = _files(rng, 2 + level, ("txt", "md"))
    old, wrong = rng.sample(sorted(files), 2)
    new = f"{rng.choice(content.EVENTS).replace(' ', '-')}-{rng.randrange(100, 999)}.txt"
    said = wording(
        rng, "Rename the file {old} to {new} in the file manager.", "The file {old} should be called {new}.", old=old, new=new
    )

    def script(path: str) -> list[Move]:
        return [click_on(path), key("f2"), key("ctrl+a"), typed(new), click_on("Rename", BUTTON)]

    return Forged(
        said,
        files,
        wanted=lambda: {new: files[old], old: None},
        nearly=lambda: {new: files[wrong], wrong: None},
        solution=script(old),
        near_miss=script(wrong),
        opened=(".",),
        is_listing_exact=True,
    )


def _extend_list(rng: random.Random, level: int) -> Forged:
    names = content.people(rng, 3 + 2 * level)
    before, news = names[level:], names[:level]
    path = f"guests-{rng.choice(content.ROOMS).lower()}.txt"

    def text(people: Sequence[str]) -> bytes:
        return "".join(f"{name}\n" for name in people).encode()

    def script(people: Sequence[str]) -> list[Move]:
        return [key("ctrl+end"), *(typed(name, enter=True) for name in people), SAVE_BY_KEYS]

    said = wording(
        rng,
        "Add {names} at the end of the list that is open, each on a line of its own, and save the file.",
        "The list in {path} goes on: write {names} below the last name, one per line. Save the file.",
        path=path,
        names=listed(news),
    )
    wrong = [*news[:-1], news[-1][:-1]]
    return Forged(
        said,
        {path: text(before)},
        wanted=lambda: {path: text([*before, *news])},
        nearly=lambda: {path: text([*before, *wrong])},
        solution=script(news),
        near_miss=script(wrong),
        opened=(path,),
        is_listing_exact=True,
    )


def _edit_settings(rng: random.Random, level: int) -> Forged:
    names = rng.sample(
        ("backup", "currency", "language", "limit", "margin", "printer", "retries", "theme", "timeout", "volume"), 3 + level
    )
    values = {name: str(rng.randrange(10, 90)) for name in names}
    chosen = sorted(rng.sample(range(len(names)), level))
    news = {names[index]: str(rng.randrange(100, 900)) for index in chosen}
    path = f"{rng.choice(content.COMPANIES).lower()}.conf"

    def text(changes: Mapping[str, str]) -> bytes:
        return "".join(f"{name} = {value}\n" for name, value in {**values, **changes}.items()).encode()

    def script(changes: Mapping[str, str]) -> list[Move]:
        moves: list[Move] = [key("ctrl+home")]
        line = 0
        for index in chosen:
            moves += [
                *[key("down")] * (index - line),
                key("home"),
                key("shift+end"),
                typed(f"{names[index]} = {changes[names[index]]}"),
            ]
            line = index
        return [*moves, SAVE_BY_KEYS]

    said = wording(
        rng,
        "In the settings file that is open, set {changes}, and save it.",
        "Change these settings in {path} and save the file: {changes}.",
        path=path,
        changes=listed([f"{name} to {value}" for name, value in news.items()]),
    )
    wrong = {**news, names[chosen[-1]]: news[names[chosen[-1]]] + "0"}
    return Forged(
        said,
        {path: text({})},
        wanted=lambda: {path: text(news)},
        nearly=lambda: {path: text(wrong)},
        solution=script(news),
        near_miss=script(wrong),
        opened=(path,),
        is_listing_exact=True,
    )


FAMILIES = (
    forge_family("files-sort", "files", "move all files of one ending into a folder", _sort_into_folder),
    forge_family("files-write-note", "files", "write a text file with given lines", _write_note),
    forge_family("files-clean-up", "files", "delete temporary files, below folders too", _clean_up),
    forge_family("files-pack", "files", "a folder's archive", _pack),
    forge_family("files-unpack", "files", "unpack an archive into a folder", _unpack),
    forge_family("files-find-copy", "files", "copy the file that contains some words", _find_and_copy),
    forge_family("files-rename-by-hand", "files", "rename a file in the file manager", _rename_by_keys),
    forge_family("files-extend-list", "editor", "type lines at the end of a text in the editor", _extend_list),
    forge_family("files-edit-settings", "editor", "change lines of a settings file in the editor", _edit_settings),
)
