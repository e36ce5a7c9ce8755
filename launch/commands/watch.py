"""Commands of `computerrl` for looking at a run and steering it. Thin: each imports what does the work when it is called."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from computerrl.launch.commands.options import RUN, Host, OutFile, Run

HOST = click.option(
    "--host", default="127.0.0.1", type=Host(), show_default=True, help="Address to listen on; others let other machines in."
)
PORT = click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")


@click.command(short_help="Show RUN on a page that is kept up to date.")
@RUN
@HOST
@PORT
@click.option("--with-parent", is_flag=True, hidden=True, help="End with the process that started this one.")
def dashboard(run: Path, host: str, port: int, *, with_parent: bool) -> None:
    """Show RUN on a page: desktops live, learning curves, queues, processes, and buttons to pause, checkpoint, drain or stop it.

    Prints the page's address, which holds a token: whoever has it may use the page, nobody else. It works for a finished run,
    too, and for one on other machines that see the same run folder; over ssh the tunnel to type is printed. Ctrl-C ends the page
    only.

    \b
    computerrl train quickstart --dashboard
    computerrl dashboard latest
    """
    from computerrl.launch.web.serve import show_run

    show_run(run, host=host, port=port, page="", command="computerrl dashboard", with_parent=with_parent)


@click.command(short_help="Show RUN's episodes step by step on a page.")
@RUN
@click.argument("episode", required=False, metavar="[EPISODE]")
@HOST
@PORT
@click.option("--beside", metavar="EPISODE", help="A second episode, side by side with the first.")
@click.option("--out", type=OutFile(), help="Write EPISODE as one HTML file, and serve nothing.")
def replay(run: Path, episode: str | None, host: str, port: int, *, beside: str | None, out: Path | None) -> None:
    """Show RUN's stored episodes on a page: each step with its screen, prompt, answer, log-probs, versions and advantage.

    \b
    computerrl replay latest
    computerrl replay latest rl-1/4/0 --beside rl-1/4/1
    computerrl replay latest eval-after-rl/3/0 --out episode.html
    """
    from computerrl.launch.web.serve import show_run, write_episode

    names = [name for name in (episode, beside) if name]
    if out is not None:
        if not names:
            raise click.UsageError("--out needs an EPISODE; `computerrl replay RUN` lists them")
        click.echo(write_episode(run, names, out=out))
        return
    query = "".join(f"{sign}{name}={value}" for sign, name, value in zip("#&", ("id", "beside"), names, strict=False))
    show_run(run, host=host, port=port, page=f"replay.html{query}", command="computerrl replay", with_parent=False)


@click.command(short_help="Write a trace of RUN for Perfetto.")
@RUN
@click.argument("episode", required=False, metavar="[EPISODE]")
@click.option("--last", default=500, show_default=True, type=click.IntRange(1), help="Without EPISODE: so many episodes.")
@click.option("--out", type=OutFile(), help="File to write; by default trace-RUN.json here.")
def trace(run: Path, episode: str | None, *, last: int, out: Path | None) -> None:
    """Write a trace of RUN for Perfetto: each episode's steps on its actor, its wait in the broker, the update it was trained in.

    \b
    computerrl trace latest
    computerrl trace latest rl-1/4/0 --out episode.json
    """
    from computerrl.launch.report.trace_file import write_trace

    click.echo(write_trace(run, episode=episode, last=last, out=out))


@click.command(short_help="Compare RUNs on one page: curves, figures, settings.")
@click.argument("runs", nargs=-1, required=True, type=Run(), metavar="RUN RUN...")
@click.option("--out", default="compare.html", show_default=True, type=OutFile())
def compare(runs: tuple[Path, ...], *, out: Path) -> None:
    """Compare two or more RUNs on one page: learning curves over each other, figures side by side, settings that differ.

    \b
    computerrl compare quickstart quickstart-2
    """
    from computerrl.launch.report.compare import write_comparison

    if len(runs) < 2:
        raise click.UsageError("give two RUNs or more")
    click.echo(write_comparison([run for run in runs], out=out))


@click.command(short_help="Write RUN's report.json and report.html.")
@RUN
def report(run: Path) -> None:
    """Write report.json and report.html of RUN (a folder, a name below runs/, or latest), finished or not.

    \b
    computerrl report latest
    """
    from computerrl.launch.report.write import write_report

    click.echo(write_report(run))


@click.command(short_help="Show how RUN stands.")
@RUN
@click.option("--watch", is_flag=True, help="Stay and follow the run; Ctrl-C leaves, the run goes on.")
def status(run: Path, *, watch: bool) -> None:
    """Show how RUN stands: asks its broker (and Slurm, for a run that was submitted), and reads its metrics.

    \b
    computerrl status latest --watch
    """
    from computerrl.launch.cluster.submit import describe_job
    from computerrl.launch.commands.status import show_status

    job = describe_job(run)
    if job:
        click.echo(job)
    show_status(run, stay=watch)


@click.group()
def phase() -> None:
    """Steer the phases of a run by hand.

    \b
    computerrl phase sft latest
    """


@phase.command("sft", short_help="Ask RUN for an Entropulse round at the next update.")
@RUN
def phase_sft(run: Path) -> None:
    """Ask RUN for an Entropulse round (SFT on its own successes) at the next update, whatever its triggers say.

    \b
    computerrl phase sft latest
    """
    from computerrl.launch.commands.status import request_sft

    click.echo(request_sft(run))


@click.group(short_help="Look into the broker's journal of RUN.")
def journal() -> None:
    """Look into the broker's journal of a run, running or not; nothing is changed.

    \b
    computerrl journal ls latest
    computerrl journal verify latest
    """


@journal.command("ls")
@RUN
def journal_ls(run: Path) -> None:
    """List the segments of RUN's journal and what lies in them.

    \b
    computerrl journal ls latest
    """
    from computerrl.launch.commands.journal import list_segments

    sys.exit(list_segments(run))


@journal.command("cat")
@RUN
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only such: Trajectory, RolloutOrder, Snapshot, ...")
@click.option("--id", "name", default="", metavar="ID", help="Only what is about this trajectory or order.")
@click.option("--full", is_flag=True, help="Long lists (tokens, log-probs) too.")
def journal_cat(run: Path, kinds: tuple[str, ...], name: str, *, full: bool) -> None:
    """Print the records of RUN's journal as JSON, one a line. Exit code 1: there is no such record.

    \b
    computerrl journal cat latest --kind VersionAnnouncement
    computerrl journal cat latest --id rl-1/17/2 --full
    """
    from computerrl.launch.commands.journal import print_records

    sys.exit(print_records(run, kinds=kinds, name=name, full=full))


@journal.command("verify")
@RUN
def journal_verify(run: Path) -> None:
    """Check every byte of RUN's journal and replay it as a broker would. Exit code 1: something is damaged.

    \b
    computerrl journal verify latest
    """
    from computerrl.launch.commands.journal import verify_journal

    sys.exit(verify_journal(run))


COMMANDS = (status, dashboard, replay, report, compare, trace, phase, journal)
