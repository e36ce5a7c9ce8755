"""The command `computerrl`.

Each command imports what it needs beyond click when it is called, so that `--help` is printed at once. Typed errors become a few
lines on stderr and the error's exit code. Any other error is a bug of ComputerRL and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from computerrl.launch.commands import cluster as cli_cluster
from computerrl.launch.commands import roles as cli_roles
from computerrl.launch.commands import watch as cli_watch
from computerrl.launch.commands.config import show_config
from computerrl.launch.commands.evaluate import evaluation, record
from computerrl.launch.commands.options import (
    AS_JSON,
    ConfigFile,
    Host,
    MeasuringCommand,
    SectionedGroup,
    Site,
    print_resolved,
    with_config,
)
from computerrl.launch.commands.serve import serve_desktops
from computerrl.launch.commands.simulate import simulate
from computerrl.launch.commands.tasks import tasks

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig
    from computerrl.common.errors import ComputerRLError


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Print the version and end, where it is ``wanted``."""
    if wanted:
        from computerrl import SOURCE_ROOT
        from computerrl.version import find_version

        click.echo(f"computerrl {find_version(SOURCE_ROOT)}")
        ctx.exit()


@click.group(
    cls=SectionedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="CONFIG is a YAML file, or the name of one in configs/. `computerrl COMMAND --help` shows options and examples.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
def cli() -> None:
    """Train language-model agents on real, contained desktops by online reinforcement learning.

    \b
    First time:       computerrl setup
                      computerrl doctor
    Train:            computerrl train quickstart
    Continue:         computerrl train quickstart --resume
    Watch:            computerrl status latest
                      computerrl replay latest
                      computerrl report latest
    Evaluate:         computerrl eval latest
    On a cluster:     computerrl plan CONFIG --site SITE
                      computerrl submit CONFIG --site SITE
    All settings:     computerrl config
    Try a change:     computerrl train quickstart learner.max_age=2 --dry-run
    Debug the loop:   computerrl train serial
    Try a desktop:    computerrl desktop --task calc-set-cell
    """


@click.command(short_help="Train with CONFIG on this machine.")
@with_config()
@click.option("--resume", is_flag=True, help="Continue the newest run of this name instead of starting a new one.")
@click.option("--dry-run", is_flag=True, help="Run all checks and print the processes, but start nothing.")
@click.option("--print-config", is_flag=True, help="Print all values of the configuration, but start nothing.")
@click.option("--dashboard", is_flag=True, help="Also show the run on a web page; its address is printed.")
@click.option("--download", is_flag=True, help="First fetch a model.name of the Hugging Face hub that is not in the cache.")
def train(
    config: Path,
    overrides: tuple[str, ...],
    *,
    resume: bool,
    dry_run: bool,
    print_config: bool,
    dashboard: bool,
    download: bool,
) -> None:
    """Train with CONFIG, with all processes on this machine, from the checks to the report.

    CONFIG is a YAML file, or the name of one in configs/. KEY=VALUE sets one of its fields. A new run never changes an old one:
    when runs/NAME exists, the new run is called NAME-2. Ctrl-C stops everything within five seconds. --resume continues from the
    last checkpoint and the journal. --dry-run has exit code 0 where the run would start; otherwise it prints all problems.
    Nothing is downloaded without --download (docs/reference/models.md).

    \b
    computerrl train quickstart
    computerrl train configs/quickstart.yaml desktop.num_desktops=2 name=small
    computerrl train quickstart learner.max_age=2 --dry-run
    computerrl train quickstart --resume
    """
    from computerrl.common.config import load_config

    resolved = load_config(config, overrides=overrides)
    if print_config:
        print_resolved(resolved, path=config)
    if dry_run:
        _dry_run(resolved, path=config, resume=resume)
    if print_config or dry_run:
        return
    if download:
        from computerrl.common.models.teacher import teacher_name
        from computerrl.launch.setup.machine_setup import bring_model

        for name in filter(None, (_model_of(resolved, resume=resume), teacher_name(resolved))):
            bring_model(name, download=True, progress=click.echo)
    # Before the imports below, which take a second or two.
    click.echo(f"checking {config} and this machine")
    from computerrl.launch.run import local

    code, _ = local.play(resolved, resume=resume, has_dashboard=dashboard)
    _end_run(code)


def _model_of(config: RunConfig, *, resume: bool) -> str:
    """`model.name` of the run that ``config`` starts or continues. Raises `ResumeError`."""
    from computerrl.launch.plan.run_names import find_resumable

    return (find_resumable(config) if resume else config).model.name


def _dry_run(config: RunConfig, *, path: Path, resume: bool) -> None:
    """Print the processes of ``config`` and their memory. Raises the errors that `train` would raise."""
    click.echo(f"# processes of {path}")
    from computerrl.common.models.engine_choice import engine_here
    from computerrl.launch.plan.machine import inspect_machine
    from computerrl.launch.plan.resources import describe_choice, describe_images, plan_memory
    from computerrl.launch.plan.run_names import find_resumable
    from computerrl.launch.run.local import plan_for
    from computerrl.launch.run.preflight import run_preflight

    if resume:
        config = find_resumable(config)
    if config.mode == "serial":
        click.echo("one process: broker, desktops, actor and learner in turn, in-memory transport")
    else:
        for spec in plan_for(config):
            settings = " ".join(f"{key}={value}" for key, value in spec.env.items() if key == "OMP_NUM_THREADS")
            nice = f" nice={spec.nice}" if spec.nice else ""
            click.echo(f"{spec.name:14} {settings}{nice}  {' '.join(spec.argv)}")
    click.echo("# memory, estimated")
    memory = plan_memory(config, inspect_machine())
    for what, count, each_mb in memory.parts:
        click.echo(f"{what:22} {count} x {each_mb} MiB")
    click.echo(describe_choice(config, memory.choice))
    if config.actor.engine == "auto":
        click.echo(f"engine auto: {engine_here(config).text}")
    if images := describe_images(config, memory.choice):
        click.echo(images)
    click.echo("# checks")
    run_preflight(config)
    click.echo("all passed: without --dry-run, this command starts the run")


def _end_run(code: int) -> NoReturn:
    """End the process with the run's exit code. For a run that was stopped or failed, print the command that continues it."""
    if code:
        words = [word for word in sys.argv[1:] if word != "--resume"]
        click.echo(f"to continue: {shlex.join(['computerrl', *words, '--resume'])}", err=True)
    sys.exit(code)


@click.command(short_help="Check this machine, and print the next steps.")
@click.argument("config", type=ConfigFile(), metavar="[CONFIG]", required=False)
@click.option("--site", type=Site(), metavar="SITE", help="Also check this site profile: Slurm, network, folders.")
@AS_JSON
def doctor(config: Path | None, site: str | None, *, as_json: bool) -> None:
    """Check this machine and print, for everything that is missing, what to do or to ask the administrator for.

    With CONFIG, the needs of that run are checked. On a cluster, check a compute node as well as the login node:

    \b
    computerrl doctor quickstart --site my-cluster
    srun --partition gpu --gres=gpu:1 computerrl doctor --site my-cluster
    """
    from computerrl.common.config import load_config, load_site
    from computerrl.launch.commands.doctor import run_doctor

    chosen = load_site(site) if site is not None else None
    sys.exit(run_doctor(as_json=as_json, site=chosen, config=load_config(config) if config is not None else None))


@click.command(short_help="Write the trained model as a Hugging Face folder.")
@click.argument("source", metavar="RUN_OR_CHECKPOINT")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT_FOLDER")
def export(source: str, out: Path) -> None:
    """Write the trained model as a Hugging Face folder, for transformers, vLLM, or as `model.name` of another run.

    RUN_OR_CHECKPOINT is a run or one folder of its checkpoints/. Of a run, which may be at work, the newest complete checkpoint
    is taken. OUT_FOLDER must not exist yet.

    \b
    computerrl export latest trained
    computerrl export runs/quickstart/checkpoints/checkpoint-000007 trained
    computerrl train quickstart model.name=trained
    """
    from computerrl.common.errors import ConfigError, Problem
    from computerrl.launch.plan.run_names import find_checkpoint

    run, checkpoint = find_checkpoint(source)
    if out.exists():
        raise ConfigError([Problem("OUT_FOLDER", f"{str(out)!r} exists already", "give a folder that does not exist yet")])
    from computerrl.launch.progress import Progress

    with Progress(f"exporting {(checkpoint or run).name}", unit="parts", total=4) as shown:
        from computerrl.learner.checkpoints.export import export_model

        written = export_model(run, out, checkpoint=checkpoint, tell=shown)
    click.echo(written)


@click.command(short_help="Open a desktop in a web page; record demonstrations.")
@click.option("--task", "family", metavar="FAMILY", help="First task family (web-click-button); with --mcp, the only one.")
@click.option("--list", "lists", is_flag=True, help="List the task families, as `computerrl tasks list` does, and end.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the first task.")
@click.option("--image", default="core", show_default=True, help="Desktop image: the name of a recipe, or a path.")
@click.option(
    "--driver",
    default="apptainer",
    show_default=True,
    type=click.Choice(["apptainer", "local", "scripted"]),
    help="Driver of the desktop (`computerrl config desktop.driver`).",
)
@click.option("--recordings", default="demonstrations", show_default=True, metavar="FOLDER", help="Folder of recordings.")
@click.option("--host", default="127.0.0.1", type=Host(), show_default=True, help="Address to listen on, without encryption.")
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0: any free port.")
@click.option("--open/--no-open", "open_browser", default=None, help="Open a browser. Default: only where there is a display.")
@click.option("--mcp", is_flag=True, help="No page: serve the desktop to an assistant, with MCP over stdin and stdout.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON instead of a table.")
def desktop(*, lists: bool, mcp: bool, as_json: bool, **options: Any) -> None:
    """Open one desktop in a web page, to try actions on it and to record demonstrations.

    Mouse and keyboard are translated into the actions of an agent. Only a person with the printed address can use the page.
    Ctrl-C ends the desktop and removes its files.

    \b
    computerrl desktop --task calc-type-cell --seed 3
    computerrl train quickstart tasks.recordings=demonstrations
    claude mcp add desktop -- computerrl desktop --mcp
    """
    if lists:
        from computerrl.launch.commands.tasks import list_families

        sys.exit(list_families("", as_json=as_json))
    if as_json:
        raise click.UsageError("--json goes with --list")
    from computerrl.launch.commands.desktop import DesktopOptions, run_desktop, run_mcp

    sys.exit((run_mcp if mcp else run_desktop)(DesktopOptions(**options)))


@click.command(cls=MeasuringCommand, kind="benchmark", short_help="Run a benchmark: how fast something is.")
@click.argument("name", required=False)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write rows or list to this file too.")
@click.option("--quick", is_flag=True, help="End within a minute (`serve`: some minutes), with a wider spread.")
@click.option("--gpus", type=click.IntRange(1, 64), metavar="N", help="Of `gpu`: also check what needs N GPUs. Default: 1.")
@click.option("--minutes", type=click.FloatRange(0.1, 120), metavar="N", help="Of `gpu`: time limit. Default: 4, with --gpus 8.")
@click.option("--part", multiple=True, metavar="PART", help="Of `gpu`, `serve`: run this part alone; may be given several times.")
@click.option(
    "--osworld-server",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Of `serve`: measure the server in DIR (OSWorld's desktop_env/server) too, in the same desktop.",
)
@click.option(
    "--server-packages",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Of `serve`: folder with the Python packages that this server imports.",
)
def bench(name: str | None, json_file: Path | None, *, quick: bool, **options: Any) -> None:
    """Run benchmark NAME and print its table. Without NAME, list the benchmarks.

    The exit code is 1 when a check failed. A check that was not run does not count.

    \b
    computerrl bench
    computerrl bench broker --help
    computerrl bench broker --quick
    computerrl bench gpu --gpus 4 --json gpu.json
    computerrl bench serve --part controllers --osworld-server DIR
    """
    from computerrl.launch.commands.measure import run_bench

    given = {option: value for option, value in options.items() if value}
    sys.exit(run_bench(name, json_file=json_file, quick=quick, options=given))


@click.command(cls=MeasuringCommand, kind="study", short_help="Run a study: the effect of a choice on training.")
@click.argument("name", required=False)
@click.option("--seeds", "num_seeds", type=click.IntRange(1, 100), help="Number of runs of each arm. Default: that of the study.")
@click.option("--out", "folder", type=click.Path(path_type=Path, file_okay=False), help="Output folder. Default: studies/NAME.")
@click.option("--quick", is_flag=True, help="Take a minute with an untrained model; a test of the study, not an answer.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Begin with the results in FILE, a data.json that this study wrote on another machine, and make those missing.",
)
@click.option("--model", metavar="NAME", help="Model in place of the study's own: a built-in one, or a folder.")
@click.option("--json", "as_json", is_flag=True, help="Without NAME: print JSON instead of a table.")
def study(
    name: str | None,
    folder: Path | None,
    num_seeds: int | None,
    results: Path | None,
    model: str | None,
    *,
    quick: bool,
    as_json: bool,
) -> None:
    """Run study NAME, which measures the effect of a choice on training. Without NAME, list the studies.

    A study trains many policies, most of them on real desktops and for hours. It writes a folder with README.md (the question, a
    table, a plot, and the limits of the answer), data.json and data.csv. The same command continues an interrupted study.

    \b
    computerrl study
    computerrl study asynchrony --help
    computerrl study asynchrony
    computerrl study staleness --quick --out /tmp/staleness
    computerrl study faults --seeds 5 --results docs/results/data/faults.json
    computerrl study grounding --model path/of/a/vision-language-model
    """
    from computerrl.launch.commands.measure import listed, run_study

    if as_json:
        if name is not None:
            raise click.UsageError("--json lists the studies: leave out NAME; a study writes its data.json")
        click.echo(listed("study"))
        return
    run_study(name, folder=folder, quick=quick, num_seeds=num_seeds, results=results, model=model)


@click.command(short_help="Set up this machine: Apptainer, image, model.")
@click.argument("config", required=False, type=ConfigFile(), metavar="[CONFIG]")
@click.option("--image", metavar="NAME", help="Desktop image: core, full, osworld (most programs), or a path.")
@click.option("--mirror", metavar="URL", help="Debian archive to install from. Default: that of this machine's apt sources.")
@click.option("--download", is_flag=True, help="Fetch a model.name of the Hugging Face hub that is not in the cache.")
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
    from computerrl.launch.setup.machine_setup import run_setup

    if config is None:
        if download:
            raise click.UsageError("--download needs a CONFIG, whose model.name is fetched")
        run_setup(image=image or "core", mirror=mirror)
        return
    from computerrl.common.config import load_config

    run = load_config(config)
    configured = run.desktop.image if run.desktop.driver == "apptainer" else None
    run_setup(image=image or configured, model=run.model.name, mirror=mirror, download=download)


@click.command(short_help="Print what completes commands in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion(shell: str) -> None:
    """Print what makes SHELL (bash, zsh or fish) complete commands, options, configurations and runs.

    \b
    computerrl completion bash >> ~/.bashrc
    computerrl completion zsh >> ~/.zshrc
    computerrl completion fish > ~/.config/fish/completions/computerrl.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "one of click's own"
    click.echo(kind(cli, {}, "computerrl", "_COMPUTERRL_COMPLETE").source())


cli.add_section("This machine", (setup, doctor, desktop, serve_desktops, completion))
cli.add_section("Runs", (train, show_config, evaluation, record, export, tasks))
cli.add_section("Watching and controlling a run", cli_watch.COMMANDS)
cli.add_section("Several machines", cli_cluster.COMMANDS)
cli.add_section("Measuring", (bench, study, simulate))
cli.add_section("Single processes of a run, all with the same CONFIG", cli_roles.COMMANDS)


def main() -> NoReturn:
    """Entry point of the command."""
    from computerrl.common.errors import ComputerRLError, Problem, SetupError

    try:
        _require_folder()
        cli(standalone_mode=False)
        _exit(0)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and "." in error.option_name:
            click.echo(f"    -> set a field without dashes: {error.option_name.lstrip('-')}=VALUE", err=True)
        _exit(2)
    except click.exceptions.Abort:
        _exit(130)
    except click.exceptions.Exit as error:
        _exit(error.exit_code)
    except SystemExit as error:
        if isinstance(error.code, str):
            raise
        _exit(error.code or 0)
    except ComputerRLError as error:
        _show(error)
        _exit(error.exit_code)
    except OSError as error:
        from computerrl.common.lifecycle import SUPERVISOR_VARIABLE  # Only here: it brings the messages, and numpy.

        if error.errno not in _OF_PLACES or SUPERVISOR_VARIABLE in os.environ:
            raise
        if error.filename is not None:
            step = "choose another place, or get permission to use this one"
            problem = Problem(str(error.filename), str(error.strerror), step)
        elif error.errno in _FULL:
            problem = Problem("disk", str(error.strerror), "free some space on the disk of the output and of the run folder")
        else:
            raise
        _show(SetupError(problem))
        _exit(SetupError.exit_code)


def _require_folder() -> None:
    """Raise `ConfigError` where the current folder was removed, because relative paths would lead nowhere."""
    from computerrl.common.errors import ConfigError, Problem

    try:
        os.getcwd()
    except OSError as error:
        problem = Problem("current folder", f"cannot be used: {error.strerror}", "change to a folder that exists")
        raise ConfigError([problem]) from None


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_PLACES = _FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}
"""System errors that name a path which the user chose. A process under a supervisor keeps its traceback."""


def _exit(exit_code: int) -> NoReturn:
    """End the process. Where torch is loaded, skip the interpreter's shutdown, which takes over a second."""
    if "torch" not in sys.modules:
        sys.exit(exit_code)
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _show(error: ComputerRLError) -> None:
    """Print a few lines for the user, and write the file that the supervisor reads."""
    problems = [finding.problem for finding in getattr(error, "findings", ())] or list(getattr(error, "problems", ()))
    if len(problems) > 1:
        print(f"error: {len(problems)} problems", file=sys.stderr)
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    from computerrl.launch.supervision.role_errors import leave_error

    leave_error(error)
