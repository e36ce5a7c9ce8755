"""Commands of `computerrl` for runs on more than one machine. Each command imports the code behind it when it is called."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from computerrl.launch.commands.options import AS_JSON, PRINT_CONFIG, RUN, Run, Site, print_resolved, with_config
from computerrl.launch.progress import Progress

if TYPE_CHECKING:
    from computerrl.common.memory_plan import Choice
    from computerrl.launch.cluster.plan import ClusterPlan

SITE = click.option("--site", type=Site(), metavar="SITE", help="A name in configs/sites/, or the path of a site profile.")


@click.command(short_help="Print the processes and the job of CONFIG on a cluster.")
@with_config()
@SITE
@click.option("--gpu-gb", type=click.FloatRange(min=1), metavar="GB", help="Memory of a GPU: print what each GPU would hold.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="With --gpu-gb: GPUs of a node; else the site's, or 1.")
@PRINT_CONFIG
@AS_JSON
def plan(
    config: Path,
    overrides: tuple[str, ...],
    *,
    site: str | None,
    gpu_gb: float | None,
    gpus: int | None,
    print_config: bool,
    as_json: bool,
) -> None:
    """Print the node and the resources of each process of CONFIG on a cluster, and the job that `submit` would queue.

    This starts nothing and connects to nothing. Without --site, any node is assumed to fit, and nodes have GPUs with --gpu-gb
    alone. With --gpu-gb it also prints what a learner's rank and a vLLM engine would hold of a GPU, and what to change where that
    does not fit.

    \b
    computerrl plan quickstart cluster.num_worker_nodes=2
    computerrl plan gpu/eight-80gb --gpus 8 --gpu-gb 80
    computerrl plan quickstart --site configs/sites/gpu-and-cpu.yaml
    """
    from computerrl.launch.cluster.submit import make_plan_of

    if as_json and (print_config or gpu_gb is not None):
        raise click.UsageError("--json has the processes and the job: leave out --print-config and --gpu-gb")
    made = make_plan_of(config, overrides=overrides, site=site, has_gpus=gpu_gb is not None)
    if as_json:
        click.echo(json.dumps(plan_tree(made), indent=2))
        return
    if print_config:
        print_resolved(made.config, path=config)
    show_plan(made, on_gpus=gpu_gb is not None)
    if gpu_gb is not None:
        show_cards(made, num_cards=gpus or made.site.learner.gpus_per_node or 1, card_gb=gpu_gb)


def show_cards(made: ClusterPlan, *, num_cards: int, card_gb: float) -> None:
    """Print what each kind of GPU of a plan would hold."""
    from computerrl.launch.plan.card import plan_cards
    from computerrl.launch.plan.resources import missing_model

    click.echo(f"\n# {num_cards} {'GPU' if num_cards == 1 else 'GPUs'} of {card_gb:g} GB a node, estimated")
    if missing_model(made.config) is not None:
        click.echo("not estimated: see the note about model.name")
        return
    for line in plan_cards(made.config, num_cards=num_cards, card_gb=card_gb).lines:
        click.echo(line)


def show_plan(made: ClusterPlan, *, on_gpus: bool = False) -> None:
    """Print the processes, the job's script, and notes. ``on_gpus``: the ranks have GPUs, whatever the
    site says."""
    from computerrl.launch.plan.resources import describe_choice, describe_images

    show_processes(made)
    choice = None if on_gpus else _choice(made)
    click.echo(describe_choice(made.config, choice))
    if images := describe_images(made.config, choice):
        click.echo(images)
    click.echo(f"\n# job\n{made.script}", nl=False)
    show_notes(made)


def _choice(made: ClusterPlan) -> Choice | None:
    """The learner's choice of recomputation; None where it makes the choice on its GPU."""
    from computerrl.common.memory_plan import Choice

    if made.layout.learner_has_gpus:
        return None
    wanted = made.config.learner.activation_checkpointing
    return Choice("none", "the requested memory holds all activations") if wanted == "auto" else Choice(wanted, "configured")


def show_processes(made: ClusterPlan) -> None:
    """Print the processes of each node."""
    from computerrl.launch.cluster.plan import describe

    click.echo("# processes")
    for node, needs, spec in describe(made):
        if spec is None:
            click.echo(f"{node}: {needs}")
        else:
            click.echo(f"    {spec.name:14} {needs:28} OMP_NUM_THREADS={spec.env['OMP_NUM_THREADS']}  {' '.join(spec.argv)}")


def plan_tree(made: ClusterPlan) -> dict[str, Any]:
    """The processes of each node with what they take, and the job's script, as JSON has them."""
    from computerrl.launch.cluster.plan import describe

    rows = [
        {
            "node": node,
            "name": spec.name,
            "num_cores": spec.resources.num_cores,
            "memory_mb": spec.resources.memory_mb,
            "num_gpus": spec.resources.num_gpus,
            "environment": dict(spec.env),
            "argv": list(spec.argv),
        }
        for node, _, spec in describe(made)
        if spec is not None
    ]
    return {"processes": rows, "job": made.script}


def show_notes(made: ClusterPlan) -> None:
    """Print on stderr what a plan would waste or cannot know: idle desktops, GPUs not requested, a model that is not here."""
    from computerrl.launch.plan.processes import idle_desktops, missing_gpus
    from computerrl.launch.plan.resources import missing_model

    found = (idle_desktops(made.config, made.layout), missing_gpus(made.config, made.layout), missing_model(made.config))
    for note in found:
        if note is not None:
            click.echo(f"note: {note}", err=True)


@click.command(short_help="Queue a run of CONFIG as one Slurm job.")
@with_config(is_required=False)
@click.option("--site", required=True, type=Site(), metavar="SITE", help="A name in configs/sites/, or a profile's path.")
@click.option("--resume", is_flag=True, help="Continue the newest run of this name instead of starting a new one.")
@click.option("--workers-for", type=Run(), metavar="RUN", help="Queue workers that join RUN, in place of a run.")
@click.option("--array", default="0", show_default=True, metavar="RANGE", help="With --workers-for: job indices, such as 0-7.")
@click.option("--dry-run", is_flag=True, help="Print the job, as `computerrl plan` does, but queue nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print JSON instead of a table.")
def submit(
    config: Path | None,
    overrides: tuple[str, ...],
    site: str,
    *,
    resume: bool,
    workers_for: Path | None,
    array: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Queue a run of CONFIG as one Slurm job. Learner and broker run on learner nodes, desktops and actors on worker nodes.

    Slurm signals the job before its time limit and before preemption. The job then writes a checkpoint, queues itself again and
    resumes; nothing is lost or trained twice. A process that dies is started again inside the job. docs/tutorials/slurm.md is an
    introduction.

    \b
    computerrl submit quickstart --site my-cluster
    computerrl status latest; computerrl logs latest learner-0
    computerrl cancel latest
    computerrl submit quickstart --site my-cluster --resume

    With --workers-for, nodes of a scavenger partition play for a run that is at work. They may be preempted at any moment:

    \b
    computerrl submit --workers-for latest --array 0-7 --site my-cluster
    """
    from computerrl.launch.cluster import submit as submission

    if as_json and (not dry_run or workers_for is not None):
        raise click.UsageError("--json goes with --dry-run of a run")
    if workers_for is not None:
        from computerrl.launch.cluster.join import submit_workers

        click.echo(submit_workers(workers_for, site=site, array=array, dry_run=dry_run))
        return
    if config is None:
        raise click.UsageError("give a CONFIG, or --workers-for RUN")
    if dry_run:
        made = submission.make_plan_of(config, overrides=overrides, site=site)
        if as_json:
            click.echo(json.dumps(plan_tree(made), indent=2))
        else:
            show_plan(made)
        return
    made = submission.make_plan_of(config, overrides=overrides, site=site)
    show_notes(made)
    run, job_id = submission.submit(config, overrides=overrides, site=site, resume=resume)
    steps = f"computerrl status {run.folder}, computerrl logs {run.folder} --follow"
    click.echo(f"{run.folder}: job {job_id} is queued\n    -> {steps}")


@click.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="RUN_FOLDER")
def job(folder: Path) -> None:
    """Supervise the processes of RUN_FOLDER on the nodes of the Slurm allocation. A submitted job runs this command.

    \b
    computerrl job runs/quickstart
    """
    from computerrl.launch.cluster.job import run_job

    sys.exit(run_job(folder))


@click.command(short_help="Add this machine's desktops and actors to RUN.")
@RUN
@click.option("--actors", default=1, show_default=True, type=click.IntRange(1, 64), help="Number of actors to start.")
def join(run: Path, *, actors: int) -> None:
    """Add an env_server and actors on this machine to RUN. They leave when the run ends, or after Ctrl-C.

    This machine must reach the broker: the run has more than one node, or cluster.elastic=true.

    \b
    computerrl join latest --actors 2
    """
    from computerrl.launch.cluster.join import join_run

    sys.exit(join_run(run, num_actors=actors))


@click.command(short_help="Train with CONFIG on several machines over ssh.")
@with_config()
@click.option(
    "--hosts", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Host list; configs/hosts.yaml is an example."
)
@click.option("--resume", is_flag=True, help="Continue the newest run of this name instead of starting a new one.")
@click.option("--dry-run", is_flag=True, help="Print the processes of each host, but start nothing.")
def up(config: Path, overrides: tuple[str, ...], *, hosts: Path, resume: bool, dry_run: bool) -> None:
    """Train with CONFIG over ssh on machines without a scheduler. The plan is that of `submit`, supervised from this machine.

    ssh must reach the hosts without a password, and they must see this folder under the same path. Ctrl-C stops everything on all
    hosts, and so does the end of this process. To keep it running, start it in tmux or as a service
    (launch/cluster/systemd/computerrl.service).

    \b
    computerrl up quickstart --hosts configs/hosts.yaml
    """
    from computerrl.launch.cluster import up as bare_metal

    made = bare_metal.plan_of(config, hosts_path=hosts, overrides=overrides)
    if dry_run:
        show_processes(made)
    show_notes(made)
    if dry_run:
        return
    sys.exit(bare_metal.up(config, hosts_path=hosts, overrides=overrides, resume=resume))


@click.command(short_help="Cancel the Slurm jobs of RUN.")
@RUN
def cancel(run: Path) -> None:
    """Cancel the Slurm job of RUN, and those of workers that joined it.

    Acknowledged work is kept. `computerrl submit` with --resume continues the run.

    \b
    computerrl cancel latest
    """
    from computerrl.launch.cluster.submit import cancel

    click.echo(cancel(run))


@click.command(short_help="Print the logs of RUN, merged by time.")
@RUN
@click.argument("processes", nargs=-1, metavar="[PROCESS...]")
@click.option("-f", "--follow", is_flag=True, help="Also print new lines, until Ctrl-C.")
@click.option("-n", "--lines", default=40, show_default=True, type=click.IntRange(min=0), help="Number of last lines to print.")
@click.option(
    "--level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"]), help="Lowest level."
)
def logs(run: Path, processes: tuple[str, ...], *, follow: bool, lines: int, level: str) -> None:
    """Print the end of RUN's logs, those of all processes merged by time.

    PROCESS is a process (learner-0) or a role (actor), and may be repeated.

    \b
    computerrl logs latest --follow
    computerrl logs latest learner actor-3 --level warning
    """
    from computerrl.launch.watch.logs import show_logs

    show_logs(run, processes=processes, level=level, follow=follow, num_lines=lines)


@click.command(short_help="Collect the files for a site without internet.")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False), metavar="OUT_FOLDER")
@click.option("--image", default="core", show_default=True, help="Desktop image: a recipe's name, a path, or none.")
@click.option("--model", default="smollm2-135m", show_default=True, help="Name of a built-in model, or a model folder.")
@click.option("--gpu-check", is_flag=True, help="In place of all that, what `computerrl bench gpu` needs beside torch and vllm.")
@click.option(
    "--pieces", "pieces_mb", type=click.IntRange(1), metavar="MB", help="With --gpu-check: also cut it into such files."
)
def bundle(out: Path, *, image: str, model: str, gpu_check: bool, pieces_mb: int | None) -> None:
    """Collect in OUT_FOLDER the files for a site without internet: packages, project, desktop image, model, and install.sh.

    Run this on a machine of the same kind (Linux release, Python version, processor) with internet, after `computerrl setup`.
    A second call continues an interrupted one. The site itself must have Apptainer:

    \b
    computerrl bundle /media/disk/computerrl --model models/my-model
    cd /media/disk/computerrl
    ./install.sh ~/computerrl          (checks every file first)

    With --gpu-check nothing is downloaded: wheels are made of what is installed here. The other machine must have torch's CUDA
    build for the same Python release; without vllm the parts with vLLM are not run:

    \b
    computerrl bundle gpu --gpu-check --pieces 60
    cat gpu.tar.* | tar -x             (there, where pieces arrived)
    gpu/gpu_check.sh --quick           (options of computerrl bench gpu)
    """
    if gpu_check:
        from computerrl.launch.setup.gpu_bundle import make_gpu_bundle

        with Progress(f"bundle {out.name}", unit="packages") as shown:
            make_gpu_bundle(out, pieces_mb=pieces_mb, say=click.echo, tell=shown)
        return
    if pieces_mb is not None:
        raise click.UsageError("--pieces is for --gpu-check")
    from computerrl.launch.setup.bundle import make_bundle

    with Progress(f"bundle {out.name}", unit="parts") as shown:
        make_bundle(out, image=None if image == "none" else image, model=model, say=click.echo, tell=shown)


COMMANDS = (plan, submit, up, job, join, cancel, logs, bundle)
