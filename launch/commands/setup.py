"""`computerrl setup`: the command around `launch.setup.machine_setup`, for an installed environment. `make setup` needs no
command."""

from __future__ import annotations

from pathlib import Path

import click

from computerrl.launch.commands.options import ConfigFile
from computerrl.launch.setup.machine_setup import run_setup


@click.command()
@click.argument("config", required=False, type=ConfigFile(), metavar="[CONFIG]")
@click.option("--image", metavar="NAME", help="Desktop image: core, full (all applications), or a path.")
@click.option("--mirror", metavar="URL", help="Debian archive to install from. Default: that of this machine's apt sources.")
@click.option("--download", is_flag=True, help="Fetch a model.name of the Hugging Face hub that is not in the cache.")
@click.help_option("-h", "--help")
def setup(config: Path | None, image: str | None, mirror: str | None, *, download: bool) -> None:
    """Set up this machine: find or install Apptainer, build the desktop image, convert the model.

    Image and model are those of CONFIG (default: those of configs/quickstart.yaml). Finished parts are skipped. Without root,
    the installed Apptainer is used; where there is none, the command prints what an administrator has to install. A model of the
    Hugging Face hub is downloaded with --download only.

    \b
    computerrl setup
    computerrl setup --image full
    computerrl setup quickstart --download
    """
    if config is None:
        if download:
            raise click.UsageError("--download needs a CONFIG, whose model.name is fetched")
        run_setup(image=image or "core", mirror=mirror)
        return
    from computerrl.common.config import load_config

    run = load_config(config)
    configured = run.desktop.image if run.desktop.driver == "apptainer" else None
    run_setup(image=image or configured, model=run.model.name, mirror=mirror, download=download)
