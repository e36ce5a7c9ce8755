"""Commands of `computerrl` that are one process of a run each. `computerrl train` starts all of them. Each command imports its
role when it is called."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computerrl.launch.commands.options import with_config

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig
    from computerrl.common.lifecycle import StopToken

RoleEntry = Callable[["RunConfig", int, "StopToken"], None]

INDEX = click.option("--index", default=0, type=click.IntRange(min=0), show_default=True, help="Number of the process.")


def _run_role(path: Path, overrides: tuple[str, ...], entry: RoleEntry, *, role: str, index: int) -> None:
    """Run ``entry`` as process ``index`` of ``role``: it dies with its supervisor, logs, and stops on signals."""
    from computerrl.common import lifecycle, log
    from computerrl.common.config import load_config
    from computerrl.launch.supervision import processes

    faulthandler.enable()  # A crash in foreign code (torch, ZeroMQ) leaves its stack in the log.
    supervisor = os.environ.get(lifecycle.SUPERVISOR_VARIABLE)
    if supervisor is not None:
        lifecycle.die_with_parent()
        # torchrun or a container's runtime may be between the supervisor and this process; they die with it.
        if int(supervisor) not in processes.ancestors(os.getpid()):
            sys.exit(f"supervisor {supervisor} has ended before this process began")
    log.configure(as_json=supervisor is not None)
    config = load_config(path, overrides=overrides)
    if supervisor is None:
        config = _prepare_folder(config, role=role)
    stop = lifecycle.StopToken()
    lifecycle.stop_on_signals(stop)
    entry(config, index, stop)


def _prepare_folder(config: RunConfig, *, role: str) -> RunConfig:
    """Make the run folder of a process that was started by hand. The first process makes it; only the broker writes the
    configuration again. Returns the configuration with the model's revision and number type that the first process recorded."""
    from computerrl.common.run_files.run_folder import RunFolder
    from computerrl.launch.plan.run_names import with_pinned_model, with_recorded_model

    folder = RunFolder(config.folder)
    there = folder.resolved_config.exists()
    config = with_recorded_model(config, config.folder) if there else with_pinned_model(config)
    if role == "broker" or not there:
        folder.create(config)
    return config


@click.command(short_help="Run the broker: assignments, groups, journal.")
@with_config()
@INDEX
def broker(config: Path, overrides: tuple[str, ...], index: int) -> None:
    """Run the broker. It assigns episodes, journals trajectories, and knows the addresses of all processes.

    \b
    computerrl broker quickstart
    """

    def entry(run_config: RunConfig, _index: int, stop: StopToken) -> None:
        from computerrl.broker.process import run_broker

        run_broker(run_config, stop=stop)

    _run_role(config, overrides, entry, role="broker", index=index)


@click.command("env-server", short_help="Run an env_server: desktops for actors.")
@with_config()
@INDEX
def env_server(config: Path, overrides: tuple[str, ...], index: int) -> None:
    """Run an env_server, which leases desktops to actors. Each node with desktops has one.

    \b
    computerrl env-server quickstart --index 0
    """

    def entry(run_config: RunConfig, index: int, stop: StopToken) -> None:
        from computerrl.env_server.process import run_env_server

        run_env_server(run_config, index=index, stop=stop)

    _run_role(config, overrides, entry, role="env_server", index=index)


@click.command(short_help="Run an actor: plays episodes.")
@with_config()
@INDEX
def actor(config: Path, overrides: tuple[str, ...], index: int) -> None:
    """Run an actor, which plays episodes with the newest policy.

    \b
    computerrl actor quickstart --index 0
    """

    def entry(run_config: RunConfig, index: int, stop: StopToken) -> None:
        from computerrl.actor.process import run_actor

        run_actor(run_config, index=index, stop=stop)

    _run_role(config, overrides, entry, role="actor", index=index)


@click.command(short_help="Run an engine that samples for all actors.")
@with_config()
@INDEX
def engine(config: Path, overrides: tuple[str, ...], index: int) -> None:
    """Run an engine process, which samples completions for all actors (actor.inference=central).

    \b
    computerrl engine quickstart actor.inference=central --index 0
    """

    def entry(run_config: RunConfig, index: int, stop: StopToken) -> None:
        from computerrl.common import lifecycle

        with lifecycle.gc_paused():
            from computerrl.actor.serving.process import run_engine

        run_engine(run_config, index=index, stop=stop)

    _run_role(config, overrides, entry, role="engine", index=index)


@click.command(short_help="Run the learner: phases, training, weights.")
@with_config()
@INDEX
def learner(config: Path, overrides: tuple[str, ...], index: int) -> None:
    """Run the learner. It conducts the phases, trains, and broadcasts weights, and ends with the last phase.

    \b
    computerrl learner quickstart
    """

    def entry(run_config: RunConfig, index: int, stop: StopToken) -> None:
        from computerrl.common import lifecycle

        with lifecycle.gc_paused():
            from computerrl.learner.process import run_learner

        run_learner(run_config, index=index, stop=stop)

    _run_role(config, overrides, entry, role="learner", index=index)


COMMANDS = (broker, env_server, actor, engine, learner)
