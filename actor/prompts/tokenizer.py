"""The tokenizer of a Hugging Face model folder. Mistakes in its files are problems of the configuration.

Ids are those of transformers; a file that stands alone is read without it, since its import takes 5 s. Prompts, budgets and
formats are those of `actor.prompts.builder`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from computerrl.actor.prompts.chat_template import ChatTemplate, Turn
from computerrl.actor.prompts.formats.base import ChatMessage
from computerrl.actor.prompts.formats.completions import is_thought_tag
from computerrl.actor.prompts.texts import Texts, unknown_token
from computerrl.common import log
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.models.folder import image_token_id, named_end_tokens, pointer_problems, vocabulary_size


class Tokenizer(Protocol):
    """Encoding and decoding of prompts and completions."""

    start_tokens: tuple[int, ...]
    """Tokens at the start of every text without chat template, by the model's files."""
    stop_tokens: frozenset[int]
    """Tokens that end a turn or a text, by the model's files."""
    num_rows: int | None
    """Number of tokens that the model knows; None: its files do not state it."""
    image_token: str | None
    """Text of the token that stands for a piece of an image; None: the model takes text alone."""

    def line_ends(self, after: str) -> frozenset[int]:
        """Tokens that hold both ``after`` and a line break, perhaps with text before or blanks behind."""

    def encode_text(self, text: str, *, after: str = "") -> list[int]:
        """Token ids of ``text``, which goes on after ``after``. No part of it becomes one of the model's special tokens."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``."""

    def encode_chat(self, messages: Sequence[ChatMessage], *, image_texts: Sequence[str] = ()) -> list[int]:
        """The conversation and the start of the assistant's next turn, by the model's chat template.

        ``image_texts``: text of the tokens of each image of ``messages``, in their order."""

    def harmless(self, message: ChatMessage) -> ChatMessage:
        """``message`` without names of the model's special tokens, as `encode_chat` writes it."""

    def encode_image(self, text: str) -> list[int]:
        """Token ids of an image, ``text`` as in `encode_chat`."""

    def encode_completion(self, completion: str) -> list[int]:
        """``completion`` as the chat template writes it after a prompt of `encode_chat`, with `end_of_turn`."""

    def opening(self) -> str:
        """Begin of a thought that the template writes before a completion; mostly empty."""

    def end_of_turn(self) -> int | None:
        """Token that ends an assistant's turn; None where the folder names none."""

    def template_ends(self) -> frozenset[int]:
        """Ends of a turn for prompts without the template: a model may end its completion with them all the same."""


class AddedTokens:
    """Tokens that a tokenizer's files add to the pieces of texts: special tokens, and names such as those of thoughts."""

    def __init__(self, backend: Any, *, num_rows: int | None) -> None:
        """``num_rows``: number of tokens that the model knows; None: unknown."""
        added = backend.get_added_tokens_decoder().items()
        self._num_rows = num_rows
        self.texts: dict[int, str] = {int(token): one.content for token, one in added}
        """Text of every added token."""
        self.special = frozenset(int(token) for token, one in added if one.special)
        self.unknown = frozenset(token for token in self.texts if not self.is_known(token))
        """Tokens beyond those that the model knows."""
        tags = ((token, text) for token, text in self.texts.items() if is_thought_tag(text))
        self.thought_tags = {token: text for token, text in tags if token not in self.unknown}
        """Begin and end of a thought, where they are tokens."""

    def is_known(self, token: int) -> bool:
        """Whether the model has a row for ``token``."""
        return self._num_rows is None or token < self._num_rows

    def named_in(self, text: str) -> frozenset[int]:
        """Tokens whose texts occur in ``text``: a template's tokens need not be special."""
        return frozenset(token for token, name in self.texts.items() if name in text)


class FolderTokenizer:
    """A `Tokenizer`; safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError`."""
        self._folder = folder
        self._whole: Any = None
        """Transformers' tokenizer: for chat templates, and for folders whose tokenizer.json does not stand alone."""
        pointers = [Problem("model.name", reason, step) for reason, step in pointer_problems(folder)]
        if pointers:
            raise ConfigError(pointers)
        try:
            self._backend, end = _read_plain(folder) or self._read_whole()
            _undo_settings_of_training(self._backend)
            self.start_tokens = _start_tokens(self._backend, folder)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (tokenizers raises nothing narrower for a file that it cannot read)
            raise _unreadable(folder, error) from None
        named = named_end_tokens(folder)
        ends = [int(end), *named] if end is not None else named
        self.eos_token = ends[0] if ends else None
        """Token that ends a text; None where no file names one."""
        self.num_rows = vocabulary_size(folder)
        self.stop_tokens = frozenset(ends)
        self._added = AddedTokens(self._backend, num_rows=self.num_rows)
        image_token = image_token_id(folder)
        self.image_token = None if image_token is None else self._backend.id_to_token(image_token)
        self._check_pieces()

    def _check_pieces(self) -> None:
        """Added tokens beyond the model's are never written; pieces of texts cannot be left out."""
        largest = max(self._backend.get_vocab(with_added_tokens=False).values(), default=0)
        if not self._added.is_known(largest):
            known = f"but the model knows {self.num_rows} tokens"
            reason = f"the tokenizer in {self._folder} gives texts tokens up to {largest}, {known}"
            raise ConfigError([Problem("model.name", reason, "use the model's own tokenizer")])

    def _read_whole(self) -> tuple[Any, int | None]:
        self._whole = _whole_tokenizer(self._folder)
        backend = getattr(self._whole, "backend_tokenizer", None)
        if backend is None:
            reason = f"the tokenizer in {self._folder} has no fast form (tokenizer.json)"
            raise ConfigError([Problem("model.name", reason, "save it with AutoTokenizer(use_fast=True).save_pretrained()")])
        return backend, self._whole.eos_token_id

    # The Rust object itself: thread-safe as long as nobody changes its truncation, and ten times quicker to call.
    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` alone; names of special tokens in it become those tokens."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def line_ends(self, after: str) -> frozenset[int]:
        # Newlines look like this in byte-level vocabularies; what merely looks so is found out by decoding.
        vocabulary = self._backend.get_vocab().items()
        candidates = [token for piece, token in vocabulary if after in piece and ("Ċ" in piece or "\n" in piece)]
        texts = ((token, self.decode([token])) for token in candidates)
        return frozenset(token for token, text in texts if "\n" in text and text.rstrip().endswith(after))

    def encode_text(self, text: str, *, after: str = "") -> list[int]:
        return self._texts.encode(text, after=after)

    @functools.cached_property
    def _texts(self) -> Texts:
        named = self._added.named_in(_template_text(self._folder) + (self.image_token or ""))
        return self._texts_without(self._added.special | self._template_ends | named)

    def _texts_without(self, tokens: Iterable[int]) -> Texts:
        """Texts that give neither ``tokens`` nor those that end sampling, nor any that the model lacks; tags of thoughts, which
        completions hold, and the token of unknown characters are allowed."""
        own = self.stop_tokens | self._added.unknown | (frozenset(tokens) - {unknown_token(self._backend)})
        return Texts(self._backend, own & self._added.texts.keys() - self._added.thought_tags.keys())

    def decode(self, tokens: Sequence[int], *, has_special: bool = False) -> str:
        """Text of ``tokens``; ``has_special``: with the texts of special tokens."""
        if has_special:
            return str(self._backend.decode(list(tokens), skip_special_tokens=False))
        tags = self._added.thought_tags
        if not tags or tags.keys().isdisjoint(tokens):
            return str(self._backend.decode(list(tokens), skip_special_tokens=True))
        # Some models have special tokens for thoughts, and where a thought ends is part of what is said.
        parts: list[str] = []
        begin = 0
        for place, token in enumerate([*tokens, None]):
            if token is None or token in tags:
                parts.append(str(self._backend.decode(list(tokens[begin:place]), skip_special_tokens=True)))
                parts.append("" if token is None else tags[token])
                begin = place + 1
        return "".join(parts)

    # --- chat ---------------------------------------------------------------------------------------------------------

    def encode_chat(self, messages: Sequence[ChatMessage], *, image_texts: Sequence[str] = ()) -> list[int]:
        text = self._template.prompt([self.harmless(message) for message in messages])
        if image_texts:
            assert self.image_token is not None
            first, *rest = text.split(self.image_token)
            text = first + "".join(image + after for image, after in zip(image_texts, rest, strict=True))
        return self.encode(text)

    def encode_image(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_completion(self, completion: str) -> list[int]:
        said, end = self._template.completion(completion), self.end_of_turn()
        if end is not None and end in self._added.texts:
            # A template may write a blank before the end.
            before, written, _ = self._template.after_completion.partition(self._added.texts[end])
            said += before if written else ""
        tokens = self._texts_in_chats.encode(said, after=self._template.prompt([ChatMessage("user", "question")]))
        return tokens if end is None else [*tokens, end]

    def opening(self) -> str:
        return self._template.opening

    def end_of_turn(self) -> int | None:
        return self._end_of_turn

    def template_ends(self) -> frozenset[int]:
        return self._template_ends

    @functools.cached_property
    def _template_ends(self) -> frozenset[int]:
        text, settings = _template_text(self._folder), _settings(self._folder)
        known = {self._added.texts[token] for token in self.stop_tokens if token in self._added.texts}
        known.add(_content(settings.get("bos_token")) or "")
        if all(added in known or added not in text for added in self._added.texts.values()):
            return frozenset()  # This is the usual case, and transformers need not be imported.
        try:
            end = self._end_of_turn
        except ConfigError as error:
            log.get_logger().warning("template.unreadable", model=str(self._folder), reason=str(error)[:300], used=False)
            return frozenset()
        return frozenset() if end is None else frozenset({end})

    @functools.cached_property
    def _end_of_turn(self) -> int | None:
        """The first token that the template writes after a completion; where it writes none, the one that begins the next turn if
        the folder names it as an end; else the end of a text."""
        known = self._added.texts.keys() | self.stop_tokens
        written = next((token for token in self.encode(self._template.after_completion) if token in known), None)
        if written is not None:
            return written
        return next((token for token in self.encode(self._template.next_turn) if token in self.stop_tokens), self.eos_token)

    @functools.cached_property
    def _texts_in_chats(self) -> Texts:
        """As `_texts`, without all that the template writes."""
        return self._texts_without(self._added.special | self._added.named_in(self._template.example + (self.image_token or "")))

    @functools.cached_property
    def _template(self) -> ChatTemplate:
        """Raises `ConfigError`."""
        try:
            whole = self._whole = self._whole or _whole_tokenizer(self._folder)
            template = whole.chat_template or _processor_template(self._folder)
        except Exception as error:  # noqa: BLE001  (as in the constructor)
            raise _unreadable(self._folder, error) from None
        if template is None:
            step = "use a model with a chat template, or actor.prompt.format: compact with chat_template: false"
            raise ConfigError([Problem("actor.prompt", f"the tokenizer in {self._folder} has no chat template", step)])
        if isinstance(template, dict):
            template = template.get("default") or next(iter(template.values()))

        def render(turns: Sequence[Turn], begins_completion: bool) -> str:
            return str(
                whole.apply_chat_template(
                    list(turns), chat_template=template, add_generation_prompt=begins_completion, tokenize=False
                )
            )

        return ChatTemplate(render, source=str(self._folder), image_token=self.image_token)

    def harmless(self, message: ChatMessage) -> ChatMessage:
        # Text on a screen must not end its turn.
        return replace(message, text=self._texts_in_chats.harmless(message.text))


def _undo_settings_of_training(backend: Any) -> None:
    """Fine-tuning leaves what it sets in the files: none of it belongs to a prompt."""
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = False
    if getattr(backend.model, "dropout", None) is not None:
        backend.model.dropout = None


def _start_tokens(backend: Any, folder: Path) -> tuple[int, ...]:
    """The tokens that the tokenizer puts before a text, or that its settings ask for."""
    encoded = backend.encode("x", add_special_tokens=True)
    first = next((place for place, sequence in enumerate(encoded.sequence_ids) if sequence is not None), 0)
    settings = _settings(folder)
    start = backend.token_to_id(_content(settings.get("bos_token")) or "")
    if first == 0 and settings.get("add_bos_token") is True and start is not None:
        return (start,)
    return tuple(encoded.ids[:first])


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _content(token: Any) -> str | None:
    """The text of a token as settings name it."""
    return token["content"] if isinstance(token, dict) else token


def _unreadable(folder: Path, error: Exception) -> ConfigError:
    reason = f"the tokenizer in {folder} cannot be read: {str(error)[:300] or type(error).__name__}"
    return ConfigError([Problem("model.name", reason, "copy the model folder again, or save the tokenizer anew")])


_AS_IT_STANDS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of transformers that take tokenizer.json as it stands; others build parts of the tokenizer anew."""
_CHANGES_THE_FILE = ("extra_special_tokens", "auto_map")


def _read_plain(folder: Path) -> tuple[Any, int] | None:
    """tokenizer.json without transformers, and the end-of-text token; None when transformers has to read it."""
    files = (folder / "tokenizer_config.json", folder / "tokenizer.json")
    if not all(file.is_file() for file in files):
        return None
    settings = _settings(folder)
    if settings.get("tokenizer_class") not in _AS_IT_STANDS or any(settings.get(name) for name in _CHANGES_THE_FILE):
        return None
    from tokenizers import Tokenizer as FastTokenizer

    backend = FastTokenizer.from_file(str(files[1]))
    named = [settings.get(f"{name}_token") for name in ("eos", "bos", "pad", "unk", "sep", "cls", "mask")]
    texts = [_content(token) for token in named]
    tokens: list[Any] = [backend.token_to_id(text) for text in texts if text is not None]
    # Tokens that only the settings name get their numbers from transformers.
    return None if texts[0] is None or None in tokens else (backend, tokens[0])


def _whole_tokenizer(folder: Path) -> Any:
    import transformers

    settings = _settings(folder)
    stands = settings.get("auto_map") or settings.get("tokenizer_class") in _AS_IT_STANDS
    if stands and (folder / "tokenizer.json").is_file():
        # Code in the folder is never run: the file that it would read is enough. Choosing a class imports torch, which takes 4 s.
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _template_text(folder: Path) -> str:
    """All chat templates of the folder as one text; empty where there is none."""
    file = folder / "chat_template.jinja"
    inside = _settings(folder).get("chat_template")
    texts = [one.get("template") for one in inside if isinstance(one, dict)] if isinstance(inside, list) else [inside]
    if file.is_file():
        texts.append(file.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(text for text in texts if isinstance(text, str))


def _processor_template(folder: Path) -> str | None:
    """The template that older processors of pictures keep beside the tokenizer."""
    file = folder / "chat_template.json"
    template = json.loads(file.read_text(encoding="utf-8")).get("chat_template") if file.is_file() else None
    return template if isinstance(template, str) else None
