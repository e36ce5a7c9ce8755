"""The first stage: tower and connector learn dense labels, against the word embeddings of the language model.

Each image token gets the vector of the words that lie under it, so that the language model later reads a screen as words laid out
in rows; and from the same vector the place of the thing can be told. The language model itself is not run.

Shape legend: B pages of a batch, C cells, W words of a cell, V entries of the vocabulary, E hidden size of the language model.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from computerrl.learner.pretraining.labels import Vocabulary, cell_labels, pixels, stacked
from computerrl.learner.pretraining.progress import Progress
from computerrl.learner.pretraining.screens import Source
from computerrl.learner.tiny_vision import PATCH, SIDE, model_config

HELD_OUT_SEED = 987_654_321
"""Of the pages on which a stage is measured."""
_SHARPNESS = 30.0
"""Scale of cosines in the softmax over words."""
_BACKGROUND_WEIGHT = 0.1
"""Empty cells are many and teach little."""

_DIGIT_WEIGHTS = (0.5, 0.2, 0.5, 0.2)
SAY_STEPS = 250

LOOSE_SHARE = 0.6
"""Part of the steps after which words lie anywhere, for eyes that begin to learn."""

T = TypeVar("T")
Say = Callable[[str], None]


class Eyes(torch.nn.Module):
    """Tower and connector of `tiny-vision`, and a head for training alone."""

    def __init__(self, text: dict[str, Any]) -> None:
        """``text``: configuration of the language model."""
        super().__init__()
        from transformers.models.idefics3.modeling_idefics3 import Idefics3Connector, Idefics3VisionTransformer

        config = model_config(text)
        config.vision_config._attn_implementation = "sdpa"
        self.vision_model = Idefics3VisionTransformer(config.vision_config)
        self.connector = Idefics3Connector(config)
        self.place = torch.nn.Linear(int(text["hidden_size"]), 40)
        for module in self.modules():
            if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                torch.nn.init.trunc_normal_(module.weight, std=0.05 if isinstance(module, torch.nn.Conv2d) else 0.02)
                if module.bias is not None:
                    torch.nn.init.zeros_(module.bias)
            elif isinstance(module, torch.nn.Embedding):
                torch.nn.init.normal_(module.weight, std=0.02)

    def forward(self, pixels_B3HW: torch.Tensor) -> torch.Tensor:
        """[B, C, E]."""
        patches = SIDE // PATCH
        mask = torch.ones(len(pixels_B3HW), patches, patches, dtype=torch.bool, device=pixels_B3HW.device)
        return self.connector(self.vision_model(pixel_values=pixels_B3HW, patch_attention_mask=mask).last_hidden_state)


def is_for_training_alone(name: str) -> bool:
    """Does the tensor ``name`` of `Eyes` belong to the head that `tiny-vision` does without?"""
    return name.startswith("place.")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a stage trains."""

    steps: int
    batch: int
    """Pages of a step."""
    lr: float
    seed: int
    device: str

    def share(self, step: int) -> float:
        """Learning rate as a part of its peak: a warm-up, then a cosine."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        warmup_steps = min(200, 1 + self.steps // 40)
        return min(1.0, (step + 1) / warmup_steps) * (0.98 * cosine + 0.02)

    def progress(self, step: int, first: int, began_s: float) -> str:
        """Steps done, and the time that is left; ``first`` was begun with at ``began_s``."""
        spent_s = time.monotonic() - began_s
        left_s = spent_s / (step + 1 - first) * (self.steps - step - 1)
        return f"{step + 1} of {self.steps} steps, {spent_s / 60:.0f} min, {left_s / 60:.0f} min left"


class Batches(torch.utils.data.IterableDataset[T]):
    """Batches without end. Each is drawn from its number, so that they are the same wherever one goes on."""

    def __init__(self, make: Callable[[random.Random, int], T], *, seed: int, first: int = 0) -> None:
        """``make``: a batch of its number. ``first``: number of the first one."""
        self._make, self._seed, self._first = make, seed, first

    def __iter__(self) -> Iterator[T]:
        worker = torch.utils.data.get_worker_info()
        apart = worker.num_workers if worker else 1
        for number in itertools.count(self._first + (worker.id if worker else 0), apart):
            yield self._make(random.Random(f"{self._seed} {number}"), number)

    def drawn_aside(self, device: str) -> Iterator[T]:
        """The batches, drawn by processes of their own."""
        return iter(torch.utils.data.DataLoader(self, batch_size=None, num_workers=1 if device == "cpu" else 12))


@dataclass(frozen=True, slots=True)
class LabelledPages:
    """Makes batches of pixels and labels."""

    source: Source
    vocabulary: Vocabulary
    batch: int
    loose_after: int = 0
    """Number of batches until words lie anywhere; before, they are drawn ever more loosely."""

    def __call__(self, rng: random.Random, number: int) -> list[torch.Tensor]:
        looseness = min(1.0, number / self.loose_after) if self.loose_after else 1.0
        pages = [self.source.page(rng, dense=True, looseness=looseness) for _ in range(self.batch)]
        labels = stacked(cell_labels(page, self.vocabulary) for page in pages)
        return [torch.from_numpy(array) for array in (np.stack([pixels(page.image) for page in pages]), *labels)]


class DenseLoss:
    """Cross-entropy of the words under each cell and of the digits of the thing's place, and the length of the vectors."""

    def __init__(self, embeddings: torch.Tensor, vocabulary: Vocabulary, *, device: str) -> None:
        """``embeddings``: [tokens, E], of the language model."""
        centred_VE = embeddings[vocabulary.tokens] - embeddings.mean(0)
        self._norm = float(centred_VE.norm(dim=1).mean())
        self._words_VE = F.normalize(centred_VE, dim=1).to(device)
        self._background = torch.tensor(sorted(vocabulary.background), device=device)

    def logits(self, features_BCE: torch.Tensor) -> torch.Tensor:
        """[B, C, V]."""
        return _SHARPNESS * F.normalize(features_BCE.float(), dim=-1) @ self._words_VE.T

    def is_background(self, entries_BCW: torch.Tensor) -> torch.Tensor:
        """[B, C] bool."""
        return torch.isin(entries_BCW[..., 0], self._background)

    def __call__(
        self, eyes: Eyes, features_BCE: torch.Tensor, labels: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Words (0: all shares right), digits of places, norm."""
        entries_BCW, shares_BCW, _, has_thing_BC = labels
        logprobs = self.logits(features_BCE).log_softmax(-1).gather(-1, entries_BCW.clamp(min=0))
        entropy_BC = -torch.special.xlogy(shares_BCW, shares_BCW).sum(-1)
        words_BC = -(logprobs * shares_BCW).sum(-1) - entropy_BC
        weight_BC = torch.where(self.is_background(entries_BCW), _BACKGROUND_WEIGHT, 1.0)
        wrong_BC4 = -self.digit_logprobs(eyes, features_BCE, labels)[0]
        wrong_BC = (wrong_BC4 * wrong_BC4.new_tensor(_DIGIT_WEIGHTS)).sum(-1)
        norm = (features_BCE.float().norm(dim=-1) / self._norm - 1).square().mean()
        words = (words_BC * weight_BC).sum() / weight_BC.sum()
        return words, (wrong_BC * has_thing_BC).sum() / has_thing_BC.sum().clamp(min=1), norm

    def digit_logprobs(
        self, eyes: Eyes, features_BCE: torch.Tensor, labels: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, C, 4] log-probs of the first two digits of x and of y, in this order, and whether each is the likeliest."""
        # As digits, not as numbers: what the language model takes from here are classes for the digits that it says.
        hundredths_BC2 = (100 * labels[2]).long().clamp(0, 99)
        digits_BC4 = torch.stack([hundredths_BC2 // 10, hundredths_BC2 % 10], dim=-1).flatten(-2)
        logprobs_BC4D = eyes.place(features_BCE.float()).unflatten(-1, (4, 10)).log_softmax(-1)
        return logprobs_BC4D.gather(-1, digits_BC4[..., None])[..., 0], logprobs_BC4D.argmax(-1) == digits_BC4


def train_tower(
    eyes: Eyes,
    schedule: Schedule,
    *,
    embeddings: torch.Tensor,
    vocabulary: Vocabulary,
    source: Source,
    held_out: Source,
    loose_share: float,
    say: Say,
    file: Path,
) -> None:
    """The first stage, in place. ``held_out``: on whose pages it is measured. ``loose_share``: part of the steps after which
    words lie anywhere. ``file``: of the stage's `Progress`."""
    loss_of = DenseLoss(embeddings, vocabulary, device=schedule.device)
    shown = LabelledPages(held_out, vocabulary, batch=80)(random.Random(HELD_OUT_SEED), 0)
    eyes.to(schedule.device).train()
    optimizer = make_optimizer([(eyes, schedule.lr)])
    progress = Progress(file, eyes.state_dict())
    first = progress.restore(optimizer)
    make = LabelledPages(source, vocabulary, schedule.batch, loose_after=round(loose_share * schedule.steps))
    batches = Batches(make, seed=schedule.seed, first=first).drawn_aside(schedule.device)
    began = time.monotonic()
    for step in range(first, schedule.steps):
        set_lr(optimizer, schedule.share(step))
        images, *labels = (tensor.to(schedule.device) for tensor in next(batches))
        with torch.autocast(schedule.device, torch.bfloat16):
            features_BCE = eyes(images)
        words, place, norm = loss_of(eyes, features_BCE, labels)
        optimizer.zero_grad()
        (words + place + 0.05 * norm).backward()
        torch.nn.utils.clip_grad_norm_(eyes.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % SAY_STEPS == 0 or step + 1 == schedule.steps:
            found = measured(eyes, loss_of, shown, schedule.device)
            say(f"{schedule.progress(step, first, began)}: loss {float(words):.2f}, held out: {found}")
            progress.keep(optimizer, step + 1)


@torch.no_grad()
def measured(eyes: Eyes, loss_of: DenseLoss, held_out: list[torch.Tensor], device: str) -> str:
    """Shares of the cells of held-out pages whose most likely word is right, and of the first two digits of x and y."""
    eyes.eval()
    right = things = right_empty = empty = 0
    digits = []
    for begin in range(0, len(held_out[0]), 20):
        images, *labels = (tensor[begin : begin + 20].to(device) for tensor in held_out)
        with torch.autocast(device, torch.bfloat16):
            features_BCE = eyes(images)
        is_empty_BC = loss_of.is_background(labels[0])
        best_BC = loss_of.logits(features_BCE).argmax(-1)
        is_right_BC = ((labels[0] == best_BC[..., None]) & (labels[1] > 0.03)).any(-1)
        right, things = right + int((is_right_BC & ~is_empty_BC).sum()), things + int((~is_empty_BC).sum())
        right_empty, empty = right_empty + int((is_right_BC & is_empty_BC).sum()), empty + int(is_empty_BC.sum())
        of_things_N4 = loss_of.digit_logprobs(eyes, features_BCE, labels)[1][labels[3]].float()
        digits.append(of_things_N4.mean(0).tolist())
    eyes.train()
    shares = " ".join(f"{share:.2f}" for share in np.mean(digits, axis=0))
    return f"words {right / things:.3f}, empty {right_empty / empty:.3f}, digits of places {shares}"


def make_optimizer(parts: list[tuple[torch.nn.Module, float]]) -> torch.optim.Optimizer:
    """AdamW with a peak learning rate for each part."""
    groups = []
    for module, lr in parts:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        groups.append({"params": [p for p in trained if p.ndim > 1], "lr": lr, "peak": lr, "weight_decay": 0.05})
        groups.append({"params": [p for p in trained if p.ndim <= 1], "lr": lr, "peak": lr, "weight_decay": 0.0})
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def set_lr(optimizer: torch.optim.Optimizer, share: float) -> None:
    """``share`` of each group's peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
