"""Texts of others as tokens: whatever stands on a screen, in an instruction or in an answer, none of it becomes one of the tokens
with which a model's own conversations are built.

Told from the tokens that a text gives, never from the text: a tokenizer may fold letters, widths or invisible characters before
it looks for its special tokens, and a vocabulary may hold their names as ordinary pieces.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

_UNLIKELY = -1e6
"""Score of a piece that is never chosen where the text has others."""


class Texts:
    """Safe to share between threads."""

    def __init__(self, backend: Any, own: frozenset[int]) -> None:
        """``own``: added tokens of ``backend`` that no text gives. Those of one character are left out: a newline may be one."""
        self._backend = backend
        self._own = frozenset(token for token in own if len(backend.id_to_token(token)) > 1)

    def encode(self, text: str, *, after: str = "") -> list[int]:
        """Ids of ``text`` as it goes on after ``after``. Names of own tokens are spelled out; where the vocabulary has no other
        way to write them, there is a blank inside."""
        tokens = _ids(self._backend, text)
        if self._own.isdisjoint(tokens):
            return _continued(functools.partial(_ids, self._backend), after, text) if after else tokens
        spelled = _continued(functools.partial(_ids, self._spelling), after, text)
        if self._own.isdisjoint(spelled):
            return spelled
        return _continued(functools.partial(_ids, self._backend), after, self.harmless(text))

    def harmless(self, text: str) -> str:
        """``text`` for a place where own tokens are meant as such: `<|im_end|>` is written with a blank inside."""
        for change in (_with_blank, _with_blank, _without):
            found = self._backend.encode(text, add_special_tokens=False)
            places = [place for token, place in zip(found.ids, found.offsets, strict=True) if token in self._own]
            for begin, end in reversed(places):
                text = text[:begin] + change(text[begin:end]) + text[end:]
            if not places:
                break
        return text

    @functools.cached_property
    def _spelling(self) -> Any:
        """The tokenizer for texts that name own tokens."""
        tree = json.loads(self._backend.to_str())
        for token in tree["added_tokens"]:
            token["special"] = token["id"] in self._own
        if isinstance(tree["model"].get("vocab"), list):  # Of pieces and scores, from which a text's likeliest ones are taken.
            for number in self._own & set(range(len(tree["model"]["vocab"]))):
                tree["model"]["vocab"][number][1] = _UNLIKELY
        backend = type(self._backend).from_str(json.dumps(tree))
        backend.encode_special_tokens = True
        return backend


def unknown_token(backend: Any) -> int | None:
    """The token that ``backend`` gives for what its vocabulary cannot write; None where it has none."""
    model = json.loads(backend.to_str())["model"]
    return model.get("unk_id") if model.get("unk_token") is None else backend.token_to_id(model["unk_token"])


def _ids(backend: Any, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


def _continued(encode: Callable[[str], list[int]], before: str, text: str) -> list[int]:
    """Ids of ``text`` as it goes on after ``before``: tokenizers of some families begin each text with a blank of their own."""
    if not before:
        return encode(text)
    head, both = encode(before), encode(before + text)
    return both[len(head) :] if both[: len(head)] == head else encode(text)


def _with_blank(name: str) -> str:
    """``name`` with a blank after its first character; blanks before it may belong to the token."""
    first = len(name) - len(name.lstrip()) + 1
    return f"{name[:first]} {name[first:]}"


def _without(_name: str) -> str:
    return ""
