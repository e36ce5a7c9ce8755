"""The second stage: the language model learns to say where a named thing lies, by low-rank changes of its attention (LoRA).

Answers alone had not begun to teach it after 1,700 questions. So what each part should do is taught as well:

    "Submit"  ──►  cells of the button  ──►  the end of the name knows 41, 23  ──►  click(4 1 _, 2 3 _)
              looks                     reads                                 reads

Some heads of attention are taught where to look, as GUI-Actor teaches its own head (arXiv 2506.03143, section 3.2): those of the
first layer, from each word to the cells that show it, which is a small step from looking at earlier tokens of the same word; some
later ones, from the end of a name to the thing, and from the digits of a place to the thing; four, one for each digit, from it to
the end of the name. And the hidden state there, after a third of the layers, is taught to hold the digits. The heads are those
that look there most from the start.

Tower and connector stay as they are: the first stage names things by word embeddings, so what is learned here also serves eyes
that have meanwhile learned to read more words.

Shape legend: Q questions of all pages, L tokens of the longest question, T tokens of a page and of a question, E hidden size.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from computerrl.learner.pretraining.progress import Progress
from computerrl.learner.pretraining.questions import DIGIT_WEIGHTS, NUM_DIGITS, AskedPages, Asker, Batch, Question, make_batch
from computerrl.learner.pretraining.reader import BEGINNING, CELLS_AT, NAMING_LAYERS, Read, Reader
from computerrl.learner.pretraining.things import HEIGHT, WIDTH
from computerrl.learner.pretraining.tower import HELD_OUT_SEED, SAY_STEPS, Batches, Say, Schedule, make_optimizer, set_lr

_MAX_ANSWER = 12
_NUM_GUIDED = 4
"""Heads of attention of each kind that are taught where to look."""
_LATER_LAYERS = slice(NAMING_LAYERS, -5)
"""Where heads are that read places. Behind the last, too few layers are left to say what was seen."""
_GUIDE_WEIGHT = 0.5
_PLACE_WEIGHTS = (0.5, 0.2, 0.5, 0.2)
"""Of the digits that the end of a name should hold."""
_LEAST_SHARE = 1e-8
"""Of attention, for logarithms."""

Head = tuple[int, int]
"""Layer and number in it."""
Mask = Callable[[Batch], torch.Tensor]
"""[Q, L] bool: tokens that look; or [Q, T] bool: where to."""


@dataclass(frozen=True, slots=True)
class Guide:
    """Heads that are taught where to look."""

    what: str
    heads: Sequence[Head]
    looks: Mask
    to: Mask
    not_looks: Mask | None = None
    """Tokens from which the heads should not look there."""

    def shares(self, read: Read, batch: Batch, mask: Mask) -> torch.Tensor:
        """How much of its attention each head gives to where it should look, at each token of ``mask``."""
        at_QLT, to_QT = mask(batch), self.to(batch)
        return torch.stack([(read.seen[layer][:, head] * to_QT[:, None]).sum(-1)[at_QLT] for layer, head in self.heads])

    def loss(self, read: Read, batch: Batch) -> tuple[torch.Tensor, float]:
        """The loss, and the mean share."""
        shares = self.shares(read, batch, self.looks)
        loss = -(shares + _LEAST_SHARE).log().mean()
        if self.not_looks is not None:
            loss = loss - (1 - self.shares(read, batch, self.not_looks) + 1e-3).log().mean()
        return loss, float(shares.detach().mean())


def train_places(
    reader: Reader,
    schedule: Schedule,
    *,
    asker: Asker,
    held_out: Asker,
    num_name_steps: int,
    say: Say,
    files: tuple[Path, Path],
) -> None:
    """The second stage, in place; see `train_tower`. The eyes stay as they are. ``num_name_steps``: how long the first
    `NAMING_LAYERS` layers alone learn what the end of a name should hold before, at four times the speed. ``files``: of the
    `Progress` of both parts."""
    make = AskedPages(asker, schedule.batch)
    place = torch.nn.Linear(reader.language_model.config.hidden_size, 10 * NUM_DIGITS)
    torch.nn.init.zeros_(place.weight)
    torch.nn.init.zeros_(place.bias)
    reader.to(schedule.device).train()
    place.to(schedule.device)
    reader.eyes.requires_grad_(False)
    with torch.no_grad():
        guides = _guides(reader, [make(random.Random(f"{schedule.seed} {n}"), n).to(schedule.device) for n in range(3)])
    for guide in guides:
        say(f"heads (layer, number) that are taught to look {guide.what}: {sorted(guide.heads)}")
    early = torch.nn.ModuleList([one for name, one in reader.changes.items() if int(name.split("-")[0]) < NAMING_LAYERS])
    part = _Part(reader, place, make, guides, say)
    names = replace(schedule, steps=num_name_steps)
    early_guides = [guide for guide in guides if max(guide.heads)[0] < NAMING_LAYERS]
    replace(part, guides=early_guides, say=lambda text: say(f"names: {text}")).train(names, early, files[0], only_names=True)
    # Other pages than those of the names.
    part.train(replace(schedule, seed=schedule.seed + 1), reader.changes, files[1], only_names=False)
    hits, asked_for = measured(reader, held_out, num_pages=20, device=schedule.device)
    say(f"end: {hits} of {asked_for} named things of held-out pages are hit")


@dataclass(frozen=True, slots=True)
class _Part:
    reader: Reader
    place: torch.nn.Linear
    make: AskedPages
    guides: Sequence[Guide]
    say: Say

    def train(self, schedule: Schedule, changes: torch.nn.Module, file: Path, *, only_names: bool) -> None:
        """``changes``: of the language model's attention, all or those of the first layers."""
        reader, place, guides = self.reader, self.place, self.guides
        optimizer = make_optimizer([(changes, schedule.lr), (place, schedule.lr)])
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        progress = Progress(file, torch.nn.ModuleDict({"changes": reader.changes, "place": place}).state_dict())
        first = progress.restore(optimizer)
        batches = Batches(self.make, seed=schedule.seed, first=first).drawn_aside(schedule.device)
        watched = frozenset(layer for guide in guides for layer, _ in guide.heads)
        began, num_questions, shown = time.monotonic(), 0, np.zeros(0)
        for step in range(first, schedule.steps):
            set_lr(optimizer, schedule.share(step))
            batch = next(batches).to(schedule.device)
            batch = batch.up_to_names() if only_names else batch
            read = reader(batch, watched=watched, only_names=only_names)
            guided = [guide.loss(read, batch) for guide in guides]
            wrong_4Q = F.cross_entropy(
                place(read.named_QE).view(-1, NUM_DIGITS, 10).transpose(1, 2), batch.places_Q4, reduction="none"
            ).T
            loss = _GUIDE_WEIGHT * torch.stack([one for one, _ in guided]).sum()
            loss = loss + (wrong_4Q.mean(1) * wrong_4Q.new_tensor(_PLACE_WEIGHTS)).sum()
            told = [float(wrong_4Q[[0, 2]].detach().mean())]
            if not only_names:
                answered, said = _answer_loss(reader, read, batch)
                loss = loss + answered
                told.append(said)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            num_questions += len(batch.page_Q)
            now = np.array([*told, *(share for _, share in guided)])
            shown = 0.97 * shown + 0.03 * now if step > first else now
            if (step + 1) % (SAY_STEPS // 10) == 0 or step + 1 == schedule.steps:
                self.say(f"{schedule.progress(step, first, began)}: {num_questions} questions, {_told(shown, guides)}")
                progress.keep(optimizer, step + 1)


def _told(shown: np.ndarray, guides: Sequence[Guide]) -> str:
    """``shown``: the losses at names and, where answers are learned, of what is said; then the share of each of ``guides``."""
    losses, shares = shown[: -len(guides)], shown[-len(guides) :]
    texts = [f"{name} {loss:.3f}" for name, loss in zip(["at names", "said"], losses, strict=False)]
    looks = [f"{guide.what} {share:.2f}" for guide, share in zip(guides, shares, strict=True)]
    return f"loss of first digits {', '.join(texts)}; attention {', '.join(looks)}"


def _answer_loss(reader: Reader, read: Read, batch: Batch) -> tuple[torch.Tensor, float]:
    """The weighted loss of the answers' tokens, and the mean loss of the first digits."""
    asked = batch.targets_QL >= 0
    losses = F.cross_entropy(reader.logits(read.hidden_QLE[asked]), batch.targets_QL[asked], reduction="none")
    weights = batch.weights_QL[asked]
    return (losses * weights).sum() / weights.sum(), float(losses.detach()[weights == DIGIT_WEIGHTS[0]].mean())


def _to_cells(batch: Batch) -> torch.Tensor:
    padded_QT = batch.cells_QC.new_zeros(len(batch.page_Q), len(BEGINNING) + batch.tokens_QL.shape[1])
    padded_QT[:, CELLS_AT] = batch.cells_QC
    return padded_QT


def _to_name_ends(batch: Batch) -> torch.Tensor:
    return F.pad(batch.name_ends_QL, (len(BEGINNING), 0))


def _at_digit(number: int) -> Mask:
    return lambda batch: batch.digits_QL == number


def _at_other_digits(number: int) -> Mask:
    return lambda batch: (batch.digits_QL >= 0) & (batch.digits_QL != number)


def _guides(reader: Reader, batches: Sequence[Batch]) -> list[Guide]:
    num_layers = len(reader.language_model.model.layers)
    early, later = range(num_layers)[1:NAMING_LAYERS], range(num_layers)[_LATER_LAYERS]
    reads = [reader(batch, watched=frozenset([*early, *later])) for batch in batches]
    taken: set[Head] = set()

    def chosen(layers: range, num: int, looks: Mask, to: Mask) -> list[Head]:
        heads = [(layer, head) for layer in layers for head in range(reads[0].seen[layer].shape[1]) if (layer, head) not in taken]
        guide = Guide("", heads, looks, to)
        shares = sum((guide.shares(*one, looks) + 1e-4).log().mean(1) for one in zip(reads, batches, strict=True))
        best = [heads[int(index)] for index in torch.as_tensor(shares).argsort(descending=True)[:num]]
        taken.update(best)
        return best

    def guide(what: str, layers: range, looks: Mask) -> Guide:
        return Guide(what, chosen(layers, _NUM_GUIDED, looks, _to_cells), looks, _to_cells)

    guides = [
        Guide("from words to the thing", reader.look_up_heads, lambda batch: batch.words_QL, _to_cells),
        guide("from names to the thing", early, lambda batch: batch.name_ends_QL),
        guide("from digits to the thing", later, lambda batch: batch.digits_QL >= 0),
    ]
    for number in range(NUM_DIGITS):
        at_it, at_others = _at_digit(number), _at_other_digits(number)
        heads = chosen(later, 1, at_it, _to_name_ends)
        guides.append(Guide(f"from digit {number} to the name", heads, at_it, _to_name_ends, at_others))
    return guides


@torch.no_grad()
def measured(reader: Reader, asker: Asker, *, num_pages: int, device: str) -> tuple[int, int]:
    """How many things of held-out pages the likeliest answers hit, and how many were asked for."""
    reader.eval()
    rng = random.Random(HELD_OUT_SEED)
    hits = asked = 0
    for _ in range(num_pages):
        image, questions = asker.page(rng)
        said: list[list[int]] = [[] for _ in questions]
        for _ in range(_MAX_ANSWER):
            # The last token of each question so far asks for the next one.
            so_far = [
                replace(one, ask=[*one.ask, *tokens], said=[0], answer=[0], weights=[1.0], digits=[-1])
                for one, tokens in zip(questions, said, strict=True)
            ]
            batch = make_batch([(image, so_far)]).to(device)
            chosen = reader.logits(reader(batch).hidden_QLE[batch.targets_QL >= 0]).argmax(-1).tolist()
            for tokens, token in zip(said, chosen, strict=True):
                tokens.append(token)
        hits += sum(is_hit(question, asker.text(tokens)) for question, tokens in zip(questions, said, strict=True))
        asked += len(questions)
    reader.train()
    return hits, asked


def is_hit(question: Question, answer: str) -> bool:
    """Does ``answer`` click on the thing?"""
    found = re.match(r" click\((\d{3}), (\d{3})\)", answer)
    if not found:
        return False
    left, top, right, bottom = question.item.box
    x, y = int(found[1]) * WIDTH / 1000, int(found[2]) * HEIGHT / 1000
    return left <= x <= right and top <= y <= bottom
