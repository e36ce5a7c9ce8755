"""The second stage: the language model learns to say where a named thing lies, by low-rank changes of its attention (LoRA).

Some heads of attention are taught where to look, as GUI-Actor teaches its own head (arXiv 2506.03143, section 3.2): early ones,
from the words that name a thing to the thing, which is a small step from looking at earlier tokens of the same word; later ones,
while a coordinate is said. They are those that look there most from the start. Answers alone had not begun to form such heads
after 1,700 questions.

Tower and connector may be trained further. They need not be: as the first stage names things by word embeddings, what is learned
here also serves eyes that have meanwhile learned to read more words.

Shape legend: Q questions of all pages, L tokens of the longest question, C cells of a page.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from computerrl.learner.pretraining.pages import HEIGHT, WIDTH, Fonts
from computerrl.learner.pretraining.questions import DIGIT_WEIGHTS, Asker, Batch, Questions, make_batch
from computerrl.learner.pretraining.reader import Reader
from computerrl.learner.pretraining.tower import HELD_OUT_SEED, SAY_STEPS, Say, Schedule, make_optimizer, set_lr

_MAX_ANSWER = 12
_NUM_GUIDED = 4
"""Heads of attention of each kind that are taught where to look."""
_NAMING_LAYERS, _PLACING_LAYERS = slice(1, 11), slice(11, -5)
"""Where they are. Behind the last, too few layers are left to say what was seen."""
_GUIDE_WEIGHT = 0.5
_LEAST_SHARE = 1e-8
"""Of attention, for logarithms."""


def train_places(
    reader: Reader,
    schedule: Schedule,
    *,
    tokenizer: Any,
    fonts: Path,
    eyes_lr: float,
    max_questions: int,
    num_look_up_steps: int,
    say: Say,
    keep: Callable[[], None],
) -> None:
    """The second stage, in place; see `train_tower`. ``eyes_lr``: peak learning rate of the eyes; 0: they stay as they are.
    ``num_look_up_steps``: how long the first layer alone learns to look up words before, at some twenty times the speed; 0: it
    goes on with what it has."""
    torch.manual_seed(schedule.seed)
    data = Questions(tokenizer, fonts, batch=schedule.batch, max_questions=max_questions, seed=schedule.seed)
    batches = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1 if schedule.device == "cpu" else 12))
    reader.to(schedule.device).train()
    reader.eyes.requires_grad_(False)
    if num_look_up_steps:
        reader.look_up_words(schedule.seed)
        _train_look_up(reader, replace(schedule, steps=num_look_up_steps), batches, say)
    reader.eyes.requires_grad_(eyes_lr > 0)
    optimizer = make_optimizer([(part, lr) for part, lr in ((reader.changes, schedule.lr), (reader.eyes, eyes_lr)) if lr])
    trained = [parameter for parameter in reader.parameters() if parameter.requires_grad]
    with torch.no_grad():
        first_batches = [next(batches).to(schedule.device) for _ in range(3)]
        naming = _looking_heads(reader, first_batches, _NAMING_LAYERS, _from_name_ends)
        placing = _looking_heads(reader, first_batches, _PLACING_LAYERS, _from_places)
    taught = [(reader.look_up_heads, _from_words), (naming, _from_name_ends), (placing, _from_places)]
    say(f"heads (layer, number) that are taught where to look: {sorted(naming)} from names, {sorted(placing)} for places")
    watched = frozenset(layer for heads, _ in taught for layer, _ in heads)
    began, num_questions, shown = time.monotonic(), 0, np.zeros(1 + len(taught))
    for step in range(schedule.steps):
        set_lr(optimizer, schedule.share(step))
        batch = next(batches).to(schedule.device)
        hidden, seen = reader(batch, watched=watched)
        asked = batch.targets_QL >= 0
        losses = F.cross_entropy(reader.logits(hidden[asked]), batch.targets_QL[asked], reduction="none")
        weights = batch.weights_QL[asked]
        looks = [_looks(seen, batch, heads, positions) for heads, positions in taught]
        guide = torch.stack([(share + _LEAST_SHARE).log().mean() for share in looks]).sum()
        optimizer.zero_grad()
        ((losses * weights).sum() / weights.sum() - _GUIDE_WEIGHT * guide).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        num_questions += len(batch.page_Q)
        first = losses.detach()[weights == DIGIT_WEIGHTS[0]].mean()
        now = np.array([float(first), *(float(share.detach().mean()) for share in looks)])
        shown = 0.95 * shown + 0.05 * now if step else now
        if (step + 1) % (SAY_STEPS // 10) == 0 or step + 1 == schedule.steps:
            told = "{:.3f}, attention on the thing {:.2f} from its words, {:.2f} from its name, {:.2f} later".format(*shown)
            say(f"{schedule.progress(step, began)}: {num_questions} questions, loss of first digits {told}")
            keep()
    hits, asked_for = measured(reader, tokenizer, fonts, num_pages=20, device=schedule.device)
    say(f"end, {num_questions} questions: {hits} of {asked_for} named things of held-out pages are hit")


def _train_look_up(reader: Reader, schedule: Schedule, batches: Iterator[Batch], say: Say) -> None:
    """Queries and keys of `Reader.look_up_heads`, from the names of things to the things."""
    changes = torch.nn.ModuleList([reader.changes["0-q_proj"], reader.changes["0-k_proj"]])
    optimizer = make_optimizer([(changes, schedule.lr)])
    began, shown = time.monotonic(), 0.0
    for step in range(schedule.steps):
        set_lr(optimizer, schedule.share(step))
        batch = next(batches).to(schedule.device)
        _, seen = reader(batch, watched=frozenset([0]), num_layers=1)
        at_it = _looks(seen, batch, reader.look_up_heads, _from_words)
        optimizer.zero_grad()
        (-(at_it + _LEAST_SHARE).log().mean()).backward()
        torch.nn.utils.clip_grad_norm_(changes.parameters(), 1.0)
        optimizer.step()
        shown = 0.98 * shown + 0.02 * float(at_it.detach().mean()) if step else float(at_it.detach().mean())
        if (step + 1) % SAY_STEPS == 0 or step + 1 == schedule.steps:
            say(f"look-up: {schedule.progress(step, began)}: attention on the thing {shown:.2f} from its name")


Positions = Callable[[Batch], torch.Tensor]
"""[Q, L] bool."""


def _from_words(batch: Batch) -> torch.Tensor:
    return batch.words_QL


def _from_name_ends(batch: Batch) -> torch.Tensor:
    return batch.name_ends_QL


def _from_places(batch: Batch) -> torch.Tensor:
    """Where one of the first two digits of a coordinate comes next."""
    return batch.weights_QL >= DIGIT_WEIGHTS[1]


def _looks(
    seen: Mapping[int, torch.Tensor], batch: Batch, heads: Sequence[tuple[int, int]], positions: Positions
) -> torch.Tensor:
    """`_share_at_it` of all ``heads``."""
    return torch.stack([_share_at_it(seen[layer][:, head], batch, positions) for layer, head in heads])


def _share_at_it(seen_QLC: torch.Tensor, batch: Batch, positions: Positions) -> torch.Tensor:
    """How much of its attention one head gives, at each of ``positions``, to the thing that is asked for."""
    return (seen_QLC * batch.cells_QC[:, None]).sum(-1)[positions(batch)]


def _looking_heads(reader: Reader, batches: Sequence[Batch], layers: slice, positions: Positions) -> list[tuple[int, int]]:
    """(layer, head) of those that look most at what is asked for."""
    chosen = range(len(reader.language_model.model.layers))[layers]
    found: dict[tuple[int, int], float] = {}
    for batch in batches:
        _, seen = reader(batch, watched=frozenset(chosen))
        for layer, seen_QHLC in seen.items():
            for head in range(seen_QHLC.shape[1]):
                share = _share_at_it(seen_QHLC[:, head], batch, positions)
                found[layer, head] = found.get((layer, head), 0.0) + float((share + 1e-4).log().mean())
    return sorted(found, key=lambda one: -found[one])[:_NUM_GUIDED]


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
            so_far = [replace(q, ask=[*q.ask, *s], answer=[0], weights=[1.0]) for q, s in zip(questions, said, strict=True)]
            batch = make_batch([(image, so_far)]).to(device)
            chosen = reader.logits(reader(batch)[0][batch.targets_QL >= 0]).argmax(-1).tolist()
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
