"""Metrics over Thunderbird's profile: preferences, message filters, mail folders."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from env_server.tasks.osworld.metrics.files import load, read_lines
from env_server.tasks.osworld.metrics.general import Rules, score
from env_server.tasks.osworld.metrics.matching import matches

_PREFERENCE = re.compile(r'^user_pref\("(?P<key>(?:[^"\\]|\\.)+)",\s*(?P<value>.+)\);\s*$')


def check_thunderbird_prefs(result: str, rules: Rules) -> float:
    """The preferences meet every rule of ``expect`` (a key that is not there fails it) and none of ``unexpect``."""
    found: dict[str, Any] = {}
    for line in read_lines(result):
        preference = _PREFERENCE.match(line)
        if preference is None:
            continue
        try:
            found[preference["key"]] = json.loads(preference["value"])
        except json.JSONDecodeError:
            found[preference["key"]] = preference["value"]
    expected = all(key in found and matches(found[key], rule) for key, rule in rules.get("expect", {}).items())
    unexpected = any(key in found and matches(found[key], rule) for key, rule in rules.get("unexpect", {}).items())
    return score(expected and not unexpected)


_CONDITION = re.compile(r"(?:AND|OR) \((?:[^()\"]|\"[^\"]*\")*\)|ALL")


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
            filters[-1][key] = _CONDITION.findall(value) if key == "condition" else _added(filters[-1].get(key), value)

    def found(wanted: Mapping[str, Any]) -> bool:
        return any(all(_same_field(entry.get(key), value) for key, value in wanted.items()) for entry in filters)

    return score(all(map(found, rules.get("expect", []))) and not any(map(found, rules.get("unexpect", []))))


def _added(before: Any, value: str) -> Any:
    """A filter with several actions has the key several times."""
    if before is None:
        return value
    return [*before, value] if isinstance(before, list) else [before, value]


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

    left_out = {"x-mozilla-status", "x-mozilla-status2"} if ignore_status else set()
    if ignore_keys:
        left_out.add("x-mozilla-keys")

    def parse(place: Any) -> list[str]:
        if b"\0" in place.read_bytes()[:1000]:
            raise ValueError("no mail folder")
        mails = []
        for mail in mailbox.mbox(place, create=False):
            status = int(mail.get("X-Mozilla-Status", "0") or "0", 16)
            if not (remove_deleted and status & _DELETED):
                headers = [f"{name}: {value}".strip() for name, value in mail.items() if name.lower() not in left_out]
                body = mail.as_string().partition("\n\n")[2]
                mails.append("\n".join(headers) + "\n\n" + body.strip())
        return mails

    return load(path, parse)
