"""A run folder with trajectories as the learner stores them, whose prompts a real builder made for a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from computerrl.actor.prompts.builder import builder_of_run
from computerrl.actor.prompts.formats.base import PastAction
from computerrl.actor.prompts.tokenizer import FolderTokenizer
from computerrl.common.config import RunConfig
from computerrl.common.messages import Element, Observation, ScreenshotRef, Step, StepTiming, TaskRef, Trajectory
from computerrl.common.models.folder import image_token_id
from computerrl.common.run_files.run_folder import RunFolder
from computerrl.env_server.drivers.screenshots import ScreenshotStore, read_screenshot
from computerrl.learner.accounts.records import Records

WIDTH, HEIGHT = 150, 100
ELEMENTS = (
    Element(1, "push-button", "Submit <b>", 30, 50, 20, 10, (), True),
    Element(2, "entry", "naïve 東京 🙂", 75, 20, 40, 10, (), True),
)
INSTRUCTION = 'Type "Grüße" & press <Submit>.'


@dataclass(frozen=True)
class Played:
    """One step to store."""

    action: str
    """In the grammar of `common.actions`; rendered by the run's format. With ``completion``, that is stored in place of it."""
    places: tuple[int, ...] = ()
    error: str = ""
    completion: str | None = None


SOLVED = (Played("click(1)", (30, 50)), Played('type("Grüße 🙂", target=2)', (75, 20)), Played("done()"))


def store_run(
    folder: Path,
    model: Path,
    trajectories: Sequence[tuple[str, Sequence[Played]]],
    *,
    prompt: dict[str, Any] | None = None,
    failed: Sequence[str] = (),
    has_screens: bool = True,
    outcome: str = "trained",
) -> RunConfig:
    """A run in ``folder`` of the model in ``model``. ``trajectories``: (id, its steps). ``failed``: ids that were not solved."""
    prompt = {"max_prompt_tokens": 60_000, "history_steps": 3, **(prompt or {})}
    config = RunConfig.model_validate(
        {
            "name": folder.name,
            "run_dir": str(folder.parent),
            "model": {"name": str(model)},
            "desktop": {"screen_width": 640, "screen_height": 480},
            "tasks": {"actions": "gui"},
            "actor": {"max_new_tokens": 512, "prompt": prompt},
        }
    )
    run = RunFolder(folder)
    run.create(config)
    store = ScreenshotStore(run.trajectories, picture_format="png", incarnation="stored")
    builder = builder_of_run(config, model, FolderTokenizer(model), read=lambda ref: read_screenshot(run.trajectories, ref))
    records = Records(run, positions={}, image_token=image_token_id(model))
    for number, (name, played) in enumerate(trajectories):
        steps, past = [], []
        for step in played:
            shot = store.put(np.full((HEIGHT, WIDTH, 3), 20 * len(steps) + number, np.uint8))
            observation = Observation("editor", "notes", ELEMENTS, shot, WIDTH, HEIGHT, "quiet", 0.0, "")
            made = builder.build(INSTRUCTION, observation, past)
            said = builder.render(step.action, observation) if step.completion is None else step.completion
            tokens = builder.encode_action(said)
            steps.append(_step(made.tokens, tokens, said, step, images=made.images, screenshot=shot if has_screens else None))
            past.append(PastAction(said, error=step.error, is_malformed=step.completion is not None, screenshot=shot))
        final = store.put(np.full((HEIGHT, WIDTH, 3), 255, np.uint8)) if has_screens else None
        records.episode(_trajectory(name, steps, final, success=name not in failed), outcome, advantages=[0.5] * len(steps))
    store.close()
    records.close()
    return config


def _step(
    prompt: np.ndarray,
    tokens: np.ndarray,
    said: str,
    step: Played,
    *,
    images: tuple[ScreenshotRef, ...],
    screenshot: ScreenshotRef | None,
) -> Step:
    return Step(
        prompt_tokens=prompt,
        action_tokens=tokens,
        behavior_logprobs=np.full(len(tokens), -0.25, np.float32),
        policy_versions=np.full(len(tokens), 3, np.int32),
        action_text=said,
        format_ok=step.completion is None,
        action_error=step.error or ("" if step.completion is None else "not an action"),
        screenshot=screenshot,
        settled_by="quiet",
        timing=StepTiming(generate_s=0.1, desktop_s=0.1, settle_s=0.0),
        images=images,
        places=step.places,
    )


def _trajectory(name: str, steps: Sequence[Step], final: ScreenshotRef | None, *, success: bool) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        group_id=name.rpartition("/")[0],
        index=0,
        order_id=name.partition("/")[0],
        kind="training",
        task=TaskRef("editor-type-save", 100_000, "training"),
        instruction=INSTRUCTION,
        steps=tuple(steps),
        reward=float(success),
        success=success,
        end_reason="done_action",
        final_screenshot=final,
        actor="actor-0:x",
        shown_by="",
        started_at=1e9,
        duration_s=2.0,
        reset_s=0.5,
        wait_s=0.0,
    )
