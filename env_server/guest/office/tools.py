"""What the tools of Calc, Writer and Impress share: one public method per action of `common.actions.tables`, arguments the same.

A tool object lives for one call, inside the office's main thread (`Office.on_main`): UNO is called straight away. Methods give
the text that the agent sees, and raise `DocumentError` with a message for the agent where its arguments do not fit the
document. So do UNO's own checked exceptions (`Documents.use_tool`); its runtime ones mean that the office is broken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files.folder import AgentFolder, FileActionError
from .process import DocumentError, Office


class OfficeTools:
    """The base: the office, the document acted on, the agent's folder."""

    def __init__(self, office: Office, document: Any, folder: AgentFolder) -> None:
        self.office, self.document, self.folder = office, document, folder

    @property
    def controller(self) -> Any:
        """The document's view."""
        return self.document.CurrentController

    def save(self) -> str:
        """Save the document where it lies, in its own format."""
        self.document.store()
        return f"saved {self.file_name}"

    @property
    def file_name(self) -> str:
        """The document's path relative to the agent's folder, its title before it was ever saved."""
        return self.shown_path(self.path) if self.document.hasLocation() else str(self.document.Title)

    @property
    def path(self) -> Path:
        """Where the document lies. Raises `DocumentError` before it was ever saved."""
        if not self.document.hasLocation():
            raise DocumentError("the document has no file yet: save it under a name first")
        import uno

        return Path(uno.fileUrlToSystemPath(self.document.Location))

    def resolve(self, path: str) -> Path:
        """A path of the agent's folder. Raises `DocumentError` when it lies outside."""
        try:
            return self.folder.resolve(path)
        except FileActionError as error:
            raise DocumentError(str(error)) from error

    def existing(self, path: str) -> Path:
        """A file of the agent's folder. Raises `DocumentError` when there is none."""
        place = self.resolve(path)
        if not place.is_file():
            raise DocumentError(f"there is no file {path}")
        return place

    def shown_path(self, place: Path) -> str:
        """A place as the agent writes it."""
        root = self.folder.root
        return str(place.relative_to(root)) if place == root or root in place.parents else str(place)
