"""The strings of configuration fields are the manual: each names its subject and stands alone."""

from __future__ import annotations

import re

import pytest
from pydantic.fields import FieldInfo

from computerrl.common.config import HostList, RunConfig, SiteProfile
from computerrl.common.config.reading import fields_below, section_in

FIELDS = {
    f"{kind.__name__}.{path}": field for kind in (RunConfig, SiteProfile, HostList) for path, field in fields_below(kind).items()
}
FRAGMENTS = ("Of", "By", "Below", "What", "Whether", "With", "The same", "As in", "None")
"""Beginnings of a string that does not name its subject."""
PERSONS = re.compile(r"\b(whoever|somebody|nobody|his|anybody)\b", re.IGNORECASE)


def faults(field: FieldInfo) -> list[str]:
    text = " ".join((field.description or "").split())
    allowed = ("Whether",) if field.annotation is bool else ()
    checks = {
        "begins with a capital letter": re.match(r"[A-Z]", text) is not None,
        "has three words or more": len(text.split()) >= 3,
        "ends with a full stop": text.endswith("."),
        "is about things": PERSONS.search(text) is None,
        "names its subject": not any(re.match(rf"{word}\b", text) for word in FRAGMENTS if word not in allowed),
        "is a whole sentence list": "..." not in text.replace("(...)", ""),
    }
    return [check for check, holds in checks.items() if not holds]


@pytest.mark.parametrize("path", FIELDS)
def test_string_of_a_field_stands_alone(path: str) -> None:
    assert faults(FIELDS[path]) == []


@pytest.mark.parametrize(
    "text", ["Of the group.", "pixels of the screen.", "Width.", "Whether it is wide or not.", "Width in pixels"]
)
def test_fragments_are_found(text: str) -> None:
    assert faults(FieldInfo(annotation=int, description=text))


@pytest.mark.parametrize(
    "path", [path for path, field in FIELDS.items() if type(None) in getattr(field.annotation, "__args__", ())]
)
def test_string_of_a_field_that_may_be_none_says_what_none_does(path: str) -> None:
    field = FIELDS[path]
    assert "None:" in (field.description or "")
    assert section_in(field.annotation) is None or field.default is None
