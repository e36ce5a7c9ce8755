"""Folders of imported trajectories (`computerrl import-trajectories`, `learner.recipe.imported`): their head and their layout.

    import.json             what was imported, for which prompts, and the counts
    episodes-00000.safetensors ...   tokens of the episodes (`learner.supervised.imported`)
    images/HASH             screenshots, each named by its hash

Prompts and answers are tokens already, so a folder belongs to one tokenizer and to the prompt settings it was made with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from computerrl.common.config import RunConfig
from computerrl.common.models.folder import model_folder

FORMAT_VERSION = 1
HEAD_FILE = "import.json"
IMAGES_FOLDER = "images"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)
"""Files of a model folder that decide which tokens a prompt becomes."""


class ImportHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder of imported trajectories says of itself."""

    version: int
    format: str
    """Format of the source."""
    source: str
    """Name of the source file."""
    source_digest: str
    """BLAKE2b of the lines of it that were read."""
    model: str
    """`model.name` of the configuration."""
    prompts: str
    """`prompts_digest` of the configuration."""
    num_episodes: int
    num_steps: int
    num_images: int
    left_out: Mapping[str, Mapping[str, int]]
    """Reason -> numbers of `trajectories` and `steps`."""


_DECODER = msgspec.json.Decoder(ImportHead)


def read_head(folder: Path) -> ImportHead:
    """The head of ``folder``. Raises `ValueError` that says what is wrong, or `OSError`."""
    try:
        head = _DECODER.decode((folder / HEAD_FILE).read_bytes())
    except msgspec.MsgspecError as error:
        raise ValueError(f"{HEAD_FILE} was not written by this version: {error}") from None
    if head.version != FORMAT_VERSION:
        raise ValueError(f"{HEAD_FILE} has format version {head.version}, this program reads {FORMAT_VERSION}")
    return head


def image_folders(folders: Sequence[str]) -> list[Path]:
    """Where the screenshots of the imported ``folders`` are."""
    return [Path(name) / IMAGES_FOLDER for name in folders]


def prompts_digest(config: RunConfig) -> str:
    """Digest of all that decides which tokens a prompt of ``config`` becomes, the model's weights left out."""
    digest = hashlib.blake2b(digest_size=16)
    settings: dict[str, Any] = {"prompt": config.actor.prompt.model_dump(mode="json"), "actions": config.tasks.actions}
    digest.update(msgspec.json.encode(settings, order="sorted"))
    folder = model_folder(config.model.name)
    for name in _TOKENIZER_FILES:
        path = folder / name
        digest.update(f"\0{name}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()
