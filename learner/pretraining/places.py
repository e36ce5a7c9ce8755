"""The second stage: the language model learns to say where a named thing lies, by low-rank changes of its attention (LoRA).

The questions about one page see the page's tokens and their own, so that a page is computed once:

    [image] Task: Find "Submit".  Action: click(412, 230)
            Task: Find the red box.  Action: click(071, 655)

Some heads of attention are taught where to look, as GUI-Actor teaches its own head (arXiv 2506.03143, section 3.2): early ones,
from the words that name a thing to the thing, which is a small step from looking at earlier tokens of the same word; later ones,
while a coordinate is said. They are those that look there most from the start. Answers alone had not begun to form such heads
after 1,700 questions.

Tower and connector may be trained further. They need not be: as the first stage names things by word embeddings, what is learned
here also serves eyes that have meanwhile learned to read more words. Coordinates as in the prompt format compact_vision.

Shape legend: B pages of a batch, P tokens of a page's image, C cells among them, Q questions of all pages, L tokens of the
longest question, N = B P + Q L tokens, H heads of attention, G heads of keys and values, R = H / G heads that share one,
T = P + L, D head size, E hidden size.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

RANKS = {"q_proj": 32, "k_proj": 32, "v_proj": 20, "o_proj": 20}
"""Maps of attention -> rank of their change: enough for a thousand words, and for ten digits of x and of y."""
_ASKS = ("Find {}.", "Point at {}.", "Where is {}?")
_BEGINNING = [AROUND_IMAGE, WHOLE_IMAGE, *[IMAGE_TOKEN] * CELLS**2, AROUND_IMAGE]
"""Tokens of the image."""
_CELLS_AT = slice(2, 2 + CELLS**2)
"""The cells among them."""
_NEWLINE = "\n"
_DIGIT_WEIGHTS = (1.0, 0.6, 0.15)
"""What the loss of a coordinate's digits counts: an element is seldom smaller than a hundredth of the screen."""
_OTHER_WEIGHT = 0.1
_MAX_ANSWER = 12
_NUM_GUIDED = 4
"""Heads of attention of each kind that are taught where to look."""
_NAMING_LAYERS, _PLACING_LAYERS = slice(1, 11), slice(11, -5)
"""Where they are. Behind the last, too few layers are left to say what was seen."""
_GUIDE_WEIGHT = 0.5
_LEAST_SHARE = 1e-8
"""Of attention, for logarithms."""
_LOOK_UP_SCALE = 2.5
"""Of queries and keys of `Reader.look_up_words`. With a larger one tokens look at themselves alone, and cannot unlearn it."""
_OWN_TEXT_SCALE = 0.2
_MIN_NORM_WEIGHT = 3e-3
_ATTENTION = "computerrl_pages_and_questions"


@dataclass(frozen=True, slots=True)
class Question:
    """One thing of a page."""

    ask: list[int]
    """Tokens up to the answer."""
    name: slice
    """Tokens of ``ask`` that name the thing."""
    answer: list[int]
    weights: list[float]
    """Of the answer's tokens in the loss."""
    item: Item


@dataclass(frozen=True, slots=True)
class Batch:
    """Pages and their questions."""

    images: torch.Tensor
    """[B, 3, SIDE, SIDE]."""
    page_Q: torch.Tensor
    """The page of each question."""
    tokens_QL: torch.Tensor
    targets_QL: torch.Tensor
    """The token to say next; -1: none."""
    weights_QL: torch.Tensor
    names_QL: torch.Tensor
    """Bool: tokens that name the thing."""
    cells_QC: torch.Tensor
    """Bool: the cells in which the thing lies."""

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
        before, after = rng.choice(_ASKS).split("{}")
        ask = self._encode(f"{_NEWLINE}Task: {before}{name}{after}{_NEWLINE}Action:")
        # The blank before a word belongs to its token.
        begin, behind = (len(self._encode(text)) for text in (f"{_NEWLINE}Task: {before.rstrip()}", f"{_NEWLINE}Action:"))
        return Question(ask, slice(begin, len(ask) - behind), answer, weights, item)


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
    asked = [(number, question) for number, (_, questions) in enumerate(pages) for question in questions]
    shape = (len(asked), max(len(question.ask) + len(question.answer) - 1 for _, question in asked))
    tokens, targets = np.zeros(shape, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    weights, names = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.bool_)
    for row, (_, question) in enumerate(asked):
        said = [*question.ask, *question.answer[:-1]]
        answer = slice(len(question.ask) - 1, len(said))
        tokens[row, : len(said)] = said
        targets[row, answer], weights[row, answer] = question.answer, question.weights
        names[row, question.name] = True
    cells = np.stack([_cells_of(question.item) for _, question in asked])
    images, page_Q = np.stack([image for image, _ in pages]), np.array([page for page, _ in asked])
    return Batch(*map(torch.from_numpy, (images, page_Q, tokens, targets, weights, names, cells)))


def _cells_of(item: Item) -> np.ndarray:
    """[C] bool: the cell with the middle, and those of which the thing fills most."""
    (x, y), (left, top, right, bottom) = item.middle, item.box
    width, height = WIDTH / CELLS, HEIGHT / CELLS
    edge = np.arange(CELLS)
    across = np.clip(np.minimum((edge + 1) * width, right) - np.maximum(edge * width, left), 0, None) / width
    down = np.clip(np.minimum((edge + 1) * height, bottom) - np.maximum(edge * height, top), 0, None) / height
    cells = down[:, None] * across > 0.5
    cells[min(CELLS - 1, int(y / height)), min(CELLS - 1, int(x / width))] = True
    return cells.ravel()


@dataclass(frozen=True, slots=True)
class Layout:
    """Which of N tokens belong together, for `attend`."""

    num_pages: int
    page_Q: torch.Tensor
    length: int
    """L."""
    watched: frozenset[int]
    """Layers to keep the attention of."""
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    """Layer -> [Q, H, L, C] how much of its attention each token of a question gives to each cell."""


def attend(
    module: torch.nn.Module,
    query_1HND: torch.Tensor,
    key_1GND: torch.Tensor,
    value_1GND: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention of transformers for pages and questions beside each other; returns [1, N, H, D]. It knows its mask itself."""
    heads, groups, size = query_1HND.shape[1], key_1GND.shape[1], query_1HND.shape[-1]
    pages, questions, length, num = layout.num_pages, len(layout.page_Q), layout.length, len(_BEGINNING)
    (image_q, own_q), (image_k, own_k), (image_v, own_v) = (
        (part[0, :, : pages * num].unflatten(1, (pages, num)).transpose(0, 1), part[0, :, pages * num :])
        for part in (query_1HND, key_1GND, value_1GND)
    )
    image_BHPD = F.scaled_dot_product_attention(image_q, image_k, image_v, is_causal=True, scale=scaling, enable_gqa=True)
    own_k, own_v = (part.unflatten(1, (questions, length)).transpose(0, 1) for part in (own_k, own_v))
    key_QGTD = torch.cat([image_k[layout.page_Q], own_k], dim=2)
    value_QGTD = torch.cat([image_v[layout.page_Q], own_v], dim=2)
    own_q = own_q.view(groups, heads // groups, questions, length, size).permute(2, 0, 1, 3, 4)
    scores_QGRLT = (own_q.flatten(2, 3) @ key_QGTD.transpose(2, 3)).unflatten(2, (heads // groups, length)).float() * scaling
    is_later_LL = torch.ones(length, length, dtype=torch.bool, device=own_q.device).triu(1)
    later_LT = F.pad(is_later_LL, (num, 0))
    share_QGRLT = scores_QGRLT.masked_fill(later_LT, float("-inf")).softmax(-1)
    if getattr(module, "layer_idx", None) in layout.watched:
        layout.seen[int(module.layer_idx)] = share_QGRLT.flatten(1, 2)[..., _CELLS_AT]
    own_QHLD = (share_QGRLT.to(own_v.dtype).flatten(2, 3) @ value_QGTD).view(questions, heads, length, size)
    out_NHD = torch.cat([image_BHPD.transpose(1, 2).flatten(0, 1), own_QHLD.transpose(1, 2).flatten(0, 1)])
    return out_NHD[None], None


class Lora(torch.nn.Module):
    """A frozen linear map with a low-rank change (arXiv 2106.09685, section 4.1)."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.A = torch.nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.B = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + LORA_SCALE * ((x @ self.A.T.to(x.dtype)) @ self.B.T.to(x.dtype))


class Reader(torch.nn.Module):
    """The language model behind the eyes."""

    def __init__(self, language_model: Any, eyes: Eyes) -> None:
        import transformers

        super().__init__()
        language_model.requires_grad_(False)
        self.changes = torch.nn.ModuleDict()
        for number, layer in enumerate(language_model.model.layers):
            for name, rank in RANKS.items():
                lora = Lora(getattr(layer.self_attn, name), rank)
                setattr(layer.self_attn, name, lora)
                self.changes[f"{number}-{name}"] = lora
        self.language_model, self.eyes = language_model, eyes
        transformers.AttentionInterface.register(_ATTENTION, attend)
        language_model.config._attn_implementation = _ATTENTION

    def forward(
        self, batch: Batch, *, watched: frozenset[int] = frozenset(), num_layers: int | None = None
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """[Q, L, E] last hidden states of the questions, and `Layout.seen` of the layers ``watched``. ``num_layers``: only the
        first ones are run."""
        with torch.autocast(batch.images.device.type, torch.bfloat16):
            features_BCE = self.eyes(batch.images)
        model, (questions, length) = self.language_model.model, batch.tokens_QL.shape
        device, pages, num = batch.images.device, len(batch.images), len(_BEGINNING)
        beginning_BPE = model.embed_tokens(torch.tensor(_BEGINNING, device=device)).repeat(pages, 1, 1)
        beginning_BPE[:, _CELLS_AT] = features_BCE.to(beginning_BPE.dtype)
        hidden_1NE = torch.cat([beginning_BPE.flatten(0, 1), model.embed_tokens(batch.tokens_QL).flatten(0, 1)])[None]
        position_P, position_L = torch.arange(num, device=device), num + torch.arange(length, device=device)
        position_1N = torch.cat([position_P.repeat(pages), position_L.repeat(questions)])[None]
        rotation = model.rotary_emb(hidden_1NE, position_ids=position_1N)
        layout = Layout(pages, batch.page_Q, length, watched)
        for layer in model.layers[:num_layers]:
            hidden_1NE = layer(hidden_1NE, attention_mask=None, position_embeddings=rotation, layout=layout)
        return model.norm(hidden_1NE[0, pages * num :]).unflatten(0, (questions, length)), layout.seen

    @torch.no_grad()
    def look_up_words(self, seed: int) -> None:
        """Let the first heads of the first layer look at tokens like their own, wherever those stand: there a token still is its
        word, and a cell, by the first stage, is the words under it.

        Queries and keys become one random projection of the word. It lies in the slower half of the rotary frequencies, which
        turn little over the length of a prompt. One number of it is the mean of all words, which cells lack: it begins to keep a
        token from looking at itself."""
        config, layer = self.language_model.config, self.language_model.model.layers[0]
        size = config.hidden_size // config.num_attention_heads
        slow = torch.cat([torch.arange(size // 4, size // 2), torch.arange(3 * size // 4, size)])
        generator = torch.Generator().manual_seed(seed)
        mean_E = F.normalize(self.language_model.get_input_embeddings().weight.float().mean(0), dim=0)
        words_RE = torch.randn(len(slow), config.hidden_size, generator=generator) / config.hidden_size**0.5
        words_RE -= torch.outer(words_RE @ mean_E, mean_E)
        # The norm before it would make few numbers of a word count.
        norm_E = layer.input_layernorm.weight.float()
        undo_norm_E = norm_E.sign() / norm_E.abs().clamp(min=_MIN_NORM_WEIGHT)
        for name, num_heads, sign in (("q_proj", len(self.look_up_heads), 1), ("k_proj", 1, -1)):
            change = self.changes[f"0-{name}"]
            words_RE[-1] = sign * _OWN_TEXT_SCALE * mean_E
            change.A[: len(slow)] = words_RE * undo_norm_E
            change.B.zero_()
            for head in range(num_heads):
                change.B[head * size + slow, torch.arange(len(slow))] = _LOOK_UP_SCALE / LORA_SCALE

    @property
    def look_up_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of `look_up_words`."""
        config = self.language_model.config
        return [(0, head) for head in range(config.num_attention_heads // config.num_key_value_heads)]

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
        naming = [*reader.look_up_heads, *_looking_heads(reader, first_batches, _NAMING_LAYERS, _from_names)]
        placing = _looking_heads(reader, first_batches, _PLACING_LAYERS, _from_places)
    say(f"heads (layer, number) that are taught where to look: {sorted(naming)} from names, {sorted(placing)} for places")
    watched = frozenset(layer for layer, _ in [*naming, *placing])
    began, num_questions, shown = time.monotonic(), 0, np.zeros(3)
    for step in range(schedule.steps):
        set_lr(optimizer, schedule.share(step))
        batch = next(batches).to(schedule.device)
        hidden, seen = reader(batch, watched=watched)
        asked = batch.targets_QL >= 0
        losses = F.cross_entropy(reader.logits(hidden[asked]), batch.targets_QL[asked], reduction="none")
        weights = batch.weights_QL[asked]
        named = torch.stack([_share_at_it(seen[layer][:, head], batch, _from_names) for layer, head in naming])
        placed = torch.stack([_share_at_it(seen[layer][:, head], batch, _from_places) for layer, head in placing])
        looks = (named + _LEAST_SHARE).log().mean() + (placed + _LEAST_SHARE).log().mean()
        optimizer.zero_grad()
        ((losses * weights).sum() / weights.sum() - _GUIDE_WEIGHT * looks).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        num_questions += len(batch.page_Q)
        first = losses.detach()[weights == _DIGIT_WEIGHTS[0]].mean()
        now = np.array([float(one) for one in (first, named.detach().mean(), placed.detach().mean())])
        shown = 0.95 * shown + 0.05 * now if step else now
        if (step + 1) % (SAY_STEPS // 10) == 0 or step + 1 == schedule.steps:
            told = (
                f"loss of first digits {shown[0]:.3f}, attention on the thing {shown[1]:.2f} from its name, {shown[2]:.2f} later"
            )
            say(f"{schedule.progress(step, began)}: {num_questions} questions, {told}")
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
        at_it = torch.stack([_share_at_it(seen[0][:, head], batch, _from_names) for _, head in reader.look_up_heads])
        optimizer.zero_grad()
        (-(at_it + _LEAST_SHARE).log().mean()).backward()
        torch.nn.utils.clip_grad_norm_(changes.parameters(), 1.0)
        optimizer.step()
        shown = 0.98 * shown + 0.02 * float(at_it.detach().mean()) if step else float(at_it.detach().mean())
        if (step + 1) % SAY_STEPS == 0 or step + 1 == schedule.steps:
            say(f"look-up: {schedule.progress(step, began)}: attention on the thing {shown:.2f} from its name")


Positions = Callable[[Batch], torch.Tensor]
"""[Q, L] bool."""


def _from_names(batch: Batch) -> torch.Tensor:
    return batch.names_QL


def _from_places(batch: Batch) -> torch.Tensor:
    """Where one of the first two digits of a coordinate comes next."""
    return batch.weights_QL >= _DIGIT_WEIGHTS[1]


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
            so_far = [Question([*q.ask, *s], q.name, [0], [1.0], q.item) for q, s in zip(questions, said, strict=True)]
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
