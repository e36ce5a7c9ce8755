"""One answer of a policy to a picture and an instruction, for evaluations of grounding (`computerrl eval --grounding`).

A picture stands for the first screen of an episode. There is no desktop and no earlier action, and no text tells what the picture
shows. Knows neither data sets nor the right answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from computerrl.actor.engines import make_engine
from computerrl.actor.engines.base import GenerationRequest
from computerrl.actor.prompts.builder import FolderTokenizer, builder_of_run
from computerrl.common.actions import ActionSyntaxError
from computerrl.common.actions.targets import places_of
from computerrl.common.config import RunConfig
from computerrl.common.messages import Action, Observation, ScreenshotRef
from computerrl.common.models.folder import model_folder
from computerrl.common.vision.screens import ReadScreenshot

if TYPE_CHECKING:
    from computerrl.actor.engines.base import PolicyEngine

POINTING = frozenset({"click", "double_click", "triple_click", "hover", "type"})
"""Actions whose place is one point that the policy chose. A drag has two, and a wheel turns anywhere above what it scrolls."""

_ROOM = 1 << 24
"""Budget of the prompts in tokens, which no prompt reaches: an answer to a prompt without its picture would be worthless."""

AnswerKind = Literal["point", "fail", "other_action", "no_action"]
"""`point`: a place in the picture. `fail`: the format's action for a task that cannot be done. `other_action`: an action without
one place. `no_action`: text that is no action of the format, or an action that was cut."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy's answer about one picture."""

    kind: AnswerKind
    text: str
    """Whole completion."""
    point: tuple[int, int] | None = None
    """Column and row of a pixel of the picture, for kind `point`."""
    reason: str = ""
    """Reason why the answer is no action, or the name of another action; empty for the other kinds."""


class PicturePolicy:
    """The policy of a configuration, with an engine of its own once it is started; safe to share between threads."""

    def __init__(self, config: RunConfig, *, read: ReadScreenshot) -> None:
        """``read``: the encoded bytes of a picture. Raises `ConfigError` for a prompt format that does
        not suit the model."""
        folder = model_folder(config.model.name)
        self._max_new_tokens = config.actor.max_new_tokens
        self._tokenizer = FolderTokenizer(folder)
        prompt = config.actor.prompt.model_copy(update={"max_prompt_tokens": _ROOM})
        roomy = config.model_copy(update={"actor": config.actor.model_copy(update={"prompt": prompt})})
        self._prompts = builder_of_run(roomy, folder, self._tokenizer, read=read)
        self._temperature = config.learner.recipe.eval_temperature
        self._engine: PolicyEngine | None = None

    def start(self, config: RunConfig) -> None:
        """Load the engine, which takes seconds to half a minute. ``config`` names the weights, which may have been written since
        the prompts were made. Raises `ConfigError` like `make_engine`."""
        self._engine = make_engine(config, model_folder(config.model.name), decode=self._tokenizer.decode)

    def close(self) -> None:
        """End the engine. Answers under way fail with `EngineFailed`."""
        if self._engine is not None:
            self._engine.close()

    def num_tokens(self, picture: ScreenshotRef, instruction: str) -> int:
        """Number of tokens of the prompt; the picture is not read. Raises `PictureError` for a size that the model does not
        take."""
        return len(self._prompts.build(instruction, _screen(picture), ()).tokens)

    def answer(self, picture: ScreenshotRef, instruction: str) -> Answer:
        """Sample one answer. Raises `PictureError` when the picture cannot be read, and what `Sampler.submit` raises."""
        assert self._engine is not None, "the engine was not started"
        screen = _screen(picture)
        prompt = self._prompts.build(instruction, screen, ())
        request = GenerationRequest(
            prompt_tokens=prompt.tokens,
            temperature=self._temperature,
            max_new_tokens=self._max_new_tokens,
            stop_tokens=self._prompts.stop_tokens,
            images=self._prompts.request_images(prompt),
            chat=self._prompts.chat_turns(prompt),
        )
        completion = self._engine.submit(request).result()
        text = self._prompts.said(completion.text, completion.tokens)
        if completion.finish == "length":
            return Answer("no_action", text, reason=f"cut off after {request.max_new_tokens} tokens")
        try:
            action = self._prompts.parse(text, screen)
        except ActionSyntaxError as error:
            return Answer("no_action", text, reason=str(error))
        return _read(action, text, screen)


def _read(action: Action, text: str, screen: Observation) -> Answer:
    """The answer that ``action`` gives."""
    if action.name == "fail":
        return Answer("fail", text)
    places = places_of(action, (), width=screen.screen_width, height=screen.screen_height) if action.name in POINTING else ()
    if len(places) != 2:
        return Answer("other_action", text, reason=action.name)
    return Answer("point", text, point=(places[0], places[1]))


def _screen(picture: ScreenshotRef) -> Observation:
    """A screen as large as ``picture`` that shows it, of which nothing else is known."""
    return Observation("", "", (), picture, picture.width, picture.height, "none", 0.0, "")
