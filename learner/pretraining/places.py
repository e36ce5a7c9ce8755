"""The second stage: the language model learns to say where a named thing lies, by low-rank changes of its attention (LoRA).

The questions about one page stand beside each other and see the page's tokens and their own, so that a page is computed once:

    [image] Task: Find "Submit".  Action: click(412, 230)
            Task: Find the red box.  Action: click(071, 655)

Tower and connector may be trained further. They need not be: as the first stage names things by word embeddings, what is learned
here also serves eyes that have meanwhile learned to read more words. Coordinates as in the prompt format compact_vision.

Shape legend: B pages of a batch, T tokens of the longest page with its questions, E hidden size.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from computerrl.learner.pretraining.labels import CELLS, pixels
from computerrl.learner.pretraining.pages import HEIGHT, WIDTH, Fonts, Item, Page, draw_page
from computerrl.learner.pretraining.tower import (
    HELD_OUT_SEED,
    SAY_STEPS,
    Eyes,
    Say,
    Schedule,
    is_for_training_alone,
    make_optimizer,
    set_lr,
)
from computerrl.learner.tiny_vision import AROUND_IMAGE, IMAGE_TOKEN, LORA_SCALE, WHOLE_IMAGE

RANK = 8
_CHANGED = ("q_proj", "k_proj", "v_proj", "o_proj")
_ASKS = ("Find {}.", "Point at {}.", "Where is {}?")
_BEGINNING = [AROUND_IMAGE, WHOLE_IMAGE, *[IMAGE_TOKEN] * CELLS**2, AROUND_IMAGE]
"""Tokens of the image."""
_NEWLINE = "\n"
_DIGIT_WEIGHTS = (1.0, 0.6, 0.15)
"""What the loss of a coordinate's digits counts: an element is seldom smaller than a hundredth of the screen."""
_OTHER_WEIGHT = 0.1
_MAX_ANSWER = 12


@dataclass(frozen=True, slots=True)
class Question:
    """One thing of a page."""

    ask: list[int]
    """Tokens up to the answer."""
    answer: list[int]
    weights: list[float]
    """Of the answer's tokens in the loss."""
    item: Item


@dataclass(frozen=True, slots=True)
class Batch:
    """Pages and their questions."""

    images: torch.Tensor
    """[B, 3, SIDE, SIDE]."""
    tokens: torch.Tensor
    """[B, T]."""
    positions: torch.Tensor
    """[B, T]."""
    sees: torch.Tensor
    """[B, T, T] bool."""
    targets: torch.Tensor
    """[B, T] the token to say next; -1: none."""
    weights: torch.Tensor
    """[B, T]."""

    def to(self, device: str) -> Batch:
        return Batch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


class Asker:
    """Draws pages and asks for things on them."""

    def __init__(self, tokenizer: Any, fonts: Fonts, *, max_questions: int) -> None:
        self._encode = lambda text: list(tokenizer.encode(text, add_special_tokens=False))
        self._decode = lambda token: str(tokenizer.decode([token])).strip()
        self._fonts = fonts
        self._max_questions = max_questions

    def page(self, rng: random.Random) -> tuple[np.ndarray, list[Question]]:
        """Pixels, and at least one question."""
        while True:
            page = draw_page(rng, self._fonts, dense=False)
            asked = askable(page)
            if asked:
                rng.shuffle(asked)
                return pixels(page.image), [self._question(rng, *one) for one in asked[: self._max_questions]]

    def _question(self, rng: random.Random, name: str, item: Item) -> Question:
        x, y = (min(999, max(0, round(1000 * at / size))) for at, size in zip(item.middle, (WIDTH, HEIGHT), strict=True))
        answer = self._encode(f" click({x:03d}, {y:03d}){_NEWLINE}")
        weights, digits = [], 0
        for said in map(self._decode, answer):
            digits = digits + 1 if said.isdigit() else 0
            weights.append(_DIGIT_WEIGHTS[digits - 1] if digits else _OTHER_WEIGHT)
        return Question(self._encode(f"{_NEWLINE}Task: {rng.choice(_ASKS).format(name)}{_NEWLINE}Action:"), answer, weights, item)


def askable(page: Page) -> list[tuple[str, Item]]:
    """Names that mean one thing of the page, and the thing; its middle is on the screen and not covered."""
    counts: dict[str, int] = {}
    for item in page.items:
        for name in item.names:
            counts[name] = counts.get(name, 0) + 1
    found = []
    for number, item in enumerate(page.items):
        x, y = item.middle
        covers = (other.box for other in page.items[number + 1 :])
        if 0 <= x < WIDTH and 0 <= y < HEIGHT and not any(b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in covers):
            found += [(name, item) for name in item.names if counts[name] == 1]
    return found


def make_batch(pages: Sequence[tuple[np.ndarray, list[Question]]]) -> Batch:
    """``pages``: pixels and questions of each."""
    begin = len(_BEGINNING)
    length = begin + max(sum(len(q.ask) + len(q.answer) - 1 for q in questions) for _, questions in pages)
    shape = (len(pages), length)
    tokens, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    owner, targets = np.full(shape, -1), np.full(shape, -1, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float32)
    for row, (_, questions) in enumerate(pages):
        tokens[row, :begin], positions[row, :begin], owner[row, :begin] = _BEGINNING, np.arange(begin), 0
        at = begin
        for number, question in enumerate(questions, 1):
            said = [*question.ask, *question.answer[:-1]]
            whole, answer = slice(at, at + len(said)), slice(at + len(question.ask) - 1, at + len(said))
            tokens[row, whole], positions[row, whole], owner[row, whole] = said, begin + np.arange(len(said)), number
            targets[row, answer], weights[row, answer] = question.answer, question.weights
            at += len(said)
    order = np.arange(length)
    sees = (order[:, None] >= order) & ((owner[:, None, :] == 0) | (owner[:, :, None] == owner[:, None, :]))
    arrays = (np.stack([image for image, _ in pages]), tokens, positions, sees, targets, weights)
    return Batch(*map(torch.from_numpy, arrays))


class Lora(torch.nn.Module):
    """A frozen linear map with a low-rank change (arXiv 2106.09685, section 4.1)."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.A = torch.nn.Parameter(torch.randn(RANK, base.in_features) / math.sqrt(base.in_features))
        self.B = torch.nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + LORA_SCALE * ((x @ self.A.T.to(x.dtype)) @ self.B.T.to(x.dtype))


class Reader(torch.nn.Module):
    """The language model behind the eyes."""

    def __init__(self, language_model: Any, eyes: Eyes) -> None:
        super().__init__()
        language_model.requires_grad_(False)
        self.changes = torch.nn.ModuleDict()
        for number, layer in enumerate(language_model.model.layers):
            for name in _CHANGED:
                lora = Lora(getattr(layer.self_attn, name))
                setattr(layer.self_attn, name, lora)
                self.changes[f"{number}-{name}"] = lora
        self.language_model, self.eyes = language_model, eyes

    def forward(self, batch: Batch) -> torch.Tensor:
        """[B, T, E] last hidden states."""
        with torch.autocast(batch.images.device.type, torch.bfloat16):
            features_BCE = self.eyes(batch.images)
        embedded_BTE = self.language_model.model.embed_tokens(batch.tokens)
        is_image_BT1 = (batch.tokens == IMAGE_TOKEN)[..., None]
        shown = features_BCE.to(embedded_BTE.dtype).flatten()
        embedded_BTE = embedded_BTE.masked_scatter(is_image_BT1.expand_as(embedded_BTE), shown)
        # Padding sees nothing, and a row without anything to see would be NaN.
        sees = batch.sees | ~batch.sees.any(-1, keepdim=True)
        mask = torch.zeros(sees.shape, dtype=embedded_BTE.dtype, device=sees.device).masked_fill(~sees, float("-inf"))
        positions = {"position_ids": batch.positions, "attention_mask": mask[:, None]}
        return self.language_model.model(inputs_embeds=embedded_BTE, use_cache=False, **positions).last_hidden_state

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.language_model.lm_head(hidden).float()

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Low-rank changes among ``tensors``, if there are any."""
        with torch.no_grad():
            for name, parameter in self._changes():
                if name in tensors:
                    parameter.copy_(tensors[name])

    def state(self) -> dict[str, torch.Tensor]:
        """Names and tensors of `learner.tiny_vision.WEIGHTS_FILE`."""
        tensors = {name: tensor for name, tensor in self.eyes.state_dict().items() if not is_for_training_alone(name)}
        return tensors | {name: parameter.detach() for name, parameter in self._changes()}

    def _changes(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, lora in self.changes.items():
            number, _, part = name.partition("-")
            for end in "AB":
                yield f"model.layers.{number}.self_attn.{part}.lora_{end}", getattr(lora, end)


class Questions(torch.utils.data.IterableDataset[Batch]):
    """Batches without end."""

    def __init__(self, tokenizer: Any, fonts: Path, *, batch: int, max_questions: int, seed: int) -> None:
        self._tokenizer, self._fonts, self._batch, self._max_questions, self._seed = tokenizer, fonts, batch, max_questions, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self._seed} {worker.id if worker else 0}")
        asker = Asker(self._tokenizer, Fonts(self._fonts), max_questions=self._max_questions)
        while True:
            yield make_batch([asker.page(rng) for _ in range(self._batch)])


def train_places(
    reader: Reader,
    schedule: Schedule,
    *,
    tokenizer: Any,
    fonts: Path,
    eyes_lr: float,
    max_questions: int,
    say: Say,
    keep: Callable[[], None],
) -> None:
    """The second stage, in place; see `train_tower`. ``eyes_lr``: peak learning rate of the eyes; 0: they stay as they are."""
    torch.manual_seed(schedule.seed)
    data = Questions(tokenizer, fonts, batch=schedule.batch, max_questions=max_questions, seed=schedule.seed)
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1 if schedule.device == "cpu" else 12))
    reader.to(schedule.device).train()
    reader.eyes.requires_grad_(eyes_lr > 0)
    optimizer = make_optimizer([(part, lr) for part, lr in ((reader.changes, schedule.lr), (reader.eyes, eyes_lr)) if lr])
    trained = [parameter for parameter in reader.parameters() if parameter.requires_grad]
    began, num_questions, first = time.monotonic(), 0, 0.0
    for step in range(schedule.steps):
        set_lr(optimizer, schedule.share(step))
        batch = next(batches).to(schedule.device)
        asked = batch.targets >= 0
        losses = F.cross_entropy(reader.logits(reader(batch)[asked]), batch.targets[asked], reduction="none")
        weights = batch.weights[asked]
        optimizer.zero_grad()
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        is_first = weights == _DIGIT_WEIGHTS[0]
        num_questions += int(is_first.sum()) // 2
        found = float(losses.detach()[is_first].mean())
        first = found if step == 0 else 0.95 * first + 0.05 * found
        if (step + 1) % (SAY_STEPS // 5) == 0 or step + 1 == schedule.steps:
            say(f"{schedule.progress(step, began)}: {num_questions} questions, loss of first digits {first:.3f}")
            keep()
    hits, asked_for = measured(reader, tokenizer, fonts, num_pages=20, device=schedule.device)
    say(f"end, {num_questions} questions: {hits} of {asked_for} named things of held-out pages are hit")


@torch.no_grad()
def measured(reader: Reader, tokenizer: Any, fonts: Path, *, num_pages: int, device: str) -> tuple[int, int]:
    """How many things of held-out pages the likeliest answers hit, and how many were asked for."""
    reader.eval()
    rng = random.Random(HELD_OUT_SEED)
    asker = Asker(tokenizer, Fonts(fonts), max_questions=4)
    hits = asked = 0
    for _ in range(num_pages):
        image, questions = asker.page(rng)
        said: list[list[int]] = [[] for _ in questions]
        for _ in range(_MAX_ANSWER):
            # The last token of each question so far asks for the next one.
            so_far = [Question([*q.ask, *s], [0], [1.0], q.item) for q, s in zip(questions, said, strict=True)]
            batch = make_batch([(image, so_far)]).to(device)
            chosen = reader.logits(reader(batch)[batch.targets >= 0]).argmax(-1).tolist()
            for one, token in zip(said, chosen, strict=True):
                one.append(token)
        for question, tokens in zip(questions, said, strict=True):
            found = re.match(r" click\((\d{3}), (\d{3})\)", tokenizer.decode(tokens))
            left, top, right, bottom = question.item.box
            asked += 1
            if found:
                x, y = int(found[1]) * WIDTH / 1000, int(found[2]) * HEIGHT / 1000
                hits += left <= x <= right and top <= y <= bottom
    reader.train()
    return hits, asked
