"""docs/reference/protocol.md says what the code does: every message, field, limit, request, reply and error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from computerrl.common.errors import error_classes
from computerrl.common.messages import SCHEMA_VERSION, SIZE_LIMITS, Message, ReplyMessage, RequestMessage
from tests.support import protocol_tables
from tests.support.data.broker_data import core

PATH = Path(__file__).parents[4] / "docs/reference/protocol.md"
COMMAND = "python -m pytest tests/unit/common/wire/test_protocol_document.py --regenerate-golden"
NAMES = {cls.__name__: cls for cls in get_args(Message)}
REQUESTS = {cls.__name__ for cls in get_args(RequestMessage)}
REPLIES = {cls.__name__ for cls in get_args(ReplyMessage)}


@pytest.fixture
def document() -> str:
    return PATH.read_text(encoding="utf-8")


def generated(document: str) -> str:
    return document.split(protocol_tables.BEGIN + "\n")[1].split(protocol_tables.END)[0]


def rows_of_requests(document: str) -> list[list[str]]:
    """Cells of the table of who asks what."""
    table = document.split("## Who asks what")[1].split("\n\n")[1]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_generated_section_is_what_the_code_gives(request: pytest.FixtureRequest, document: str) -> None:
    now = protocol_tables.section()
    if request.config.getoption("--regenerate-golden"):
        before, after = document.split(protocol_tables.BEGIN)[0], document.split(protocol_tables.END)[1]
        document = f"{before}{protocol_tables.BEGIN}\n{now}{protocol_tables.END}{after}"
        PATH.write_text(document, encoding="utf-8")
    assert generated(document) == now, f"docs/reference/protocol.md differs from common/messages/; run {COMMAND}"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_message_in_the_document_has_exactly_its_fields(name: str, document: str) -> None:
    (block,) = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", generated(document), re.MULTILINE | re.DOTALL)
    found = re.findall(r"^\| `(\w+)` \|", block, re.MULTILINE)
    assert found == list(NAMES[name].__struct_fields__)


def test_types_in_the_document_are_all_that_fields_name(document: str) -> None:
    types = set(re.findall(r"^\| `(\w+)` \|", generated(document).split("## Types")[1].split("## Requests")[0], re.MULTILINE))
    parts = set(re.findall(r"^### (\w+)$", generated(document), re.MULTILINE))
    fields = re.findall(r"^\| `\w+` \| `([^`]+)` \|", generated(document).split("## Requests")[1], re.MULTILINE)
    # What follows "=" is a default, what is quoted a choice.
    used = {word for field in fields for word in re.findall(r"\b[A-Z]\w+", re.sub(r"'[^']*'|=.*", "", field))}
    assert used - {"None", "Literal"} <= types | parts


@pytest.mark.parametrize("name", sorted(REQUESTS - {"Trajectory"}))
def test_requests_hold_no_number_text_or_map_without_bounds(name: str) -> None:
    # A trajectory has bounds as a whole only: it is on disk, and forgotten once it is trained.
    found = NAMES[name].__annotations__
    assert not {field for field, kind in found.items() if re.search(r"\b(str|int|dict)\b", str(kind))}


def test_schema_version_in_the_text_is_the_one_spoken(document: str) -> None:
    assert f"version {SCHEMA_VERSION}" in document.split(protocol_tables.BEGIN)[0]


def test_table_of_requests_names_every_request_once(document: str) -> None:
    named = [row[0].strip("`") for row in rows_of_requests(document)]
    assert sorted(named) == sorted(REQUESTS)
    assert not REQUESTS & REPLIES


def test_table_of_requests_names_every_reply_and_only_existing_errors(document: str) -> None:
    replies, codes = set(), set()
    for row in rows_of_requests(document):
        kinds, _, errors = row[2].partition(";")
        replies |= set(re.findall(r"`(\w+)`", kinds))
        codes |= set(re.findall(r"`(\w+)`", errors))
    assert replies == REPLIES - {"ErrorReply"}
    assert codes <= error_classes().keys()


def test_requests_to_the_broker_are_those_it_takes(document: str) -> None:
    named = {row[0].strip("`") for row in rows_of_requests(document) if row[1].endswith("broker")}
    assert named == {cls.__name__ for cls in core()._checks}


def test_error_codes_in_the_text_exist(document: str) -> None:
    table = document.split("## Errors")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    codes = {code for cell in rows for code in re.findall(r"`(\w+)`", cell)}
    assert len(codes) > 5 and codes <= error_classes().keys()


def test_sizes_are_of_messages_that_exist() -> None:
    assert SIZE_LIMITS.keys() <= NAMES.keys()
