"""Commands of `computerrl` for runs on more than one machine. Thin: each imports what does the work when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from computerrl.launch.commands.options import PRINT_CONFIG, RUN, Run, Site, print_resolved, with_config

if TYPE_CHECKING:
    from computerrl.launch.cluster.plan import ClusterPlan

SITE = click.option("--site", type=Site(), metavar="SITE", help="A name in configs/sites/, or the path of a site profile.")


@click.command(short_help="Print what would run where on a cluster; queue nothing.")
@with_config()
@SITE
@PRINT_CONFIG
def plan(config: Path, overrides: tuple[str, ...], *, site: str | None, print_config: bool) -> None:
    """Print where every process of CONFIG would run on a cluster, what it takes, and the job that `submit` would queue.

    Starts nothing and asks nobody: without --site the nodes are taken as they come.

    \b
    computerrl plan quickstart cluster.num_worker_nodes=2
    computerrl plan quickstart --site configs/sites/gpu-and-cpu.yaml
    """
    from computerrl.launch.cluster.submit import make_plan_of

    made = make_plan_of(config, overrides=overrides, site=site)
    if print_config:
        print_resolved(made.config, path=config)
    show_plan(made)


def show_plan(made: ClusterPlan) -> None:
    """Print the processes, the job's script, and what will not be used."""
    show_processes(made)
    click.echo(_choice(made))
    click.echo(f"\n# job\n{made.script}", nl=False)
    show_idle(made)


def _choice(made: ClusterPlan) -> str:
    """What the learner computes again, as far as the plan knows."""
    from computerrl.common.memory_plan import Choice
    from computerrl.launch.plan.resources import describe_choice

    keeps = made.config.learner.activation_checkpointing == "auto" and not made.layout.learner_has_gpus
    reason = "the memory that is asked for holds all activations"
    return describe_choice(made.config, Choice("none", reason) if keeps else None)


def show_processes(made: ClusterPlan) -> None:
    """Print what runs where."""
    from computerrl.launch.cluster.plan import describe

    click.echo("# processes")
    for node, needs, spec in describe(made):
        if spec is None:
            click.echo(f"{node}: {needs}")
        else:
            click.echo(f"    {spec.name:14} {needs:28} OMP_NUM_THREADS={spec.env['OMP_NUM_THREADS']}  {' '.join(spec.argv)}")


def show_idle(made: ClusterPlan) -> None:
    """Print on stderr that desktops of a plan will be idle, where there are any."""
    from computerrl.launch.plan.processes import idle_desktops

    note = idle_desktops(made.config, made.layout)
    if note is not None:
        click.echo(f"note: {note}", err=True)


@click.command(short_help="Queue CONFIG as one Slurm job.")
@with_config(is_required=False)
@click.option("--site", required=True, type=Site(), metavar="SITE", help="A name in configs/sites/, or a profile's path.")
@click.option("--resume", is_flag=True, help="Continue the newest run of this name instead of starting a new one.")
@click.option("--workers-for", type=Run(), metavar="RUN", help="Queue workers that join RUN, instead of a run.")
@click.option("--array", default="0", show_default=True, metavar="RANGE", help="With --workers-for: one job for each, as 0-7.")
@click.option("--dry-run", is_flag=True, help="Print what would be queued, as `computerrl plan` does, and queue nothing.")
def submit(
    config: Path | None,
    overrides: tuple[str, ...],
    site: str,
    *,
    resume: bool,
    workers_for: Path | None,
    array: str,
    dry_run: bool,
) -> None:
    """Queue CONFIG as one Slurm job: learner and broker on the learner nodes, desktops and actors on the worker nodes.

    The job is told before its time is over (and when it is preempted), writes a checkpoint, queues itself again and goes on:
    nothing is lost or trained twice. A process that dies is started again inside the job. docs/slurm.md begins at the beginning.

    \b
    computerrl submit quickstart --site my-cluster
    computerrl status latest; computerrl logs latest learner-0
    computerrl cancel latest
    computerrl submit quickstart --site my-cluster --resume

    With --workers-for, nodes of a scavenger partition play for a run that is at work, and may be taken away at any moment:

    \b
    computerrl submit --workers-for latest --array 0-7 --site my-cluster
    """
    from computerrl.launch.cluster import submit as submission

    if workers_for is not None:
        from computerrl.launch.cluster.join import submit_workers

        click.echo(submit_workers(workers_for, site=site, array=array, dry_run=dry_run))
        return
    if config is None:
        raise click.UsageError("give a CONFIG, or --workers-for RUN")
    if dry_run:
        show_plan(submission.make_plan_of(config, overrides=overrides, site=site))
        return
    made = submission.make_plan_of(config, overrides=overrides, site=site)
    show_idle(made)
    run, job_id = submission.submit(config, overrides=overrides, site=site, resume=resume)
    steps = f"computerrl status {run.folder}, computerrl logs {run.folder} --follow"
    click.echo(f"{run.folder}: job {job_id} is queued\n    -> {steps}")


@click.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="RUN_FOLDER")
def job(folder: Path) -> None:
    """What a submitted job becomes: supervises RUN_FOLDER's processes on the nodes of the allocation."""
    from computerrl.launch.cluster.job import run_job

    sys.exit(run_job(folder))


@click.command(short_help="Play for RUN on this machine, too.")
@RUN
@click.option("--actors", default=1, show_default=True, type=click.IntRange(1, 64), help="Actors to start here.")
def join(run: Path, *, actors: int) -> None:
    """Play for RUN on this machine: an env_server and actors that find its broker, and leave when it ends or Ctrl-C says so.

    The run must be reachable from here: submitted on more than one node, or with cluster.elastic=true.

    \b
    computerrl join latest --actors 2
    """
    from computerrl.launch.cluster.join import join_run

    sys.exit(join_run(run, num_actors=actors))


@click.command(short_help="Run CONFIG on several machines over ssh.")
@with_config()
@click.option(
    "--hosts", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The machines; see configs/hosts.yaml."
)
@click.option("--resume", is_flag=True, help="Continue the newest run of this name instead of starting a new one.")
@click.option("--dry-run", is_flag=True, help="Print what would run on which host; asks and starts nobody.")
def up(config: Path, overrides: tuple[str, ...], *, hosts: Path, resume: bool, dry_run: bool) -> None:
    """Run CONFIG on machines without a scheduler, over ssh: the same plan as `submit`, supervised from here.

    The hosts must be reached without a password and see this folder under the same path. Ctrl-C stops everything on all of them;
    so does the end of this process, however it ends. To leave it running, start it in tmux or as a service
    (launch/cluster/systemd/computerrl.service).

    \b
    computerrl up quickstart --hosts configs/hosts.yaml
    """
    from computerrl.launch.cluster import up as bare_metal

    made = bare_metal.plan_of(config, hosts_path=hosts, overrides=overrides)
    if dry_run:
        show_processes(made)
    show_idle(made)
    if dry_run:
        return
    sys.exit(bare_metal.up(config, hosts_path=hosts, overrides=overrides, resume=resume))


@click.command()
@RUN
def cancel(run: Path) -> None:
    """End RUN's Slurm job, and those of workers that joined it. What was acknowledged is safe; --resume continues.

    \b
    computerrl cancel latest
    """
    from computerrl.launch.cluster.submit import cancel

    click.echo(cancel(run))


@click.command(short_help="Print the logs of RUN's processes as one.")
@RUN
@click.argument("processes", nargs=-1, metavar="[PROCESS...]")
@click.option("-f", "--follow", is_flag=True, help="Stay and print what is added; Ctrl-C leaves.")
@click.option("-n", "--lines", default=40, show_default=True, type=click.IntRange(min=0), help="So many from the end.")
@click.option(
    "--level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"]), help="This and worse."
)
def logs(run: Path, processes: tuple[str, ...], *, follow: bool, lines: int, level: str) -> None:
    """Print the end of RUN's logs, those of all processes in the order of time; or of PROCESSes (learner-0) and roles (actor).

    \b
    computerrl logs latest --follow
    computerrl logs latest learner actor-3 --level warning
    """
    from computerrl.launch.watch.logs import show_logs

    show_logs(run, processes=processes, level=level, follow=follow, num_lines=lines)


@click.command(short_help="Collect what a site without internet needs.")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False), metavar="OUT_FOLDER")
@click.option("--image", default="core", show_default=True, help="Desktop image: a recipe's name, a path, or none.")
@click.option("--model", default="smollm2-135m", show_default=True, help="A built-in model, or a model folder to take along.")
def bundle(out: Path, *, image: str, model: str) -> None:
    """Collect in OUT_FOLDER what a site without internet needs: packages, project, desktop image, model, and install.sh.

    Make it on a machine of the same kind (Linux release, Python version, processor) that has internet and where `computerrl
    setup` has run; a second call goes on where the first was broken off. On the site, Apptainer must be there:

    \b
    computerrl bundle /media/disk/computerrl --model models/my-model
    cd /media/disk/computerrl
    ./install.sh ~/computerrl          (checks every file first)
    """
    from computerrl.launch.setup.bundle import make_bundle

    make_bundle(out, image=None if image == "none" else image, model=model, say=click.echo)


COMMANDS = (plan, submit, up, job, join, cancel, logs, bundle)
