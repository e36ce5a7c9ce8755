"""The mirror: a folder with a copy of web sites, as mirroring tools write it. Never opens a connection.

The page ``https://HOST/a/b`` lies at ``MIRROR/HOST/a/b``, at ``MIRROR/HOST/a/b.html``, or at ``MIRROR/HOST/a/b/index.html``; that
of ``https://HOST/a/b?c=1`` at ``MIRROR/HOST/a/b?c=1`` or ``MIRROR/HOST/a/b@c=1``, also with ``.html`` after it. Links are read as
they stand, so a mirror must not have been rewritten for reading from a disk.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from computerrl.env_server.driver import SitePage
from computerrl.env_server.tasks.osworld.assets import MAX_ASSET_BYTES

_PAGE = "text/html"
_TYPES = mimetypes.MimeTypes(filenames=())
"""By the names of files, the same on every machine."""
_HTML_BEGINS = (b"<!doctype", b"<html", b"<head", b"<!--", b"<?xml")
_DEFAULT_PORTS = (None, 80, 443)


@dataclass(frozen=True, slots=True)
class Mirror:
    """One mirror; ``folder`` is None when the person has none."""

    folder: Path | None = None

    def has(self, host: str) -> bool:
        """Whether there is a copy of the site, with or without ``www.`` before its name."""
        return self._name_of(host) is not None

    def find(self, address: str) -> SitePage | None:
        """The file of ``address``, or where a site would lead from there: to the name that the copy has, or to the slash behind
        the name of a folder. None: the mirror has no such page."""
        try:
            return self._find(urlsplit(address))
        except (OSError, ValueError):  # a name too long for a file, a file that may not be read; no address at all
            return None

    def digest(self, hosts: Iterable[str]) -> str:
        """Hash of the names, sizes and times of all files of these sites."""
        total = hashlib.sha256()
        for name in sorted({self._name_of(host) or "" for host in hosts} - {""}):
            assert self.folder is not None
            for folder, folders, files in os.walk(self.folder / name):
                folders.sort()
                for file in sorted(files):
                    facts = os.lstat(os.path.join(folder, file))
                    total.update(
                        f"{os.path.relpath(folder, self.folder)}/{file}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode()
                    )
        return total.hexdigest()

    def _name_of(self, host: str) -> str | None:
        """Name of the site's folder."""
        if self.folder is None or not host or host.startswith(".") or "/" in host or "\0" in host:
            return None
        other = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
        return next((name for name in (host, other) if (self.folder / name).is_dir()), None)

    def _find(self, parts: SplitResult) -> SitePage | None:
        host = (parts.hostname or "") + ("" if parts.port in _DEFAULT_PORTS else f":{parts.port}")
        name = self._name_of(host)
        if name is None:
            return None
        if name != host:
            return _leading_to(parts._replace(netloc=name).geturl())
        for path in dict.fromkeys((parts.path, unquote(parts.path))):
            segments = [segment for segment in path.split("/") if segment]
            if ".." in segments or "." in segments:
                return None
            for candidate in _candidates("/".join([name, *segments]), parts.query):
                place = self._inside(candidate)
                if place is not None:
                    is_folders = candidate.endswith("/index.html")
                    if is_folders and not parts.path.endswith("/") and segments:
                        return _leading_to(parts._replace(path=f"{parts.path}/").geturl())
                    body = place.read_bytes()
                    return SitePage(_type_of(segments[-1] if segments else "", candidate, body), body)
        return None

    def _inside(self, candidate: str) -> Path | None:
        """A regular file of the mirror; links are followed inside it alone."""
        assert self.folder is not None
        root = self.folder.resolve()
        place = (root / candidate).resolve()
        return place if root in place.parents and place.is_file() and place.stat().st_size <= MAX_ASSET_BYTES else None


def _candidates(path: str, query: str) -> Iterator[str]:
    """Where the file may lie below the mirror, best first."""
    if query:
        for mark in ("?", "@"):
            for base in (path, f"{path}/index.html"):
                name = f"{base}{mark}{query.replace('/', '%2F')}"
                yield from (name, f"{name}.html")
        # Other queries lead to other pages; a style sheet's only tells its version.
        if _TYPES.guess_type(path)[0] in (None, _PAGE):
            return
    yield from (path, f"{path}.html", f"{path}/index.html")


def _type_of(asked: str, candidate: str, body: bytes) -> str:
    if candidate.endswith(".html"):
        return _PAGE
    guessed = _TYPES.guess_type(asked)[0]
    if guessed is None:
        return _PAGE if body[:512].lstrip().lower().startswith(_HTML_BEGINS) else "application/octet-stream"
    return guessed


def _leading_to(address: str) -> SitePage:
    return SitePage(_PAGE, b"", status=301, location=address)
