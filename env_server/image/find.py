"""Turns the configured image into a path that Apptainer can start, or says what is wrong with it. Builds nothing."""

from __future__ import annotations

import os
from pathlib import Path

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import Problem, SetupError
from computerrl.common.models.folder import cache_folder
from computerrl.env_server.image.apptainer_install import check_fuse
from computerrl.env_server.image.build import image_folder, read_recipe, recipe_names

_FIELD = "desktop.image"
_SIF_MAGIC = (32, b"SIF_MAGIC")
_SQUASHFS_MAGIC = (0, b"hsqs")


def image_path(image: str = "core", cache: Path | None = None) -> Path:
    """The sandbox folder or image file of ``image``: a recipe's name, or the path of something built elsewhere.

    Takes no longer than looking at a few files. Raises `SetupError` naming the next step when the image is missing, is no
    desktop image, or is a file that this user cannot mount.
    """
    if image in recipe_names():
        folder = image_folder(read_recipe(image), cache or cache_folder())
        if not folder.is_dir():
            raise SetupError(
                Problem(
                    _FIELD,
                    f"image {image!r} is not built (no {folder})",
                    "run `make setup` or `computerrl setup`, which builds it once",
                )
            )
        return folder
    # `Path` raises for a user who is not there, for links in a circle, and for a name that no file can have.
    path = Path(os.path.realpath(os.path.expanduser(image)))
    if os.path.isdir(path):
        _check_folder(path)
    elif os.path.isfile(path):
        _check_file(path)
    else:
        known = ", ".join(repr(name) for name in recipe_names())
        raise SetupError(
            Problem(
                _FIELD, f"no recipe and no file or folder {image!r}", f"use {known}, or the path of a sandbox folder or .sif file"
            )
        )
    return path


def image_id(config: DesktopConfig) -> str:
    """What desktops of ``config`` are made of, as one text: another one for another image. Raises `SetupError`."""
    if config.driver != "apptainer":
        return config.driver
    path = image_path(config.image)
    if config.image in recipe_names():
        return path.name
    seen = path.stat()
    return f"{path} {seen.st_size} {seen.st_mtime_ns}"


def _check_folder(path: Path) -> None:
    if not (path / "usr" / "bin" / "Xvfb").exists():
        raise SetupError(
            Problem(
                _FIELD,
                f"folder {str(path)!r} is no desktop image (it holds no usr/bin/Xvfb)",
                "build one from env_server/image/core.def, whose head has the command",
            )
        )


def _check_file(path: Path) -> None:
    with path.open("rb") as stream:
        start = stream.read(64)
    if not any(start[offset : offset + len(magic)] == magic for offset, magic in (_SIF_MAGIC, _SQUASHFS_MAGIC)):
        raise SetupError(
            Problem(
                _FIELD,
                f"{str(path)!r} is neither a .sif nor a squashfs file",
                "build one with `apptainer build` from env_server/image/core.def",
            )
        )
    check_fuse(path)
