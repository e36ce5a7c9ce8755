"""`computerrl eval` and `computerrl record`: their options, and what they teach."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from computerrl.launch.commands.options import AS_JSON, SET, ConfigFile, Number, Run
from computerrl.launch.progress import Progress


@click.command("eval", short_help="Evaluate a checkpoint on held-out tasks.")
@click.argument("source", default="latest", metavar="[CHECKPOINT]")
@click.option("--tasks", "families", help="Task families, separated by commas. Default: those of the run.")
@click.option("--episodes", type=click.IntRange(min=1), help="Held-out instances of each family. Default: that of the run.")
@click.option("--rollouts", type=click.IntRange(1, 256), default=1, show_default=True, help="Rollouts of each instance, K.")
@click.option("--temperature", type=Number(0, 1000), help="Sampling temperature. Default: 0 for one rollout, 1 for several.")
@click.option("--config", type=ConfigFile(), metavar="CONFIG", help="Configuration to use in place of the run's.")
@click.option("--endpoint", metavar="URL", help="A server that holds the model; CHECKPOINT is a folder with its tokenizer.")
@click.option("--agent", metavar="KIND", help="Agent: openai, anthropic, program, module:Class. CHECKPOINT names its model.")
@click.option("--grounding", type=click.Path(path_type=Path), metavar="DIR", help="Data set of pictures in place of tasks.")
@click.option("--resume", is_flag=True, help="Continue an interrupted evaluation with the same options.")
@AS_JSON
@SET
def evaluation(source: str, families: str | None, overrides: tuple[str, ...], *, as_json: bool, **wishes: Any) -> None:
    """Evaluate CHECKPOINT on held-out tasks: pass@1 to pass@K of each family, with 95 % intervals.

    CHECKPOINT is a run (its newest complete checkpoint), one folder of its checkpoints/, or a Hugging Face folder with --config.
    The evaluation is a run of its own, whose folder gets evaluation.json and evaluation.html. The seeds of its tasks are fixed
    (tasks.evaluation_seeds).

    \b
    computerrl eval latest
    computerrl eval latest --tasks calc-set-cell,files-move
    computerrl eval runs/quickstart/checkpoints/checkpoint-000007
    computerrl eval latest --rollouts 8 --temperature 0.7
    computerrl eval trained --config quickstart
    computerrl eval theirs --config quickstart --endpoint http://127.0.0.1:8000/v1

    With --endpoint a server samples (`vllm serve theirs`). --set actor.endpoint.model=NAME chooses one of several models of the
    server. --set actor.endpoint.key_file=FILE names the file of its key (chmod 600). --set actor.endpoint.mode=chat sends turns
    of a chat, with screenshots where the prompt format shows them, to a server that takes no token ids.

    \b
    computerrl eval theirs --agent openai --config quickstart
    computerrl eval theirs --agent anthropic --config quickstart
    computerrl eval mine --agent mine:Agent --config quickstart

    With --agent an agent with a model of its own plays (docs/how-to/agents.md). Address and key of a service are --endpoint or
    OPENAI_BASE_URL (ANTHROPIC_BASE_URL), and OPENAI_API_KEY (ANTHROPIC_API_KEY).

    --grounding DIR scores where the policy points in the pictures of ScreenSpot-v2, ScreenSpot-Pro or OSWorld-G
    (docs/how-to/vision.md).
    """
    from computerrl.launch.run.evaluate import Wish, evaluate
    from computerrl.launch.run.grounding import evaluate_grounding

    if wishes["agent"] is not None and wishes["grounding"] is not None:
        raise click.UsageError("--grounding is for policies: leave out --agent")
    chosen = tuple(families.split(",")) if families is not None else None
    wish = Wish(source, families=chosen, overrides=overrides, **wishes)
    sys.exit((evaluate if wish.grounding is None else evaluate_grounding)(wish, as_json=as_json))


@click.command(short_help="Write the successes of an evaluation as demonstrations.")
@click.argument("run", type=Run(), metavar="RUN")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT_FOLDER")
@AS_JSON
def record(run: Path, out: Path, *, as_json: bool) -> None:
    """Write the successful episodes of an evaluation as demonstrations, which another run clones.

    RUN is an evaluation on demonstration seeds, of an agent (docs/how-to/agents.md) or of a checkpoint. Episodes of other seeds
    are left out: nothing is ever trained on held-out tasks. Of each task instance the shortest success is kept; each file names
    agent, model, run and episode. OUT_FOLDER may hold recordings already, those of people among them. The episodes that were not
    recorded are counted by reason.

    Exit code 0: OUT_FOLDER holds demonstrations of RUN. 1: no episode was fit.

    \b
    computerrl eval latest --set learner.recipe.eval_split=demonstration
    computerrl record eval-theirs demonstrations
    computerrl train quickstart tasks.recordings=demonstrations
    computerrl replay demonstrations/calc-type-cell-11.json
    """
    from computerrl.launch.run import record as recording

    with Progress(f"recording {run.name}", unit="episodes") as shown:
        found = recording.record(run, out, tell=shown)
    if as_json:
        counts = {"num_actions_left_out": found.num_actions_left_out, "num_screens_missing": found.num_screens_missing}
        click.echo(json.dumps({"paths": list(map(str, found.paths)), "not_recorded": found.refused, **counts}, indent=2))
    else:
        for line in recording.summary_of(found, out):
            click.echo(line)
    sys.exit(0 if found.paths or found.refused["already_recorded"] else 1)
