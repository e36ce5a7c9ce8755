"""Metrics over Thunderbird's profile: preferences, message filters, mail folders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import load, read_lines
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import matches
from computerrl.env_server.tasks.reading.limits import MAX_TEXT_BYTES, within
from computerrl.env_server.tasks.reading.texts import json_of

_KEY = re.compile(r'user_pref\("((?:[^"\\]|\\.)+)",')


def _preference(line: str) -> tuple[str, str] | None:
    """Key and value of a line ``user_pref("key", value);``."""
    line = line.strip()
    match = _KEY.match(line)
    value = line[match.end() :].strip() if match else ""
    return (match[1], value[:-2]) if match and value.endswith(");") else None


def check_thunderbird_prefs(result: str, rules: Rules) -> float:
    """The preferences meet every rule of ``expect`` (a key that is not there fails it) and none of ``unexpect``."""
    found: dict[str, Any] = {}
    for line in read_lines(result):
        preference = _preference(line)
        if preference is None:
            continue
        key, value = preference
        try:
            found[key] = json_of(value)
        except ValueError:
            found[key] = value
    expected = all(key in found and matches(found[key], rule) for key, rule in rules.get("expect", {}).items())
    unexpected = any(key in found and matches(found[key], rule) for key, rule in rules.get("unexpect", {}).items())
    return score(expected and not unexpected)


_CONDITION = re.compile(r"AND \(|OR \(|ALL")
_INSIDE = re.compile(r'(?:[^()"]++|"[^"]*+")*+')


def _conditions(text: str) -> list[str]:
    """The conditions of a filter, ``AND (subject,contains,"a (b)")`` or ``ALL``. Each letter is looked at once."""
    found = []
    start = _CONDITION.search(text)
    while start is not None:
        end = start.end()
        if start[0] == "ALL":
            found.append("ALL")
        else:
            inside = _INSIDE.match(text, end)
            end = inside.end() if inside else end
            if text[end : end + 1] == ")":
                end += 1
                found.append(text[start.start() : end])
        start = _CONDITION.search(text, end)
    return found


def check_thunderbird_filter(result: str, rules: Rules) -> float:
    """A message filter of ``msgFilterRules.dat`` has all expected fields (conditions in any order), none the unexpected."""
    filters: list[dict[str, Any]] = []
    for line in read_lines(result):
        key, separator, value = line.partition("=")
        if not separator:
            continue
        value = value.strip().removeprefix('"').removesuffix('"').replace('\\"', '"')
        if key == "name":
            filters.append({})
        if filters:
            _add(filters[-1], key, _conditions(value) if key == "condition" else value)

    def found(wanted: Mapping[str, Any]) -> bool:
        return any(all(_same_field(entry.get(key), value) for key, value in wanted.items()) for entry in filters)

    return score(all(map(found, rules.get("expect", []))) and not any(map(found, rules.get("unexpect", []))))


def _add(fields: dict[str, Any], key: str, value: Any) -> None:
    """A filter with several actions has the key several times."""
    before = fields.get(key)
    if isinstance(before, list) and isinstance(value, str):
        before.append(value)
    else:
        fields[key] = value if before is None or isinstance(value, list) else [before, value]


def _same_field(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return sorted(found if isinstance(found, list) else [found], key=str) == sorted(wanted, key=str)
    return bool(found == wanted)


_DELETED = 0x0008
"""Bit of X-Mozilla-Status: the mail is deleted, though still in the file."""


def check_thunderbird_folder(
    result: str | Sequence[str],
    expected: str | Sequence[str],
    *,
    ignore_status: bool = False,
    ignore_keys: bool = False,
    remove_deleted: bool = True,
    remove_duplicate: bool = True,
) -> float:
    """Two mail folders (mbox files, or several as one) hold the same mails in any order."""
    found, wanted = [
        Counter(
            mail
            for path in ([side] if isinstance(side, str) else side)
            for mail in _mails(path, ignore_status=ignore_status, ignore_keys=ignore_keys, remove_deleted=remove_deleted)
        )
        for side in (result, expected)
    ]
    return score(set(found) == set(wanted) if remove_duplicate else found == wanted)


def _mails(path: str, *, ignore_status: bool, ignore_keys: bool, remove_deleted: bool) -> list[str]:
    import mailbox
    from email.parser import HeaderParser

    left_out = {"x-mozilla-status", "x-mozilla-status2"} if ignore_status else set()
    if ignore_keys:
        left_out.add("x-mozilla-keys")

    def parse(place: Any) -> list[str]:
        within("bytes of mail", place.stat().st_size, MAX_TEXT_BYTES)
        if b"\0" in place.read_bytes()[:1000]:
            raise ValueError("no mail folder")
        mails = []
        box = mailbox.mbox(place, create=False)
        for key in box.iterkeys():
            # Latin-1 has a letter for each byte. Parts of a mail are compared as they are written.
            head, _, body = box.get_bytes(key).decode("latin-1").partition("\n\n")
            mail = HeaderParser().parsestr(head)
            status = int(mail.get("X-Mozilla-Status", "0") or "0", 16)
            if not (remove_deleted and status & _DELETED):
                headers = [f"{name}: {value}".strip() for name, value in mail.items() if name.lower() not in left_out]
                mails.append("\n".join(headers) + "\n\n" + body.strip())
        return mails

    return load(path, parse)
