"""The command `computerrl`.

Everything beyond click is imported by the command that needs it, so that `--help` answers at once. Typed errors become a few
lines on stderr and the error's exit code; anything else is a bug of ours and keeps its traceback.
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
from computerrl.launch.commands.options import SET, ConfigFile, Host, Number, SectionedGroup, Site, print_resolved, with_config
from computerrl.launch.commands.simulate import simulate

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig
    from computerrl.common.errors import ComputerRLError


@click.group(
    cls=SectionedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="CONFIG is a YAML file; see configs/. `computerrl COMMAND --help` has the options and examples.",
)
@click.version_option(package_name="computerrl", message="computerrl %(version)s")
def cli() -> None:
    """Train language-model agents on real, contained desktops by online reinforcement learning.

    \b
    First time:       computerrl setup
                      computerrl doctor
    Train:            computerrl train quickstart
    On a cluster:     computerrl plan CONFIG --site SITE
                      computerrl submit CONFIG --site SITE
    Continue:         computerrl train quickstart --resume
    Look:             computerrl status latest
                      computerrl replay latest
                      computerrl report latest
    Evaluate:         computerrl eval latest
    Try a change:     computerrl train quickstart learner.max_age=2 --dry-run
    Debug the loop:   computerrl train serial
    Try a desktop:    computerrl desktop --task calc-set-cell
    """


@click.command(short_help="Train CONFIG on this machine, from checks to report.")
@with_config()
@click.option("--resume", is_flag=True, help="Continue the newest run of this name instead of starting a new one.")
@click.option("--dry-run", is_flag=True, help="Check all that can be checked, print the processes, start nothing.")
@click.option("--print-config", is_flag=True, help="Print the resolved configuration, start nothing.")
@click.option("--dashboard", is_flag=True, help="Show the run on a page, too; its address is printed.")
def train(config: Path, overrides: tuple[str, ...], *, resume: bool, dry_run: bool, print_config: bool, dashboard: bool) -> None:
    """Run CONFIG from set-up check to report, all processes on this machine.

    CONFIG is a YAML file, or the name of one in configs/. KEY=VALUE sets a field of it. A new run never touches an old one: when
    runs/NAME exists, it is called NAME-2. Ctrl-C stops everything within five seconds; --resume continues where the last
    checkpoint and the journal are. --dry-run has exit code 0 where the run would start, and else prints all that is in the way.

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
    # Before the imports below, which take a second or two.
    click.echo(f"checking {config} and this machine")
    from computerrl.launch.run import local

    code, _ = local.play(resolved, resume=resume, has_dashboard=dashboard)
    _end_run(code)


def _dry_run(config: RunConfig, *, path: Path, resume: bool) -> None:
    """Print the processes of ``config`` and their memory. Raises what `train` would raise."""
    click.echo(f"# processes of {path}")
    from computerrl.launch.plan.machine import inspect_machine
    from computerrl.launch.plan.resources import describe_choice, plan_memory
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
    click.echo("# checks")
    run_preflight(config)
    click.echo("all passed: without --dry-run, this command starts the run")


def _end_run(code: int) -> NoReturn:
    """End the process as its run has ended. A run that was stopped or failed leaves the command that continues it."""
    if code:
        words = [word for word in sys.argv[1:] if word != "--resume"]
        click.echo(f"to continue: {shlex.join(['computerrl', *words, '--resume'])}", err=True)
    sys.exit(code)


@click.command(short_help="Check this machine: what is missing, what to do about it.")
@click.argument("config", type=ConfigFile(), metavar="[CONFIG]", required=False)
@click.option("--site", type=Site(), metavar="SITE", help="Also check what this profile says: Slurm, network, folders.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def doctor(config: Path | None, site: str | None, *, as_json: bool) -> None:
    """Print what this machine has, what is missing, and what to do about it or ask the administrator for.

    On a cluster, ask a node as well as the login node:

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

    RUN_OR_CHECKPOINT is a run (its newest whole checkpoint is taken; it may be running) or one folder of its checkpoints/.
    OUT_FOLDER must not exist yet.

    \b
    computerrl export latest trained
    computerrl export runs/quickstart/checkpoints/checkpoint-000007 trained
    computerrl train quickstart model.name=trained
    """
    from computerrl.common.errors import ConfigError, Problem
    from computerrl.launch.plan.run_names import find_checkpoint

    run, checkpoint = find_checkpoint(source)
    if out.exists():
        raise ConfigError([Problem("OUT_FOLDER", f"{str(out)!r} exists", "give a folder that does not exist yet")])
    click.echo(f"{checkpoint or run}: reading the weights, which takes up to a minute", err=True)
    from computerrl.learner.checkpoints.export import export_model

    click.echo(export_model(run, out, checkpoint=checkpoint))


@click.command("eval", short_help="Play a checkpoint on held-out tasks: pass@K, intervals.")
@click.argument("source", default="latest", metavar="[CHECKPOINT]")
@click.option("--tasks", "families", help="Task families, separated by commas; else those of the run.")
@click.option("--episodes", type=click.IntRange(min=1), help="Held-out instances of each family; else as the run has it.")
@click.option("--rollouts", type=click.IntRange(1, 256), default=1, show_default=True, help="Of each instance: K tells pass@K.")
@click.option("--temperature", type=Number(0, 1000), help="Of sampling; else 0 for one rollout and 1 for several.")
@click.option("--config", type=ConfigFile(), metavar="CONFIG", help="Other settings; else the run's.")
@click.option("--endpoint", metavar="URL", help="A vLLM server that holds the model; CHECKPOINT is a folder with its tokenizer.")
@click.option("--resume", is_flag=True, help="Continue an evaluation that was broken off, asked for in the same way.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@SET
def evaluate(source: str, families: str | None, overrides: tuple[str, ...], *, as_json: bool, **wishes: Any) -> None:
    """Play CHECKPOINT on held-out tasks: pass@1 to pass@K with 95 % intervals, for each family.

    CHECKPOINT is a run (its newest whole checkpoint), one folder of its checkpoints/, or a Hugging Face folder with --config.
    Writes evaluation.json and evaluation.html into a run folder of its own; the tasks' seeds are fixed (tasks.evaluation_seeds).

    \b
    computerrl eval latest
    computerrl eval latest --tasks calc-set-cell,files-move
    computerrl eval runs/quickstart/checkpoints/checkpoint-000007
    computerrl eval latest --rollouts 8 --temperature 0.7
    computerrl eval trained --config quickstart
    computerrl eval theirs --config quickstart --endpoint http://127.0.0.1:8000/v1

    With --endpoint a server samples (vllm serve theirs). --set actor.endpoint.model=NAME chooses one of several models that it
    serves; --set actor.endpoint.key_file=FILE names the file of its key (chmod 600).
    """
    from computerrl.launch.run.evaluate import Wish, evaluate

    chosen = tuple(families.split(",")) if families is not None else None
    sys.exit(evaluate(Wish(source, families=chosen, overrides=overrides, **wishes), as_json=as_json))


@click.command(short_help="Open one desktop in a web page; record demonstrations.")
@click.option("--task", "family", default="web-click-button", show_default=True, metavar="FAMILY", help="Task to begin with.")
@click.option("--list", "lists", is_flag=True, help="List the tasks, as `computerrl tasks list` does, and open nothing.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Which instance of it.")
@click.option("--image", default="core", show_default=True, help="Desktop image: a recipe's name or a path.")
@click.option("--driver", default="apptainer", show_default=True, type=click.Choice(["apptainer", "local", "scripted"]))
@click.option("--recordings", default="demonstrations", show_default=True, metavar="FOLDER", help="Where saved ones go.")
@click.option("--host", default="127.0.0.1", type=Host(), show_default=True, help="Address to listen on; nothing is encrypted.")
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--open/--no-open", "open_browser", default=None, help="Open a browser; without either, where there is a display.")
def desktop(*, lists: bool, **options: Any) -> None:
    """Open one desktop in a web page, to look at it, try actions, and record demonstrations.

    Mouse and keys take the same way as an agent's actions. Only whoever has the printed address can use it. Ctrl-C ends the
    desktop and leaves nothing.

    \b
    computerrl desktop --task calc-type-cell --seed 3
    computerrl train quickstart tasks.recordings=demonstrations
    """
    if lists:
        from computerrl.launch.commands.tasks import list_families

        sys.exit(list_families(""))
    from computerrl.launch.commands.desktop import DesktopOptions, run_desktop

    sys.exit(run_desktop(DesktopOptions(**options)))


@click.command(short_help="Run benchmark NAME; without NAME, list them.")
@click.argument("name", required=False)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the rows to this file.")
@click.option("--quick", is_flag=True, help="Finish within a minute, with wider spread.")
def bench(name: str | None, json_file: Path | None, *, quick: bool) -> None:
    """Run benchmark NAME (a file in benchmarks/) and print its table; without NAME, list them.

    \b
    computerrl bench
    computerrl bench broker --quick
    """
    from computerrl.launch.commands.measure import run_bench

    sys.exit(run_bench(name, json_file=json_file, quick=quick))


@click.command(short_help="Run study NAME: what a choice does to training.")
@click.argument("name", required=False)
@click.option("--seeds", "num_seeds", type=click.IntRange(1, 100), help="Runs of each arm; by default what the study says.")
@click.option("--out", "folder", type=click.Path(path_type=Path, file_okay=False), help="Where to write; default: studies/NAME.")
@click.option("--quick", is_flag=True, help="A minute with an untrained model: shows that it works, and answers nothing.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Begin with the results in FILE, a data.json that this study wrote elsewhere; only what is missing is made.",
)
def study(name: str | None, folder: Path | None, num_seeds: int | None, results: Path | None, *, quick: bool) -> None:
    """Run study NAME (a file in benchmarks/studies/): what a choice does to training. Without NAME, list them.

    A study trains many policies, most on real desktops and for hours. It writes a folder: README.md (the question, a table, a
    plot, and what it does not show), data.json and data.csv. Broken off, the same command goes on where it ended.

    \b
    computerrl study
    computerrl study asynchrony
    computerrl study staleness --quick --out /tmp/staleness
    computerrl study entropulse --seeds 8 --results docs/data/entropulse.json
    """
    from computerrl.launch.commands.measure import run_study

    run_study(name, folder=folder, quick=quick, num_seeds=num_seeds, results=results)


@click.group(short_help="List task families; check task files of others.")
def tasks() -> None:
    """List the task families, and check task files of other collections.

    \b
    computerrl tasks list calc
    computerrl tasks check evaluation_examples/examples
    """


@tasks.command("list", short_help="List the task families whose name starts with BEGINNING.")
@click.argument("beginning", default="", metavar="[BEGINNING]")
def tasks_list(beginning: str) -> None:
    """List the task families, all or those whose name starts with BEGINNING.

    \b
    computerrl tasks list
    computerrl tasks list calc
    """
    from computerrl.launch.commands.tasks import list_families

    sys.exit(list_families(beginning))


@tasks.command("check", short_help="Check which OSWorld task files can be run here.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--assets", type=click.Path(path_type=Path), help="Folder with the files that tasks download.")
@click.option(
    "--app", "apps", multiple=True, metavar="NAME", help="An application the desktops have; replaces the standard list."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the report to this file.")
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Run whose prompts hold the tasks.")
@click.option("--play", is_flag=True, help="Also set each task up on a desktop, and judge it untouched.")
def tasks_check(
    folder: Path, assets: Path | None, apps: tuple[str, ...], json_file: Path | None, config: Path | None, play: bool
) -> None:
    """Say of every OSWorld or OfficeWorld task file below DIR whether it can be run here, and if not, why.

    Opens no connection, and starts no desktop without --play. With it, tasks that can be run are set up on desktops (of CONFIG;
    without it one of image full) and judged untouched: one that pays for doing nothing, or fails, is refused.

    A file that a task downloads from https://HOST/a/b/c.xlsx is looked up at ASSETS/a/b/c.xlsx (a plain mirror), at
    ASSETS/HOST/a/b/c.xlsx, or with leading folders of the path left out.

    Tasks whose instruction does not fit the prompts of CONFIG (without it: of the default settings) get a note: they can be run,
    and the end of the instruction, or the screen, would be left out.

    Exit code 0: every task can be run; 1: some cannot; 2: DIR or ASSETS is wrong.

    \b
    computerrl tasks check evaluation_examples/examples
    computerrl tasks check examples --assets ~/osworld-cache --json report.json
    computerrl tasks check examples/chrome --app chrome
    computerrl tasks check examples/vlc --play
    """
    from computerrl.launch.commands.tasks import run_check

    sys.exit(run_check(folder, assets=assets, json_file=json_file, apps=apps, config_file=config, play=play))


class _LazySetup(click.Command):
    """`computerrl setup` belongs to launch.setup, options included; it is imported only when asked for."""

    def __init__(self) -> None:
        super().__init__("setup", add_help_option=False, short_help="Make this machine ready: Apptainer, image, model.")
        self.ignore_unknown_options = True
        self.allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    def invoke(self, ctx: click.Context) -> Any:
        from computerrl.launch.commands.setup import setup

        return setup.main(args=ctx.args, prog_name="computerrl setup", standalone_mode=False)


cli.add_section("This machine", (_LazySetup(), doctor, desktop))
cli.add_section("Runs", (train, show_config, evaluate, export, tasks))
cli.add_section("Looking at a run, and steering it", cli_watch.COMMANDS)
cli.add_section("Several machines", cli_cluster.COMMANDS)
cli.add_section("Measuring", (bench, study, simulate))
cli.add_section("One process of a run alone, each with the same CONFIG", cli_roles.COMMANDS)


def main() -> NoReturn:
    """Entry point of the command."""
    from computerrl.common.errors import ComputerRLError, Problem, SetupError
    from computerrl.common.lifecycle import SUPERVISOR_VARIABLE

    try:
        _require_folder()
        cli(standalone_mode=False)
        _exit(0)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and "." in error.option_name:
            click.echo(f"    -> a field is set without dashes: {error.option_name.lstrip('-')}=VALUE", err=True)
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
        if error.errno not in _OF_PLACES or SUPERVISOR_VARIABLE in os.environ:
            raise
        if error.filename is not None:
            step = "name another place, or ask for the right to use this one"
            problem = Problem(str(error.filename), str(error.strerror), step)
        elif error.errno in _FULL:
            problem = Problem("disk", str(error.strerror), "free some space where the output and the run folder go")
        else:
            raise
        _show(SetupError(problem))
        _exit(SetupError.exit_code)


def _require_folder() -> None:
    """Raise `ConfigError` where the current folder was removed: paths would lead nowhere."""
    from computerrl.common.errors import ConfigError, Problem

    try:
        os.getcwd()
    except OSError as error:
        problem = Problem("current folder", f"cannot be used: {error.strerror}", "change to a folder that is there")
        raise ConfigError([problem]) from None


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_PLACES = _FULL | {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}
"""Refusals of the system that name the place which a person chose. A process under a supervisor keeps its traceback."""


def _exit(exit_code: int) -> NoReturn:
    """End the process; one that has torch loaded without tearing the interpreter down, which takes over a second."""
    if "torch" not in sys.modules:
        sys.exit(exit_code)
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _show(error: ComputerRLError) -> None:
    """A few lines for the person, and the file the supervisor reads."""
    problems = [finding.problem for finding in getattr(error, "findings", ())] or list(getattr(error, "problems", ()))
    if len(problems) > 1:
        print(f"error: {len(problems)} problems", file=sys.stderr)
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    from computerrl.launch.supervision.role_errors import leave_error

    leave_error(error)
