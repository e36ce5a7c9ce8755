"""`computerrl eval`: play a policy on held-out tasks, and say how good it is.

An evaluation is a run whose recipe has an evaluation and nothing else: the same processes and desktops, the same journal, and so
`--resume` continues one that was broken off. Wires that together; the arithmetic is `evaluation_figures`'.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.models.folder import check_model_folder, is_model_folder, model_folder
from computerrl.common.models.hub import is_hub_name, model_label
from computerrl.launch.plan.run_names import CONFIG_FILE, find_checkpoint, read_resolved, runs_named

if TYPE_CHECKING:
    from computerrl.common.config import RunConfig

FIGURES_FILE = "evaluation.json"
PAGE_FILE = "evaluation.html"
MODEL_FOLDER = "model"
"""Folder of an evaluation: the evaluated checkpoint as a model folder. Its weights are removed when the evaluation is complete;
the tokenizer stays, because the replay shows prompts with it."""

_ORIGIN_FILE = "computerrl.json"
"""`learner.checkpoints.export.ORIGIN_FILE`, which is in a module that loads torch."""
_AGENT_NEW_TOKENS = 4096
"""Maximum number of tokens of an agent's answer, thoughts included, unless `actor.max_new_tokens` is set."""
_ONLY_EVALUATE = (
    "learner.recipe.demos_per_family=0",
    "learner.recipe.demos_of_family={}",
    "learner.recipe.teacher=null",
    "learner.recipe.specialists=[]",
    "learner.recipe.imported=[]",
    "tasks.recordings=null",
    "learner.recipe.eval_before_episodes_per_family=null",
    "learner.recipe.max_updates=0",
    # A run shortens its evaluations to keep its budget; a person asked for this one.
    "learner.recipe.max_run_s=null",
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for; None: as the run has it."""

    source: str
    """A run, one of its checkpoints, or a model folder; with ``endpoint`` a folder with its config.json and tokenizer."""
    endpoint: str | None = None
    """Of a server that holds the model."""
    config: Path | None = None
    families: tuple[str, ...] | None = None
    episodes: int | None = None
    rollouts: int = 1
    temperature: float | None = None
    """None: greedy for one rollout of each task, 1 for several."""
    overrides: tuple[str, ...] = ()
    resume: bool = False
    agent: str | None = None
    """Kind of an agent that plays with a model of its own, whose name ``source`` is."""
    grounding: Path | None = None
    """Folder of a grounding data set, or an annotation file in it, that is played in place of tasks
    (`launch.run.grounding`)."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The model of an evaluation."""

    model: str
    """`model.name` of the evaluation: a model folder, or the base model of ``checkpoint``."""
    settings: Path
    """File with all other settings."""
    name: str
    """Name of the evaluation."""
    run: Path | None = None
    """Run of ``checkpoint``."""
    checkpoint: Path | None = None
    """Checkpoint whose weights the evaluation writes into its own folder; None: ``model`` has the weights."""


def evaluate(wish: Wish, *, as_json: bool = False) -> int:
    """Carry it out, print the table (or JSON) and write both files; gives the exit code. Raises typed errors."""
    found = find_evaluated(wish)
    config = evaluation_config(wish, found)
    from computerrl.launch.run import local

    code, folder = local.play(config, resume=wish.resume, is_latest=False, prepare=lambda claimed: with_weights(claimed, found))
    if code == 0:
        figures = write_evaluation(folder)
        remove_weights(folder)
        print(json.dumps(figures, indent=2) if as_json else table_of(figures))
        print(f"evaluation: {folder / PAGE_FILE}", file=sys.stderr if as_json else sys.stdout, flush=True)
    return code


def evaluation_config(wish: Wish, found: Evaluated) -> RunConfig:
    """The run that carries ``wish`` out. Raises `ConfigError`."""
    temperature = wish.temperature
    if temperature is None:
        temperature = 0.0 if wish.rollouts == 1 else 1.0
    if wish.rollouts > 1 and temperature == 0:
        step = "give --temperature above 0, or --rollouts 1"
        raise ConfigError([Problem("--temperature", f"{wish.rollouts} greedy rollouts of a task are all the same", step)])
    changes = [
        *_ONLY_EVALUATE,
        f"name={found.name}",
        *([] if wish.agent is not None else [f"model.name={found.model}"]),
        f"learner.recipe.eval_temperature={temperature}",
        f"learner.recipe.eval_rollouts_per_task={wish.rollouts}",
    ]
    if wish.agent is not None:
        changes += _agent_settings(wish, wish.agent)
    elif wish.endpoint is not None:
        changes += ["actor.engine=endpoint", f"actor.endpoint.url={wish.endpoint}"]
    if wish.families is not None:
        changes.append(f"tasks.families={json.dumps(wish.families)}")
    if wish.episodes is not None:
        changes.append(f"learner.recipe.eval_episodes_per_family={wish.episodes}")
    from computerrl.common.config import load_config

    config = load_config(found.settings, overrides=(*changes, *wish.overrides))
    if not wish.resume or found.checkpoint is None:
        return config
    there = [folder for folder in runs_named(Path(config.run_dir), config.name) if (folder / CONFIG_FILE).is_file()]
    return _with_model(config, there[-1] / MODEL_FOLDER) if there else config  # Without one, `local.play` refuses to resume.


def _agent_settings(wish: Wish, kind: str) -> list[str]:
    """Settings by which the agent plays. Raises `ConfigError` where a service's address is not known."""
    from computerrl.common.config import SERVICES

    changes = [
        "actor.engine=agent",
        f"actor.agent.kind={json.dumps(kind)}",
        "actor.inference=local",
        "actor.older_policy_every=null",
        f"actor.max_new_tokens={_AGENT_NEW_TOKENS}",
    ]
    if kind not in SERVICES:
        if wish.endpoint is not None:
            step = "leave it out; actor.agent.options are given to the class"
            raise ConfigError([Problem("--endpoint", "goes with the agents openai and anthropic", step)])
        return changes
    variable = SERVICES[kind]
    url = wish.endpoint or os.environ.get(f"{variable}_BASE_URL")
    if url is None:
        step = f"give --endpoint URL, or set {variable}_BASE_URL: nothing is sent to a host that was not named"
        raise ConfigError([Problem("--endpoint", f"no address of a server for the agent {kind}", step)])
    if kind == "anthropic" and not url.rstrip("/").endswith("/v1"):
        url = f"{url.rstrip('/')}/v1"  # as this interface's own clients complete its address
    changes += [f"actor.endpoint.url={url}", f"actor.endpoint.model={json.dumps(wish.source)}"]
    if os.environ.get(f"{variable}_API_KEY"):
        changes.append(f"actor.endpoint.key_variable={variable}_API_KEY")
    return changes


def run_name(name: str) -> str:
    """Name of the evaluation of what has ``name``, of which a run's name may hold less."""
    return f"eval-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:150]}"


def find_evaluated(wish: Wish) -> Evaluated:
    """What ``wish`` evaluates. Names are checked before torch is loaded. Raises `ConfigError`, `ResumeError`."""
    if wish.agent is not None:
        if wish.config is None:
            step = "give --config CONFIG: it names desktops and tasks"
            raise ConfigError([Problem("--config", "an agent has no configuration", step)])
        return Evaluated("", wish.config, run_name(wish.source))
    # Without a configuration no model is evaluated, and no cache is read.
    source = model_folder(wish.source) if wish.config is not None and is_hub_name(wish.source) else Path(wish.source)
    if wish.endpoint is not None:
        # This process counts and makes tokens, wherever the weights are.
        check_model_folder(source, field="CHECKPOINT", weights=False)
    if wish.endpoint is not None or is_model_folder(source):
        if wish.config is None:
            step = "give --config CONFIG: prompt format, desktops and tasks are not part of a model"
            raise ConfigError([Problem("--config", f"{wish.source!r} is a model folder, without a configuration", step)])
        return Evaluated(str(source.resolve()), wish.config, run_name(model_label(str(source.resolve()))))
    if os.path.isfile(source / "config.json"):
        check_model_folder(source, field="CHECKPOINT")  # Raises: it names what the model folder lacks.
    try:
        run, checkpoint = find_checkpoint(wish.source)
    except ConfigError as error:
        (problem,) = error.problems
        if problem.field != "RUN":
            raise
        reason = f"{wish.source!r} is neither a run, a checkpoint nor a model folder"
        step = f"{problem.next_step}, or a model folder with --config"
        if is_hub_name(wish.source):
            step += f"; a model of the hub is fetched by `hf download {wish.source}` where there is internet"
        raise ConfigError([Problem("CHECKPOINT", reason, step)]) from None
    _tell(f"evaluating {checkpoint or f'the newest checkpoint of {run}'}")
    if checkpoint is None:
        from computerrl.learner.checkpoints.checkpoint import newest_checkpoint

        checkpoint = newest_checkpoint(run / "checkpoints")
    base = read_resolved(run)["model"]["name"]
    name = run_name(f"{run.resolve().name}-{checkpoint.name}")
    return Evaluated(str(base), wish.config or run / CONFIG_FILE, name, run=run, checkpoint=checkpoint)


def with_weights(config: RunConfig, found: Evaluated) -> RunConfig:
    """Write the checkpoint's model into the claimed folder of ``config``; the configuration that names it."""
    if found.run is None or found.checkpoint is None:
        return config
    from computerrl.launch.progress import Progress
    from computerrl.learner.checkpoints.export import export_model

    model = config.folder / MODEL_FOLDER
    _tell(f"writing the weights of {found.checkpoint.name} into {model}; removed when the evaluation is complete")
    with Progress(f"writing {found.checkpoint.name}", unit="parts") as shown:
        export_model(found.run, model, checkpoint=found.checkpoint, tell=shown)
    return _with_model(config, model)


def remove_weights(folder: Path) -> None:
    """Remove the weights that `with_weights` has written into the run ``folder``."""
    for path in (folder / MODEL_FOLDER).glob("*.safetensors*"):
        path.unlink()


def _with_model(config: RunConfig, model: Path) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"name": str(model.resolve())})})


def _tell(line: str) -> None:
    """A line of progress; stdout belongs to the figures."""
    print(line, file=sys.stderr, flush=True)


def write_evaluation(folder: Path) -> dict[str, Any]:
    """Figures of the evaluation in run ``folder``, which also go into its two files."""
    from computerrl.common.config import TasksConfig
    from computerrl.common.metrics import read_json_lines
    from computerrl.common.run_files.run_folder import RunFolder, write_atomically
    from computerrl.env_server.client import impossible_families
    from computerrl.launch.report.charts import intervals
    from computerrl.launch.report.evaluation_figures import evaluation_figures, impossible_share, ks
    from computerrl.launch.report.usage import count_usage
    from computerrl.launch.report.write import latest_of_each, page_environment

    config = read_resolved(folder)
    recipe = config["learner"]["recipe"]
    episodes = latest_of_each(read_json_lines(RunFolder(folder).episodes_path))
    figures = {
        "name": folder.name,
        **player_of(folder, config),
        "split": recipe["eval_split"],
        "temperature": recipe["eval_temperature"],
        "rollouts_per_task": recipe["eval_rollouts_per_task"],
        **evaluation_figures(count_results(episodes), rollouts_per_task=recipe["eval_rollouts_per_task"]),
    }
    if config["tasks"].get("osworld"):
        figures |= {"impossible": impossible_share(count_results(episodes), impossible_families(TasksConfig(**config["tasks"])))}
    if config["actor"].get("agent"):
        figures |= {"usage": count_usage(episodes, config["actor"]["agent"])}
    write_atomically(folder / FIGURES_FILE, json.dumps(figures, indent=2).encode())
    known = {name: found["pass@1"] for name, found in figures["families"].items() if found["pass@1"]["mean"] is not None}
    rows = [(name, one["mean"], one["low"], one["high"]) for name, one in known.items()]
    drawn = intervals("pass@1 of each family with its interval", rows)
    page = (
        page_environment()
        .get_template("evaluation.html.j2")
        .render(figures=figures, ks=ks(figures["rollouts_per_task"]), family_figure=drawn)
    )
    write_atomically(folder / PAGE_FILE, page.encode())
    return figures


def player_of(folder: Path, config: Mapping[str, Any]) -> dict[str, str | None]:
    """Model, endpoint and agent that played in run ``folder`` with ``config``; None: there was no server, no agent."""
    from computerrl.common.config import player_name

    actor = config["actor"]
    endpoint, agent = (actor.get("endpoint") or {}).get("url"), (actor.get("agent") or {}).get("kind")
    model = player_name(actor) if agent else evaluated_model(folder) or config["model"]["name"]
    return {"model": model, "endpoint": endpoint, "agent": agent}


def evaluated_model(folder: Path) -> str:
    """Run and checkpoint of the weights that `with_weights` wrote, from the record that is left; empty where it wrote none."""
    try:
        origin = json.loads((folder / MODEL_FOLDER / _ORIGIN_FILE).read_text())
    except FileNotFoundError:
        return ""
    return f"{origin['run']}/{origin['checkpoint']}"


def count_results(episodes: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], tuple[int, int]]:
    """(family, seed) -> (rollouts, successes), of evaluations."""
    counts: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for episode in episodes:
        if episode["kind"] == "evaluation":
            counts[episode["family"], int(episode["seed"])].append(bool(episode["success"]))
    return {task: (len(found), sum(found)) for task, found in counts.items()}


def table_of(figures: Mapping[str, Any]) -> str:
    """For a terminal."""
    from computerrl.launch.report.evaluation_figures import ks

    names = [f"pass@{k}" for k in ks(figures["rollouts_per_task"])]
    lines = [f"{'family':28} {'tasks':>6} {'rollouts':>9}" + "".join(f"{name:>24}" for name in names)]
    for family, found in (*figures["families"].items(), ("all", figures["all"])):
        cells = "".join(f"{_cell(found[name]):>24}" for name in names)
        lines.append(f"{family:28} {found['num_tasks']:6} {found['num_rollouts']:9}{cells}")
    split = [] if figures["split"] == "evaluation" else [f"played on {figures['split']} seeds: these tasks are not held out"]
    return "\n".join([*lines, *_impossible_lines(figures), *_usage_lines(figures.get("usage")), *split])


def _impossible_lines(figures: Mapping[str, Any]) -> list[str]:
    found = figures.get("impossible")
    if not found:
        return []
    num, of = found["num_tasks"], figures["all"]["num_tasks"]
    return [f"{num} of {of} tasks cannot be done: an agent that always answers fail scores {found['always_fail']:.3f}"]


def _usage_lines(usage: Mapping[str, Any] | None) -> list[str]:
    from computerrl.launch.report.usage import usage_line

    if usage is None:
        return []
    failed = usage["num_agent_failed"]
    told = f"{failed} episodes ended because the agent failed: see the actor's log" if failed else ""
    return [line for line in (usage_line(usage), told) if line]


def _cell(figure: Mapping[str, Any]) -> str:
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
