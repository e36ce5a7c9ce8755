"""Web applications of CUA-Gym-Hub, which bundles name and do not bring: each is a folder ``websites/NAME_mock``, built with Vite.

Scripts name an application by a placeholder such as ``__CUA_GYM_GMAIL_URL__``, or by the address where its makers serve it. Here
each that a bundle names is served on the desktop's own loopback by `preview.mjs`, from the application's own build and with the
application's own interface for states (``/post``, ``/go``, ``/state``).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from computerrl.common.errors import ConfigError, Problem

PREVIEW = "preview.mjs"
_CONFIGS = ("vite.config.bundled.mjs", "vite.config.mjs", "vite.config.js")
"""Names of configurations that Node can load, the first one that is there; `preview.mjs` has the same list."""
_BUNDLES = (
    f"npx esbuild vite.config.* --bundle --platform=node --format=esm --external:vite '--external:@*' --outfile={_CONFIGS[0]}"
)
"""Command that puts all that a configuration imports into one file, as Vite itself does before it loads one."""
_SITES, _SHARED = "websites", "shared"
_FIRST_PORT = 8101
_NAMED = re.compile(
    r"__CUA_GYM_(?P<name>[A-Z0-9_]+)_(?P<kind>URL|HOST)__|(?P<scheme>https?://)?\bcua-gym-(?P<host>[a-z0-9-]+)\.xlang\.ai\b"
)
_LEFT_OUT = frozenset({"node_modules", ".git", ".mock-states", ".mock-files", "reference", "public"})
"""Folders of an application that a server of its build does not need."""
_MAX_BYTES = 48 << 20
_BUILD_TOOLS = ("vite", "@vitejs/plugin-react", "@vitejs/plugin-react-swc", "@tailwindcss/vite")
"""Packages that configurations import and that only a build needs."""
_BUILD_TOOL = "export const defineConfig = (config) => config;\nexport const loadEnv = () => ({});\nexport default () => ({});\n"
_MODULES = '{"type": "module", "main": "index.js"}\n'
"""``package.json`` of a folder whose files are ECMAScript modules."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A folder of web applications."""

    folder: Path

    @classmethod
    def open(cls, folder: Path, *, field: str) -> Hub:
        """Raises `ConfigError` that names ``field`` for a folder without applications."""
        if not (folder / _SITES).is_dir():
            reason = f"{str(folder)!r:.200} holds no folder {_SITES}/ with web applications"
            raise ConfigError([Problem(field, reason, "give a checkout of CUA-Gym-Hub whose applications are built")])
        return cls(folder)

    def place(self, name: str) -> Path | None:
        """The folder of the application ``name``; None where there is none."""
        found = (one for one in sorted((self.folder / _SITES).iterdir()) if one.is_dir() and _plain(one.name) == name)
        return next(found, None)

    def lacks(self, name: str) -> str:
        """Why the application ``name`` cannot be served; empty: it can."""
        place = self.place(name)
        if place is None:
            return f"there is no web application {name} among --web-apps"
        if not (place / "dist/index.html").is_file():
            return f"web application {place.name} is not built: run `npm install && npm run build` in its folder"
        if not any((place / name).is_file() for name in _CONFIGS):
            return f"web application {place.name} has no vite.config.js: run `{_BUNDLES}` in its folder"
        if sum(file.stat().st_size for _, file in _files(place)) > _MAX_BYTES:
            return f"web application {place.name} has more than {_MAX_BYTES >> 20} MB"
        return ""

    def files(self, names: Sequence[str]) -> dict[str, bytes]:
        """What a desktop needs to serve these applications: path -> content."""
        found = {PREVIEW: Path(__file__).with_name(PREVIEW).read_bytes()}
        for tool in _BUILD_TOOLS:
            found |= {
                f"node_modules/{tool}/package.json": _MODULES.encode(),
                f"node_modules/{tool}/index.js": _BUILD_TOOL.encode(),
            }
        shared = self.folder / _SHARED
        found |= {f"{_SHARED}/{path}": file.read_bytes() for path, file in _files(shared)} if shared.is_dir() else {}
        found[f"{_SHARED}/package.json"] = _MODULES.encode()
        for name in names:
            place = self.place(name)
            assert place is not None, "an application that can be served"
            found |= {f"{_SITES}/{name}/{path}": file.read_bytes() for path, file in _files(place)}
            found[f"{_SITES}/{name}/package.json"] = _MODULES.encode()
        return found

    def digest(self, names: Sequence[str]) -> str:
        """Hash of all that `files` gives; empty for no application."""
        digest = hashlib.sha256()
        for name, data in sorted(self.files(names).items()) if names else ():
            for part in (name.encode(), data):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest() if names else ""

    def copy(self, names: Sequence[str], out: Path) -> None:
        """Copy these applications into the hub ``out``, without what serving them does not need. Names become folders' names."""
        sources = [(self.folder / _SHARED, out / _SHARED)] if (self.folder / _SHARED).is_dir() else []
        sources += [(place, out / _SITES / name) for name in names if (place := self.place(name)) is not None]
        for source, target in sources:
            for path, file in _files(source):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target / path)


def named(texts: Sequence[str]) -> list[str]:
    """Names of the applications that scripts name, sorted."""
    return sorted({_name_in(match) for text in texts for match in _NAMED.finditer(text)})


def ports(names: Sequence[str]) -> dict[str, int]:
    """Application -> the port that it is served at."""
    return {name: _FIRST_PORT + index for index, name in enumerate(sorted(names))}


def filled(text: str, where: Mapping[str, int], *, other: int | None = None) -> str:
    """``text`` with addresses of 127.0.0.1 in place of the applications' names; ``where``: their ports; ``other``: that of all
    others."""

    def address(match: re.Match[str]) -> str:
        port = where.get(_name_in(match), other)
        if port is None:
            return match.group()
        is_host = match["kind"] == "HOST" or (match["host"] and not match["scheme"])
        return f"127.0.0.1:{port}" if is_host else f"http://127.0.0.1:{port}"

    return _NAMED.sub(address, text)


def command(place: str, name: str, port: int) -> list[str]:
    """The server of an application whose `Hub.files` lie in ``place``."""
    return ["prlimit", "--core=0", "node", f"{place}/{PREVIEW}", f"{place}/{_SITES}/{name}", str(port)]


def _name_in(match: re.Match[str]) -> str:
    return _plain(match["name"] or match["host"])


def _plain(name: str) -> str:
    """The name of an application, however a folder, an address or a placeholder spells it."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).removesuffix("_mock")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(path relative to ``folder``, file) for each regular file that serving needs; links are not followed."""
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            file = Path(top, name)
            if file.is_file() and not file.is_symlink():
                yield PurePosixPath(file.relative_to(folder)).as_posix(), file
