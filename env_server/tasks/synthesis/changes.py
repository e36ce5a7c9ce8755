"""One change between two states of an application, and the failure to say one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from computerrl.env_server.tasks.forge.facts import Facts, same


class UnsaidError(ValueError):
    """A difference that no instruction of the grammar describes; the message is its reason in a few words."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that an instruction asks for, whatever number of facts it consists of."""

    kind: str
    """Key of `wording.WORDS`."""
    values: tuple[tuple[str, str], ...]
    """Names and values of the fields that the words of this kind take."""

    def as_dict(self) -> dict[str, str]:
        """The fields by name."""
        return dict(self.values)


def change(kind: str, **values: object) -> Change:
    """A change by its kind and fields."""
    return Change(kind, tuple((name, str(value)) for name, value in sorted(values.items())))


class Differing:
    """Facts that differ between two states. Each has to be taken by a change; what is left has no words."""

    def __init__(self, before: Facts, after: Facts) -> None:
        self.before, self.after = before, after
        self._left = {name for name in {*before, *after} if not same(before.get(name), after.get(name))}

    def names(self) -> list[str]:
        """Names of the facts that differ and that no change has taken, sorted."""
        return sorted(self._left)

    def take(self, names: Iterable[str]) -> None:
        """Take facts: a change says them."""
        self._left.difference_update(names)

    def require_none(self) -> None:
        """Raises `UnsaidError` where facts are left."""
        if self._left:
            raise UnsaidError(f"no words for the fact {_kind_of(min(self._left))!r}")


def _kind_of(name: str) -> str:
    """A fact's name without what is particular to one document: numbers, cells and sheets."""
    words = name.partition("!")[2].split()[1:] or ["cell"] if "!" in name else name.split()
    return " ".join(word for word in words if not any(char.isdigit() for char in word))


def listed(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def quoted(text: object) -> str:
    """A text in double quotes as an instruction shows it. Raises `UnsaidError` for an empty or long one, or several lines."""
    shown = str(text)
    if not shown.strip() or not shown.isprintable() or '"' in shown or len(shown) > _MAX_QUOTED_CHARS:
        raise UnsaidError("a text that cannot be quoted")
    return f'"{shown}"'


_MAX_QUOTED_CHARS = 160


def colour(code: str, names: Mapping[str, str]) -> str:
    """A colour (`RRGGBB`) as an instruction names it: with its name where it has one, always with its code."""
    name = next((name for name, known in names.items() if known == code), "")
    return f"{name} (#{code})" if name else f"#{code}"
