"""`computerrl tasks list`, `prove`, `check`, `import` and `synthesize`: the task families, the tasks of other collections, and
tasks found by random walks."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computerrl import SOURCE_ROOT
from computerrl.common.errors import ConfigError, Problem
from computerrl.launch.commands.options import AS_JSON
from computerrl.launch.progress import Progress, tracked

if TYPE_CHECKING:
    from computerrl.common.config import DesktopConfig, RunConfig, TasksConfig
    from computerrl.env_server.tasks.osworld.check import Report


@click.group(short_help="List, prove and synthesize tasks; check or import other collections.")
def tasks() -> None:
    """List the task families, prove some of them, check or import the tasks of other collections, or synthesize tasks.

    \b
    computerrl tasks list calc
    computerrl tasks prove calc-set-cell
    computerrl tasks check evaluation_examples/examples
    computerrl tasks import cua-gym bundles imported
    computerrl tasks synthesize calc walked --num 20
    """


@tasks.command("list", short_help="List the task families whose name starts with BEGINNING.")
@click.argument("beginning", default="", metavar="[BEGINNING]")
@click.option("--pixels", is_flag=True, help="Only families that can be demonstrated to a policy that sees screenshots alone.")
@AS_JSON
def tasks_list(beginning: str, *, pixels: bool, as_json: bool) -> None:
    """List the task families: all, or those whose name starts with BEGINNING.

    With --pixels, families are left out that have no demonstrator, or one that calls applications instead of using mouse and
    keyboard. Exit code 1: no family is left.

    \b
    computerrl tasks list
    computerrl tasks list calc
    computerrl tasks list web --pixels
    """
    sys.exit(list_families(beginning, from_pixels=pixels, as_json=as_json))


@tasks.command("prove", short_help="Play FAMILIES on a desktop: untouched 0, demonstrated 1.")
@click.argument("families", nargs=-1, required=True, metavar="FAMILIES...")
@click.option("--seeds", "num_seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Instances of each family.")
@click.option(
    "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Configuration with the desktops and tasks."
)
@click.option("--image", metavar="NAME", help="Image of the desktops: core, full, osworld. Default: that of CONFIG, or full.")
@AS_JSON
def tasks_prove(families: tuple[str, ...], num_seeds: int, *, config: Path | None, image: str | None, as_json: bool) -> None:
    """Play training instances of FAMILIES on desktops. Each must score 0 untouched, and 1 after the family's own demonstration.

    A family is a name of `computerrl tasks list`, or module:NAME for one of your own, in the current folder or an installed
    package. Families of synthesized tasks are those of the folder that CONFIG names.

    Exit code 0: all instances are proven. 1: some are not.

    \b
    computerrl tasks prove calc-set-cell files-move
    computerrl tasks prove sorted_words:SORTED_WORDS --image core --seeds 5
    """
    sys.exit(prove_families(families, num_seeds=num_seeds, config_file=config, image=image, as_json=as_json))


@tasks.command("check", short_help="Check which OSWorld task files can run here.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--assets", type=click.Path(path_type=Path), help="Folder of the files that tasks download.")
@click.option("--mirror", type=click.Path(path_type=Path), help="Folder with a copy of the web sites that tasks need.")
@click.option("--app", "apps", multiple=True, metavar="NAME", help="An application of the desktops; replaces the standard list.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the report to this file.")
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Configuration with the prompts.")
@click.option("--image", metavar="NAME", help="Image of the desktops: core, full, osworld. Default: that of CONFIG, or full.")
@click.option("--play", is_flag=True, help="Also set up each task on a desktop, and evaluate it untouched.")
def tasks_check(
    folder: Path,
    assets: Path | None,
    mirror: Path | None,
    apps: tuple[str, ...],
    json_file: Path | None,
    config: Path | None,
    image: str | None,
    play: bool,
) -> None:
    """Check whether each OSWorld or OfficeWorld task file below DIR can run here, and print the reasons where one cannot.

    The check opens no connection, and starts no desktop without --play. With --play, tasks that can run are set up on desktops
    of CONFIG (default: a desktop of image full) and evaluated untouched. A task that rewards doing nothing is refused, and so is
    one that fails.

    Image osworld has programs that tasks expect beside the applications: sudo, gsettings, unzip, jq, git and others.

    A file that a task downloads from https://HOST/a/b/c.xlsx is looked up at ASSETS/a/b/c.xlsx (a plain mirror), at
    ASSETS/HOST/a/b/c.xlsx, or with leading folders of the path left out.

    A page https://HOST/a/b that a task needs is looked up at MIRROR/HOST/a/b, at MIRROR/HOST/a/b.html and at
    MIRROR/HOST/a/b/index.html. A task whose sites all have a folder in MIRROR is not refused for lack of a network.

    A task whose instruction does not fit the prompts of CONFIG (default: of the default settings) gets a note. It can run, but
    the end of the instruction, or the screen, is then left out of the prompt.

    Exit code 0: all tasks can run. 1: some cannot. 2: DIR, ASSETS or MIRROR is wrong.

    \b
    computerrl tasks check evaluation_examples/examples
    computerrl tasks check examples --assets ~/osworld-cache --json report.json
    computerrl tasks check examples/chrome --app chrome
    computerrl tasks check examples --image osworld
    computerrl tasks check examples/vlc --play
    """
    code = run_check(
        folder, assets=assets, mirror=mirror, json_file=json_file, apps=apps, image=image, config_file=config, play=play
    )
    sys.exit(code)


@tasks.command("import", short_help="Import task bundles as families.")
@click.argument("kind", type=click.Choice(["cua-gym"]), metavar="FORMAT")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False), metavar="OUT")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the report to this file.")
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Configuration with the desktops.")
@click.option("--image", metavar="NAME", help="Image of the desktops: core, full, osworld. Default: that of CONFIG, or full.")
@click.option("--web-apps", type=click.Path(path_type=Path), metavar="HUB", help="CUA-Gym-Hub with built web applications.")
@click.option("--play", is_flag=True, help="Also play each bundle on a desktop: untouched, and with its own solution.")
def tasks_import(
    kind: str,
    folder: Path,
    out: Path,
    json_file: Path | None,
    config: Path | None,
    image: str | None,
    web_apps: Path | None,
    play: bool,
) -> None:
    """Import the task bundles in DIR into OUT, which the setting tasks.imported then names. FORMAT is cua-gym: each folder in DIR
    is a bundle with task.json (or config.json), reward.py and initial_setup.py, .sh or a document.

    Most bundles need Python modules that image osworld has and the others lack. Those that use a mock web site also need
    --web-apps: HUB/websites/gmail_mock/dist is served to scripts that name __CUA_GYM_GMAIL_URL__.

    The import runs none of a bundle's code, and starts no desktop without --play. With --play, each bundle is played on desktops
    of CONFIG (default: a desktop of image full). Untouched it must score 0, and after its own solution, where it brings one, 1.

    A bundle that cannot be played stays in OUT's index.json, marked as broken with its reasons.

    Exit code 0: no bundle is broken. 1: some are. 2: DIR or OUT is wrong.

    \b
    computerrl tasks import cua-gym bundles imported
    computerrl tasks import cua-gym bundles imported --play --json report.json
    computerrl tasks import cua-gym bundles out --image osworld --web-apps HUB
    """
    code = run_import(folder, out, json_file=json_file, image=image, web_apps=web_apps, config_file=config, play=play)
    sys.exit(code)


@tasks.command("synthesize", short_help="Make tasks of what random walks change.")
@click.argument("app", type=click.Choice(["calc", "files", "impress", "writer"]), metavar="APP")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option(
    "--num", "num_tasks", type=click.IntRange(min=1), default=200, show_default=True, help="Tasks that OUT should have."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the walks.")
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Configuration with the desktops.")
@click.option("--image", metavar="NAME", help="Image of the desktops: core, full, osworld. Default: that of CONFIG, or full.")
@AS_JSON
def tasks_synthesize(
    app: str, out: Path, *, num_tasks: int, seed: int, config: Path | None, image: str | None, as_json: bool
) -> None:
    """Make tasks of what random walks change, and write them to OUT, which the setting tasks.synthesized then names.
    APP is calc, files, impress or writer.

    A walk of a few actions begins in a document or folder drawn from the seed. One to three changes become an instruction, and
    the checker asks for these and nothing else. The walk without its needless actions is the demonstration. A task is kept if
    it is new, the demonstration succeeds on a reset desktop, and the untouched desktop and all parts of the demonstration fail.

    The same command goes on where it was interrupted, and a larger --num adds tasks.

    Exit code 0: OUT has that many tasks. 1: 200 walks in a row gave no new one. 2: APP or OUT is wrong. 3: the image is missing.

    \b
    computerrl tasks synthesize calc walked --num 20
    computerrl tasks synthesize writer letters --seed 1 --json
    """
    sys.exit(run_synthesis(app, out, num_tasks=num_tasks, seed=seed, config_file=config, image=image, as_json=as_json))


def list_families(beginning: str, *, from_pixels: bool = False, as_json: bool = False) -> int:
    """Print name, applications and description of the families whose name starts with ``beginning``, as a table or as JSON.
    Returns the exit code: 1 when there is none.

    ``from_pixels``: only those whose demonstrators use mouse and keyboard alone, with the number of the others."""
    from computerrl.env_server.tasks import FAMILIES, is_shown_by_hand

    found = [family for name, family in sorted(FAMILIES.items()) if name.startswith(beginning)]
    shown = [one for one in found if one.has_demonstrator and is_shown_by_hand(one)] if from_pixels else found
    if as_json:
        names = ("name", "description", "has_demonstrator", "can_be_done", "needs_tools")
        rows = [{"apps": sorted(one.apps), **{name: getattr(one, name) for name in names}} for one in shown]
        click.echo(json.dumps(rows, indent=2))
        return 0 if shown else 1
    for family in shown:
        note = "" if family.has_demonstrator else "  (no demonstrator)"
        click.echo(f"{family.name:32} {'+'.join(sorted(family.apps)):16} {family.description}{note}")
    if from_pixels:
        num_silent = sum(not family.has_demonstrator for family in found)
        by_calls = len(found) - len(shown) - num_silent
        others = f"{by_calls} are demonstrated by calls of applications alone, {num_silent} have no demonstrator"
        click.echo(f"{len(shown)} of {len(found)} families can be demonstrated from pixels; {others}", err=True)
    else:
        click.echo(f"{len(found)} families", err=True)
    return 0 if shown else 1


def prove_families(names: Sequence[str], *, num_seeds: int, config_file: Path | None, image: str | None, as_json: bool) -> int:
    """Print what instances of the families ``names`` are worth untouched and demonstrated, one by one. Returns the exit code: 1
    when one is not proven."""
    from computerrl.common import log
    from computerrl.common.config import LearnerConfig, RunConfig, TasksConfig, load_config
    from computerrl.env_server.client import family_names, with_needed_apps
    from computerrl.env_server.serving.play_tasks import proofs
    from computerrl.env_server.tasks import families_of

    tasks = load_config(config_file).tasks if config_file else TasksConfig()
    tasks = tasks.model_copy(update={"families": tuple(names)})
    desktops = _desktops(config_file, image)
    no_demos = LearnerConfig.model_validate({"recipe": {"demos_per_family": 0}})
    family_names(RunConfig(tasks=tasks, desktop=desktops, learner=no_demos))  # names that there are, on an image that has them
    known = families_of(tasks)
    rows = []
    desktops = with_needed_apps(desktops, [known[name] for name in names])
    log.configure(level="warning")  # on standard error
    number = len(names) * num_seeds
    with Progress("proving", unit="instances", total=number) as shown:
        for found in tracked(proofs(tasks, desktops, num_seeds=num_seeds), shown, total=number):
            rows.append({"family": found.task.family, "seed": found.task.seed, **found.as_json()})
            if not as_json:
                word = "proven    " if found.is_proven else "not proven"
                click.echo(f"{word}  {found.task.family} {found.task.seed}: {found.in_words()}")
    if as_json:
        click.echo(json.dumps(sorted(rows, key=lambda row: (row["family"], row["seed"])), indent=2))
    else:
        click.echo(f"{sum(row['is_proven'] for row in rows)} of {len(rows)} instances are proven", err=True)
    return 0 if all(row["is_proven"] for row in rows) else 1


def run_synthesis(
    app: str, out: Path, *, num_tasks: int, seed: int, config_file: Path | None, image: str | None, as_json: bool
) -> int:
    """Synthesize until ``out`` has ``num_tasks`` tasks, and print its figures. Returns the exit code: 1 when it has fewer."""
    from computerrl.common import log
    from computerrl.env_server.serving.synthesis import MAX_BARREN_WALKS, prepared, synthesize
    from computerrl.env_server.tasks.synthesis.task_file import figures
    from computerrl.version import find_version

    desktops = _desktops(config_file, image)
    manifest = prepared(out, app, seed=seed, desktops=desktops, version=find_version(SOURCE_ROOT))
    log.configure(level="warning")  # on standard error
    with Progress("synthesizing", unit="tasks", done=len(manifest.tasks), total=num_tasks) as shown:
        for grown in synthesize(out, manifest, num_tasks=num_tasks, desktops=desktops):
            manifest = grown
            shown(len(manifest.tasks), num_tasks)
    found = figures(out, manifest)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for name in ("walks", "proposed", "kept", "templates", "seconds"):
            click.echo(f"{name:10} {found[name]}")
        click.echo(f"{'longest':10} {found['longest_demonstration']} actions: tasks.max_steps must be more")
        for stage in ("unsaid", "unproven"):
            for reason, number in found[stage].items():
                click.echo(f"{stage:10} {number:5}  {reason}")
    if len(manifest.tasks) < num_tasks:
        click.echo(f"{MAX_BARREN_WALKS} walks in a row gave no new task: try another --seed, in another folder", err=True)
    return 0 if len(manifest.tasks) >= num_tasks else 1


MIN_SCREEN_TOKENS = 32
"""Minimum number of a prompt's tokens for the screen: two or three rows. With fewer, an agent sees nothing of it."""
_CHARS_PER_TOKEN = 4
"""Characters per token of English text, with the tokenizers of today."""


def run_check(
    folder: Path,
    *,
    assets: Path | None,
    json_file: Path | None,
    apps: Sequence[str],
    mirror: Path | None = None,
    image: str | None = None,
    config_file: Path | None = None,
    play: bool = False,
) -> int:
    """Print the report and write it to ``json_file``. Returns the exit code: 0 when all tasks can run, else 1.

    ``image``: that of the desktops; None: the configured one. ``play``: also set up each task on a desktop, and evaluate it
    untouched.
    """
    from computerrl.common.config import RunConfig, TasksConfig, load_config
    from computerrl.env_server.tasks.osworld.abilities import abilities_of
    from computerrl.env_server.tasks.osworld.check import check_folder
    from computerrl.env_server.tasks.osworld.families import missing_readers

    if not os.path.isdir(folder):
        raise ConfigError([Problem("DIR", f"there is no folder {str(folder)!r}", "give the folder with the tasks' JSON files")])
    if play and apps:
        raise ConfigError([Problem("--app", "does not go with --play", "leave out --app, or --play")])
    desktops = _desktops(config_file, image)
    abilities = abilities_of(desktops.image, apps=frozenset(apps))
    missing = missing_readers()
    if missing:
        click.echo(f"expected files are not read: {', '.join(missing)} not installed (make setup WITH=osworld)", err=True)
    with Progress("checking", unit="task files") as shown:
        report = check_folder(folder, assets=assets, mirror=mirror, abilities=abilities, read_gold=not missing, tell=shown)
    if play and report.num_runnable:
        from computerrl.env_server.tasks.family import OSWORLD_PREFIX

        # Judgements run in another folder.
        tasks = TasksConfig(osworld=os.path.abspath(folder), osworld_assets=_absolute(assets), osworld_mirror=_absolute(mirror))
        report = _played(report, tasks, desktops, prefix=OSWORLD_PREFIX)
    needed = _tokens_needed(load_config(config_file) if config_file else RunConfig())
    too_long = [task.path for task in report.tasks if needed.of(task.instruction) + MIN_SCREEN_TOKENS > needed.limit]
    _print_report(report, notes={task.path: needed.note(task.instruction) for task in report.tasks if task.path in too_long})
    if too_long:
        click.echo(f"{len(too_long):5}  instructions do not fit a prompt beside the screen: raise actor.prompt.max_prompt_tokens")
    _print_reasons(report)
    if json_file is not None:
        _write_json(json_file, report.as_json() | {"long_instructions": too_long})
    return 0 if report.num_runnable == len(report.tasks) else 1


def _played(report: Report, tasks: TasksConfig, desktops: DesktopConfig, *, prefix: str) -> Report:
    """``report`` after its tasks were played on desktops, with a line on standard error about each."""
    from computerrl.env_server.serving.play_tasks import played

    number = report.num_runnable
    with Progress("playing", unit="tasks", total=number) as shown:
        lines = itertools.count(1)

        def tell(line: str) -> None:
            click.echo(line, err=True)
            shown(next(lines), number)

        return played(report, tasks, desktops, prefix=prefix, progress=tell)


def _absolute(place: Path | None) -> str | None:
    return None if place is None else os.path.abspath(place)


def _desktops(config_file: Path | None, image: str | None) -> DesktopConfig:
    from computerrl.common.config import load_config
    from computerrl.env_server.serving.play_tasks import DESKTOPS

    desktops = load_config(config_file).desktop if config_file else DESKTOPS
    return desktops if image is None else desktops.model_copy(update={"image": image})


def run_import(
    folder: Path,
    out: Path,
    *,
    json_file: Path | None,
    image: str | None = None,
    web_apps: Path | None = None,
    config_file: Path | None = None,
    play: bool = False,
) -> int:
    """Import the task bundles in ``folder`` into ``out``, print the report and write it to ``json_file``. Returns the exit code:
    0 when no bundle is broken, else 1.

    ``web_apps``: web applications that bundles name. ``play``: also play each bundle on a desktop, untouched and with its own
    solution.
    """
    from computerrl.common.config import TasksConfig
    from computerrl.env_server.tasks.bundles import imported
    from computerrl.env_server.tasks.family import BUNDLE_PREFIX

    desktops = _desktops(config_file, image)
    if play and desktops.driver != "apptainer":
        reason = f"{desktops.driver!r} would run the bundles' programs outside a container"
        raise ConfigError([Problem("desktop.driver", reason, "set desktop.driver: apptainer, or leave out --play")])
    with Progress("importing", unit="bundles") as shown:
        index = imported.import_bundles(folder, out, image=desktops.image, web_apps=web_apps, tell=shown)
    report = imported.report_of(index)
    if play and report.num_runnable:
        report = _played(report, TasksConfig(imported=os.path.abspath(out)), desktops, prefix=BUNDLE_PREFIX)
        imported.write_index(out, imported.with_report(index, report))
    _print_report(report, bad="broken ")
    _print_reasons(report)
    if not play:
        click.echo("\nonly static checks: --play also plays each bundle untouched and with its own solution", err=True)
    if json_file is not None:
        _write_json(json_file, report.as_json())
    return 0 if report.num_runnable == len(report.tasks) else 1


def _print_report(report: Report, *, bad: str = "refused", notes: Mapping[str, str] | None = None) -> None:
    """A line for each task and each thing that is wrong with it, and the number of tasks that can be run."""
    for task in report.tasks:
        click.echo(f"{'run    ' if task.runnable else bad}  {task.path}")
        for refusal in task.refusals:
            click.echo(f"           {refusal}")
        if notes and task.path in notes:
            click.echo(f"           note: {notes[task.path]}")
    click.echo(f"\n{report.num_runnable} of {len(report.tasks)} tasks can be run")


def _print_reasons(report: Report) -> None:
    """How many tasks have each kind of reason."""
    from computerrl.env_server.tasks.osworld.abilities import KINDS

    for kind, meaning in KINDS.items():
        if report.reasons[kind]:
            click.echo(f"{report.reasons[kind]:5}  {kind:14} {meaning}")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Needed:
    """Number of tokens of a prompt that shows a task and no screen."""

    of: Callable[[str], int]
    limit: int
    """`actor.prompt.max_prompt_tokens`."""
    is_exact: bool

    def note(self, instruction: str) -> str:
        number = self.of(instruction)
        takes = f"a prompt with the instruction takes {'' if self.is_exact else 'about '}{number} tokens"
        left = "its end is cut" if number > self.limit else "nothing of the screen fits"
        return f"{takes}, actor.prompt.max_prompt_tokens is {self.limit}: {left}; set it to {number + 256} or more"


def _tokens_needed(config: RunConfig) -> _Needed:
    """Counted by the tokenizer of the configured model; where that is missing, estimated from the number of characters."""
    from computerrl.actor.prompts.builder import FolderTokenizer, make_builder, unreadable
    from computerrl.actor.prompts.check import prompt_problems
    from computerrl.common.models.folder import is_model_folder, model_folder

    prompt, folder = config.actor.prompt, model_folder(config.model.name)
    if is_model_folder(folder, weights=False):
        problems = prompt_problems(config)
        if problems:
            raise ConfigError(problems)
        size = (config.desktop.screen_width, config.desktop.screen_height)
        builder = make_builder(
            folder, FolderTokenizer(folder), prompt, actions=config.tasks.actions, screen_size=size, read=unreadable
        )
        return _Needed(builder.num_instruction_tokens, prompt.max_prompt_tokens, is_exact=True)
    return _Needed(lambda text: len(text) // _CHARS_PER_TOKEN, prompt.max_prompt_tokens, is_exact=False)
