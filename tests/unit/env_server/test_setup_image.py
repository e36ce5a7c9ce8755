"""The recipe is read right, and a wrong image is refused with the next step before anything starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from computerrl.common.errors import Problem, SetupError
from computerrl.env_server.image import apptainer_install, build
from computerrl.env_server.image.build import build_image, image_folder, parse_recipe, read_recipe
from computerrl.env_server.image.find import image_path

RECIPE = Path(__file__).resolve().parents[3] / "env_server" / "image" / "core.def"


def test_read_recipe_core_has_all_parts() -> None:
    recipe = read_recipe("core")
    assert recipe.release == "bookworm"
    assert {"xvfb", "openbox", "libreoffice-calc", "libreoffice-writer", "chromium", "python3-zmq"} <= set(recipe.packages)
    assert "path-exclude=/usr/share/man/*" in recipe.dpkg_options
    assert "force-unsafe-io" in recipe.dpkg_options
    assert "chmod -R a+rX" in recipe.finish
    assert "apt-get install" not in recipe.finish
    assert "%labels" not in recipe.finish


def test_read_recipes_name_no_archive() -> None:
    for file in RECIPE.parent.glob("*.def"):
        assert "://" not in file.read_text(encoding="utf-8")


def test_parse_recipe_any_change_changes_digest() -> None:
    text = RECIPE.read_text(encoding="utf-8")
    assert parse_recipe("core", text).digest != parse_recipe("core", text + "\n# more\n").digest


def test_parse_recipe_lost_shape_is_named() -> None:
    text = RECIPE.read_text(encoding="utf-8").replace("# ---- AFTER PACKAGES ----", "")
    with pytest.raises(SetupError, match="commands after the packages"):
        parse_recipe("core", text)


def test_read_recipe_unknown_name_lists_known() -> None:
    with pytest.raises(SetupError, match="use one of core"):
        read_recipe("nothing")


def test_image_path_recipe_not_built_says_setup(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"not built(.|\n)*make setup"):
        image_path("core", tmp_path)


def test_image_path_built_recipe_is_its_folder(tmp_path: Path) -> None:
    folder = image_folder(read_recipe("core"), tmp_path)
    folder.mkdir(parents=True)
    assert image_path("core", tmp_path) == folder
    assert build_image("core", cache=tmp_path) == folder


def test_image_path_missing_path_lists_what_may_be_given(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no recipe and no file or folder(.|\n)*'core'"):
        image_path(str(tmp_path / "none.sif"))


def test_image_path_folder_without_desktop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no desktop image"):
        image_path(str(tmp_path))
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "Xvfb").touch()
    assert image_path(str(tmp_path)) == tmp_path


def test_image_path_file_of_other_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "core.sif").write_bytes(b"\x89PNG" + bytes(100))
    with pytest.raises(SetupError, match=r"neither a \.sif nor a squashfs"):
        image_path(str(tmp_path / "core.sif"))


@pytest.mark.parametrize("head", [bytes(32) + b"SIF_MAGIC", b"hsqs"])
def test_image_path_image_file_needs_fuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    (tmp_path / "core.sif").write_bytes(head + bytes(100))
    device = tmp_path / "fuse"
    monkeypatch.setattr(apptainer_install, "_FUSE", device)
    with pytest.raises(SetupError, match=r"/dev/fuse(.|\n)*--sandbox"):
        image_path(str(tmp_path / "core.sif"))
    device.touch(0o600)
    if os.geteuid() == 0:
        with pytest.raises(SetupError, match=r"/dev/fuse(.|\n)*--sandbox"):
            image_path(str(tmp_path / "core.sif"))
    device.chmod(0o666)
    assert image_path(str(tmp_path / "core.sif")) == tmp_path / "core.sif"
    assert apptainer_install.check_fuse(tmp_path) is None


def test_read_recipe_full_starts_from_core_and_repeats_nothing_of_it() -> None:
    core, full = read_recipe("core"), read_recipe("full")
    assert (core.base, full.base) == (None, "core")
    assert full.release == core.release
    assert {"libreoffice-impress", "vlc", "gimp", "thunderbird", "xfce4-terminal"} <= set(full.packages)
    assert not set(full.packages) & set(core.packages)
    assert "echo full > /opt/computerrl/image" in full.finish


def test_parse_recipe_change_of_the_one_it_starts_from_changes_digest() -> None:
    core, text = read_recipe("core"), (RECIPE.parent / "full.def").read_text(encoding="utf-8")
    other = parse_recipe("core", RECIPE.read_text(encoding="utf-8") + "\n# more\n")
    assert parse_recipe("full", text, base=core).digest == read_recipe("full").digest
    assert parse_recipe("full", text, base=other).digest != parse_recipe("full", text, base=core).digest


def test_parse_recipe_that_starts_from_nothing_needs_a_release() -> None:
    text = (RECIPE.parent / "full.def").read_text(encoding="utf-8")
    with pytest.raises(SetupError, match="OSVersion"):
        parse_recipe("full", text)


def test_build_image_builds_what_it_starts_from_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core, full = (image_folder(read_recipe(name), tmp_path) for name in ("core", "full"))
    built: list[tuple[str, Path | None]] = []

    def make(recipe: build.Recipe, folder: Path, *, base: Path | None, **_: object) -> None:
        built.append((recipe.name, base))
        folder.mkdir(parents=True)

    monkeypatch.setattr(build, "_build", make)
    assert build_image("full", cache=tmp_path, mirror="x") == full
    assert built == [("core", None), ("full", core)]
    assert build_image("full", cache=tmp_path, mirror="x") == full and len(built) == 2


def test_mmdebstrap_command_of_a_recipe_that_starts_from_a_folder_copies_and_adds(tmp_path: Path) -> None:
    core, full = read_recipe("core"), read_recipe("full")
    command = build._mmdebstrap(full, tmp_path / "root", base=tmp_path / "core image", mirror="x")
    shown = " ".join(command)
    assert "core image" in shown and "--variant=custom" in shown and "install libreoffice-impress vlc" in shown
    assert "--variant=custom" not in " ".join(build._mmdebstrap(core, tmp_path / "root", base=None, mirror="x"))


def test_mmdebstrap_command_lends_the_certificates_of_this_machine_to_downloads_and_takes_them_away(tmp_path: Path) -> None:
    hooks = build._mmdebstrap(read_recipe("osworld"), tmp_path / "root", base=tmp_path / "full", mirror="x")
    lent = next(index for index, hook in enumerate(hooks) if hook.startswith("--setup-hook") and "certificates" in hook)
    used = next(index for index, hook in enumerate(hooks) if "NODE_EXTRA_CA_CERTS=" in hook)
    taken = next(index for index, hook in enumerate(hooks) if hook.startswith("--customize-hook=rm") and "certificates" in hook)
    assert lent < used < taken


def test_osworld_recipe_names_the_versions_of_what_npm_brings() -> None:
    finish = read_recipe("osworld").finish
    assert re.search(r"node-\$machine@\d+\.\d+\.\d+ code-server@\d+\.\d+\.\d+\n", finish)
    assert "rm -r $npm" in finish


def test_command_code_of_the_osworld_recipe_is_python_that_knows_its_options(tmp_path: Path) -> None:
    text = read_recipe("osworld").finish.partition("<<'CODE'\n")[2].partition("\nCODE\n")[0]
    (tmp_path / "code").write_text(text)

    def said(*options: str) -> str:
        command = [sys.executable, str(tmp_path / "code"), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr

    assert said("--disable-extension", "a.b", "x") == "code: --disable-extension is not known here\n"
    assert "there is no network" in said("--install-extension", "a.b")


def test_build_new_image_that_does_not_work_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(command: list[str], **_: object) -> None:
        Path(command[-2]).mkdir()

    def refuse(image: Path) -> None:
        assert image.is_dir()
        raise SetupError(Problem("desktop.image", "no module gi", "build it again"))

    monkeypatch.setattr(build, "run_logged", fill)
    monkeypatch.setattr(build, "_require_builder", lambda *_, **__: None)
    monkeypatch.setattr(build, "is_root", lambda: True)
    with pytest.raises(SetupError, match="no module gi"):
        build_image("core", cache=tmp_path, mirror="x", check=refuse)
    assert list((tmp_path / "images").iterdir()) == []
    assert build_image("core", cache=tmp_path, mirror="x").is_dir()
