"""Commands of `computerrl` for watching and controlling a run. Each command imports the code behind it when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computerrl.common.errors import ResumeError
from computerrl.launch.commands.options import AS_JSON, RUN, SET, ConfigFile, Host, OutFile, Run, RunOrRecording
from computerrl.launch.progress import Progress

if TYPE_CHECKING:
    from computerrl.launch.export.write import Format

HOST = click.option(
    "--host", default="127.0.0.1", type=Host(), show_default=True, help="Address to listen on; 127.0.0.1: for this machine only."
)
PORT = click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free port.")


@click.command(short_help="Show RUN live on a web page.")
@RUN
@HOST
@PORT
@click.option("--with-parent", is_flag=True, hidden=True, help="End with the process that started this one.")
def dashboard(run: Path, host: str, port: int, *, with_parent: bool) -> None:
    """Show RUN live on a web page: desktops, learning curves, queues, processes, and buttons to pause, checkpoint, drain or stop.

    The command prints the page's address with a token; only a person with this address can use the page. RUN may be finished, or
    be at work on other machines that see the same run folder. Over ssh the command for a tunnel is printed. Ctrl-C ends the page
    and not the run.

    \b
    computerrl train quickstart --dashboard
    computerrl dashboard latest
    """
    from computerrl.launch.web.serve import show_run

    show_run(run, host=host, port=port, page="", command="computerrl dashboard", with_parent=with_parent)


@click.command(short_help="Show the episodes of RUN step by step.")
@click.argument("run", default="latest", type=RunOrRecording(), metavar="[RUN]")
@click.argument("episode", required=False, metavar="[EPISODE]")
@HOST
@PORT
@click.option("--beside", metavar="EPISODE", help="A second episode, shown beside the first.")
@click.option("--out", type=OutFile(), help="Write EPISODE as one HTML file in place of a web page.")
@click.option("--film", type=OutFile(), help="Write an animated WebP: EPISODE, else a success of each family.")
def replay(
    run: Path, episode: str | None, host: str, port: int, *, beside: str | None, out: Path | None, film: Path | None
) -> None:
    """Show the stored episodes of RUN on a web page.

    Each step has its screenshot with the place at which the action pointed, prompt, completion, log-probs, policy versions and
    advantage. In place of RUN, the file of a demonstration that a person recorded (`computerrl desktop`) may be given.

    \b
    computerrl replay latest
    computerrl replay latest rl-1/4/0 --beside rl-1/4/1
    computerrl replay latest eval-after-rl/3/0 --out episode.html
    computerrl replay latest --film episodes.webp
    computerrl replay demonstrations/calc-type-cell-11.json
    """
    from computerrl.launch.web.serve import show_recording, show_run, write_episode, write_film, write_recording_page

    names = [name for name in (episode, beside) if name]
    if run.is_file():
        if names or film is not None:
            raise click.UsageError("a recorded demonstration is one episode: leave out EPISODE, --beside and --film")
        if out is not None:
            click.echo(write_recording_page(run, out=out))
        else:
            show_recording(run, host=host, port=port, command="computerrl replay")
        return
    if film is not None:
        with Progress(f"film of {run.name}"):
            written = write_film(run, names, out=film)
        click.echo(written)
        return
    if out is not None:
        if not names:
            raise click.UsageError("--out needs an EPISODE; `computerrl replay RUN` lists all episodes")
        click.echo(write_episode(run, names, out=out))
        return
    query = "".join(f"{sign}{name}={value}" for sign, name, value in zip("#&", ("id", "beside"), names, strict=False))
    show_run(run, host=host, port=port, page=f"replay.html{query}", command="computerrl replay", with_parent=False)


@click.command(short_help="Write a trace of RUN, to open in Perfetto.")
@RUN
@click.argument("episode", required=False, metavar="[EPISODE]")
@click.option("--last", default=500, show_default=True, type=click.IntRange(1), help="Without EPISODE: number of episodes.")
@click.option("--out", type=OutFile(), help="File to write. Default: trace-RUN.json.")
def trace(run: Path, episode: str | None, *, last: int, out: Path | None) -> None:
    """Write a trace of RUN, to open in Perfetto (ui.perfetto.dev).

    It shows each episode's steps on its actor, its time in the broker, and the update that trained it.

    \b
    computerrl trace latest
    computerrl trace latest rl-1/4/0 --out episode.json
    """
    from computerrl.launch.report.trace_file import write_trace

    with Progress(f"trace of {run.name}"):
        written = write_trace(run, episode=episode, last=last, out=out)
    click.echo(written)


@click.command("export-trajectories", short_help="Write the trajectories of RUN for other programs.")
@click.argument("run", type=Run(), metavar="RUN")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "parquet", "agentnet"]), help="Format of the folder OUT. Default: jsonl."
)
@click.option("--sft", is_flag=True, help="Chats for supervised fine-tuning, from successes alone, in place of --format.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only training, evaluation or demonstration.")
@click.option("--family", "families", multiple=True, metavar="FAMILY", help="Only this task family; may be repeated.")
@click.option("--solved", is_flag=True, help="Only successful trajectories.")
@click.option("--no-screenshots", is_flag=True, help="Leave the screenshots out (jsonl and parquet).")
@click.option("--so-far", is_flag=True, help="Also export a run that is at work: what it has stored so far.")
@AS_JSON
def export_trajectories(
    run: Path,
    out: Path,
    *,
    kind: Format | None,
    sft: bool,
    kinds: tuple[str, ...],
    families: tuple[str, ...],
    solved: bool,
    no_screenshots: bool,
    so_far: bool,
    as_json: bool,
) -> None:
    """Write the stored trajectories of RUN, with their screenshots, into the new folder OUT.

    Formats are JSON lines, Parquet (needs pyarrow), AgentNet (pyautogui code), and with --sft chats that TRL reads as they are.
    A table tells how many trajectories and steps were kept, and why others were left out. docs/how-to/export.md describes the
    files.

    \b
    computerrl export-trajectories latest trajectories
    computerrl export-trajectories latest table --format parquet --solved
    computerrl export-trajectories latest agentnet --format agentnet
    computerrl export-trajectories latest chats --sft --kind training
    """
    from computerrl.launch.commands.status import is_running
    from computerrl.launch.export.stored import Selection
    from computerrl.launch.export.write import WITHOUT_SCREENSHOTS, export_trajectories

    if sft and kind is not None:
        raise click.UsageError("give --sft or --format, not both")
    chosen: Format = "sft" if sft else kind or "jsonl"
    if no_screenshots and chosen not in WITHOUT_SCREENSHOTS:
        raise click.UsageError(f"--no-screenshots goes with {' and '.join(WITHOUT_SCREENSHOTS)} only")
    if not so_far and is_running(run):
        raise ResumeError(f"{run} is at work\n    -> wait for its end, or give --so-far to export what it has stored until now")
    selection = Selection(kinds, families, is_solved=solved)
    with Progress(f"exporting {run.name}", unit="trajectories") as shown:
        tally = export_trajectories(run, out, kind=chosen, selection=selection, has_screenshots=not no_screenshots, tell=shown)
    click.echo(tally.as_json(out) if as_json else f"{out}\n{tally.table()}")


@click.command("import-trajectories", short_help="Make trajectories of other programs ready to be cloned.")
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="SOURCE")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option(
    "--config", "named", required=True, type=ConfigFile(), metavar="CONFIG", help="Configuration of the run that clones."
)
@SET
@click.option("--images", type=click.Path(path_type=Path), help="Folder of the screenshots. Default: images, beside SOURCE.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of trajectories to keep. Default: all.")
@click.option("--unfinished", is_flag=True, help="Also take trajectories whose task was not completed.")
@click.option("--thoughts", is_flag=True, help="Take the thoughts of SOURCE over, where the prompt format has thoughts.")
@AS_JSON
def import_trajectories(
    source: Path,
    out: Path,
    *,
    named: Path,
    overrides: tuple[str, ...],
    images: Path | None,
    limit: int | None,
    unfinished: bool,
    thoughts: bool,
    as_json: bool,
) -> None:
    """Make the trajectories in SOURCE ready to be cloned, in the new folder OUT.

    SOURCE is a file of AgentNet (OpenCUA): one trajectory a line, with screenshots and pyautogui code. The code is read and never
    run. Each action becomes one of ours. The part of a trajectory before the first step that cannot be said is kept; a table
    counts what was left out, by reason. OUT holds tokens for the model and the prompts of CONFIG. docs/how-to/export.md
    describes it.

    \b
    computerrl import-trajectories tasks.jsonl tasks --config vision-quickstart
    computerrl train vision-quickstart 'learner.recipe.imported=[tasks]'
    """
    from computerrl.common.config import load_config
    from computerrl.launch.imports.write import Wishes, import_trajectories
    from computerrl.launch.run import local, preflight

    config = load_config(named, overrides=overrides)
    preflight.require(config, (preflight.check_packages, preflight.check_model, preflight.check_prompt))
    local.make_model(config)
    wishes = Wishes(limit, takes_unfinished=unfinished, takes_thoughts=thoughts)
    with Progress(f"importing {source.name}") as shown:
        tally = import_trajectories(source, out, config=config, images=images, wishes=wishes, tell=shown)
    if as_json:
        click.echo(tally.as_json(out))
        return
    click.echo(f"{out}\n{tally.table()}")
    click.echo(f"to clone them: computerrl train {named} 'learner.recipe.imported=[{out}]'")


@click.command(short_help="Compare two or more runs on one page.")
@click.argument("runs", nargs=-1, required=True, type=Run(), metavar="RUN RUN...")
@click.option("--out", default="compare.html", show_default=True, type=OutFile(), help="File to write.")
def compare(runs: tuple[Path, ...], *, out: Path) -> None:
    """Compare two or more RUNs on one page: learning curves, figures, and the settings that differ.

    \b
    computerrl compare quickstart quickstart-2
    """
    from computerrl.launch.report.compare import write_comparison

    if len(runs) < 2:
        raise click.UsageError("give two or more RUNs, for example: computerrl compare quickstart quickstart-2")
    with Progress("comparing", unit="runs", total=len(runs)) as shown:
        written = write_comparison(runs, out=out, tell=shown)
    click.echo(written)


@click.command(short_help="Write the report of RUN.")
@RUN
def report(run: Path) -> None:
    """Write report.json and report.html of RUN, which may be at work.

    RUN is a folder, a name below runs/, or latest.

    \b
    computerrl report latest
    """
    from computerrl.launch.report.write import write_report

    with Progress(f"report of {run.name}", unit="parts") as shown:
        written = write_report(run, tell=shown)
    click.echo(written)


@click.command(short_help="Show the state of RUN.")
@RUN
@click.option("--watch", is_flag=True, help="Show the run until it ends, or until Ctrl-C, which does not stop the run.")
@AS_JSON
def status(run: Path, *, watch: bool, as_json: bool) -> None:
    """Show the state of RUN, from its broker, its metrics and, for a submitted run, from Slurm.

    \b
    computerrl status latest --watch
    computerrl status latest --json
    """
    from computerrl.launch.cluster.submit import describe_job
    from computerrl.launch.commands.status import print_status, show_status

    if as_json and watch:
        raise click.UsageError("--watch draws a display: leave out --json")
    job = describe_job(run)
    if as_json:
        print_status(run, job=job)
        return
    if job:
        click.echo(job)
    show_status(run, stay=watch)


@click.command(short_help="List the runs, newest first.")
@click.argument("folder", default="runs", type=click.Path(path_type=Path), metavar="[FOLDER]")
@AS_JSON
def runs(folder: Path, *, as_json: bool) -> None:
    """List the runs in FOLDER, by default `runs`, newest first: when each began, its state, the time it took without pauses, its
    updates, and the success of its evaluations in order.

    \b
    computerrl runs
    computerrl runs studies/entropulse/runs --json
    """
    from computerrl.launch.plan.run_names import find_runs

    folders = find_runs(folder)
    from computerrl.launch.commands.status import print_runs

    print_runs(folders, as_json=as_json)


@click.group(short_help="Begin a phase of RUN by hand.")
def phase() -> None:
    """Begin a phase of a run by hand.

    \b
    computerrl phase sft latest
    """


@phase.command("sft", short_help="Begin an Entropulse round of RUN.")
@RUN
def phase_sft(run: Path) -> None:
    """Begin an Entropulse round (SFT on the run's own successes) after the update in progress, without a trigger.

    \b
    computerrl phase sft latest
    """
    from computerrl.launch.commands.status import request_sft

    click.echo(request_sft(run))


@click.group(short_help="List, print or verify the broker's journal of RUN.")
def journal() -> None:
    """List, print or verify the broker's journal of a run, which may be at work. The journal is not changed.

    \b
    computerrl journal ls latest
    computerrl journal verify latest
    """


@journal.command("ls", short_help="List the segments of the journal.")
@RUN
@AS_JSON
def journal_ls(run: Path, *, as_json: bool) -> None:
    """List the segments of RUN's journal, with the number of records of each kind.

    \b
    computerrl journal ls latest
    """
    from computerrl.launch.commands.journal import list_segments

    sys.exit(list_segments(run, as_json=as_json))


@journal.command("cat", short_help="Print the records of the journal.")
@RUN
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only records of this kind (Trajectory, RolloutOrder).")
@click.option("--id", "name", default="", metavar="ID", help="Only records about this trajectory or order.")
@click.option("--full", is_flag=True, help="Also print long lists (tokens, log-probs).")
def journal_cat(run: Path, kinds: tuple[str, ...], name: str, *, full: bool) -> None:
    """Print the records of RUN's journal as JSON, one per line. Exit code 1: there is no such record.

    \b
    computerrl journal cat latest --kind VersionAnnouncement
    computerrl journal cat latest --id rl-1/17/2 --full
    """
    from computerrl.launch.commands.journal import print_records

    sys.exit(print_records(run, kinds=kinds, name=name, full=full))


@journal.command("verify", short_help="Verify the journal.")
@RUN
@AS_JSON
def journal_verify(run: Path, *, as_json: bool) -> None:
    """Verify every byte of RUN's journal, and replay it as a broker would. Exit code 1: the journal is damaged.

    \b
    computerrl journal verify latest
    """
    from computerrl.launch.commands.journal import verify_journal

    sys.exit(verify_journal(run, as_json=as_json))


COMMANDS = (runs, status, dashboard, replay, report, compare, trace, export_trajectories, import_trajectories, phase, journal)
