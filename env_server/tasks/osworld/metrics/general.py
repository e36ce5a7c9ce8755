"""Metrics over texts, numbers and plain files that belong to no application."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from computerrl.env_server.tasks.osworld.metrics.files import opening, read_json, read_lines, read_table, read_text, xml_of
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, at, matches, whole_number
from computerrl.env_server.tasks.osworld.metrics.texts import decoded
from computerrl.env_server.tasks.reading.databases import first_rows
from computerrl.env_server.tasks.reading.texts import is_found, json_of, likeness, line_likeness, literal_of, yaml_of

Rules = Mapping[str, Any]


def score(success: bool) -> float:
    """1 or 0."""
    return 1.0 if success else 0.0


# --- texts and values ------------------------------------------------------------------------------------------------


def check_include_exclude(result: str, rules: Rules) -> float:
    """Every text of ``include`` is in the result and none of ``exclude``."""
    text = str(result)
    wanted, unwanted = rules.get("include", []), rules.get("exclude", [])
    return score(all(part in text for part in wanted) and not any(part in text for part in unwanted))


def exact_match(result: Any, rules: Rules) -> float:
    """The result equals ``expected``."""
    return score(result == rules["expected"])


def match_in_list(result: Any, rules: Rules) -> float:
    """The result is one of ``expected``."""
    return score(result in rules["expected"])


def is_in_list(result: Sequence[Any], rules: Rules) -> float:
    """``expected`` is one of the results."""
    return score(rules["expected"] in result)


def literal_match(result: Any, expected: Any, *, type: str = "str", ignore_case: bool = False) -> float:
    """The result equals the expected value, as text or (``type="list"``) as a list of texts."""
    wanted = expected.get("expected", expected) if isinstance(expected, Mapping) else expected
    if type == "list":
        if not isinstance(result, list) or not isinstance(wanted, list):
            return 0.0
        return score([_folded(entry, ignore_case) for entry in result] == [_folded(entry, ignore_case) for entry in wanted])
    if type != "str":
        raise BadRule(f"literal_match of type {type!r}")
    return score(_folded(result, ignore_case) == _folded(wanted, ignore_case))


def _folded(value: Any, ignore_case: bool) -> str:
    return str(value).lower() if ignore_case else str(value)


def fuzzy_match(result: str, rules: Rules) -> float:
    """How alike two texts are, 0 to 1."""
    return likeness(str(result), str(rules["expected"]))


def is_in_vm_clickboard(config: Rules, terminal_output: str) -> float:
    """Every expected text is in what the terminal gave; here the rule comes as the result and the output as the expectation."""
    wanted = config["expected"]
    return score(all(part in terminal_output for part in ([wanted] if isinstance(wanted, str) else wanted)))


def check_direct_json_object(
    result: Any, rules: Rules, *, expect_in_result: bool = False, ignore_list_order: bool = False
) -> float:
    """The keys of ``expected`` have the expected values; both switches may also stand in the rules.

    With ``expect_in_result`` an expected text is a part of the found one; of an expected list one entry equals the found text or
    is one of the found list. With ``result_not_list`` the found value is one of the expected ones. The result may also be text:
    JSON, or a Python literal as programs print it.
    """
    if isinstance(result, str):
        result = _parsed(result)
    if not isinstance(result, Mapping):
        return 0.0
    if rules.get("expect_in_result", expect_in_result) and rules.get("result_not_list"):
        return score(all(_is_one_of(result.get(key), wanted) for key, wanted in rules["expected"].items()))
    contained = bool(rules.get("expect_in_result", expect_in_result))
    unordered = bool(rules.get("ignore_list_order", ignore_list_order))
    return score(all(_agrees(result.get(key), wanted, contained, unordered) for key, wanted in rules["expected"].items()))


def _parsed(text: str) -> Any:
    for parse in (json_of, literal_of):
        try:
            return parse(text)
        except ValueError:
            continue
    return None


def _is_one_of(found: Any, wanted: Any) -> bool:
    # A text holds nothing but texts.
    return (isinstance(found, str) or not isinstance(wanted, str)) and found in wanted


def _agrees(found: Any, wanted: Any, contained: bool, unordered: bool) -> bool:
    if contained:
        if isinstance(wanted, list):
            return any(choice in found if isinstance(found, list) else choice == found for choice in wanted)
        return isinstance(wanted, str) and isinstance(found, (str, list)) and wanted in found
    if unordered and isinstance(found, list) and isinstance(wanted, list):
        return sorted(map(str, found)) == sorted(map(str, wanted))
    return bool(found == wanted)


def check_json(result: str, rules: Rules, *, is_yaml: bool = False) -> float:
    """A JSON or YAML file meets every rule of ``expect`` and none of ``unexpect``; each: key path, method, reference."""
    if is_yaml:
        with opening(result) as place:
            data = yaml_of(decoded(place.read_bytes()))
    else:
        data = read_json(result)
    expected = all(_value_matches(data, rule) for rule in rules.get("expect", []))
    return score(expected and not any(_value_matches(data, rule) for rule in rules.get("unexpect", [])))


def _value_matches(data: Any, rule: Rules) -> bool:
    keys = rule["key"] if isinstance(rule["key"], list) else [rule["key"]]
    try:
        return matches(at(data, keys), rule)
    except LookupError:
        return False


# --- plain files -----------------------------------------------------------------------------------------------------


def check_list(result: str, rules: Rules) -> float:
    """Each pattern of ``expect`` is found in some line of the file, and no line has one of ``unexpect``."""
    lines = read_lines(result)
    expected = all(any(is_found(pattern, line) for line in lines) for pattern in rules.get("expect", []))
    return score(expected and not any(is_found(pattern, line) for pattern in rules.get("unexpect", []) for line in lines))


def check_csv(result: str, rules: Rules) -> float:
    """Each row of ``expect`` is found in the table (by the columns it names), and none of ``unexpect``."""
    header, *lines = read_table(result) or [[]]
    rows = [dict(zip(header, line, strict=False)) for line in lines]

    def found(wanted: Rules) -> bool:
        return any(all(row.get(key) == value for key, value in wanted.items()) for row in rows)

    return score(all(map(found, rules.get("expect", []))) and not any(map(found, rules.get("unexpect", []))))


def file_contains(result: str, rules: Rules) -> float:
    """The file has every expected text."""
    text = read_text(result)
    return score(all(part in text for part in rules["expected"]))


def diff_text_file(result: str, expected: str) -> float:
    """How alike two text files are line by line, 0 to 1."""
    found, wanted = read_lines(result), read_lines(expected)
    return line_likeness(found, wanted)


def check_line_number(result: str, rules: Rules) -> float:
    """The file has as many lines with a time of day (hh:mm:ss) as expected."""
    time_of_day = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")
    count = sum(1 for line in read_lines(result) if time_of_day.search(line))
    return score(count == whole_number(rules["expected"]))


def compare_text_file(result: str, expected: str, *, ignore_blanks: bool = False, ignore_case: bool = False) -> float:
    """Both files have the same text; on demand without regard to blanks or capitals."""
    found, wanted = read_text(result), read_text(expected)
    if ignore_blanks:
        found, wanted = re.sub(r"\s+", " ", found).strip(), re.sub(r"\s+", " ", wanted).strip()
    if ignore_case:
        found, wanted = found.lower(), wanted.lower()
    return score(found == wanted)


def compare_python_pure_text(result: str, expected: str) -> float:
    """Two programs are the same but for blank lines, spaces at the ends of lines, tabs for spaces and leading remarks about the
    interpreter and the encoding."""

    def lines(path: str) -> list[str]:
        every = read_lines(path)
        remarks = next((place for place, line in enumerate(every[:3]) if not _ABOUT_FILE.match(line)), min(3, len(every)))
        return [line.expandtabs(4).rstrip() for line in every[remarks:] if line.strip()]

    return score(lines(result) == lines(expected))


_ABOUT_FILE = re.compile(r"\s*(#!|# -\*- coding:|# coding[:=])")


def compare_terminal_and_txt(result: str, terminal_output: str) -> float:
    """The text file holds what the terminal gave."""
    return score(read_text(result) == terminal_output)


def run_sqlite3(result: str, rules: Rules) -> float:
    """The first number that the query ``sql`` gives over a copy of the database; it only reads."""
    with opening(result) as place:
        rows = first_rows(place, rules["sql"], 1)
        return min(1.0, max(0.0, float(rows[0][0] or 0))) if rows else 0.0


# --- the accessibility tree ------------------------------------------------------------------------------------------


def check_accessibility_tree(result: str, rules: Iterable[Rules]) -> float:
    """Every rule finds a node in the tree: by ``xpath`` or ``selectors`` (any of them), with ``text`` where one is given.

    ``exact`` (the default) wants that very text; otherwise the share by which the best node's text matches counts.
    """
    from lxml.cssselect import CSSSelector

    from computerrl.env_server.tasks.osworld.desktop import TREE_NAMESPACES

    root = xml_of(result.encode())
    total = 1.0
    for rule in rules:
        if "xpath" in rule:
            nodes = root.xpath(rule["xpath"], namespaces=TREE_NAMESPACES)
        elif "selectors" in rule:
            nodes = CSSSelector(", ".join(rule["selectors"]), namespaces=TREE_NAMESPACES)(root)
        else:
            raise BadRule("a rule over the accessibility tree needs `xpath` or `selectors`")
        if not nodes:
            return 0.0
        if "text" in rule:
            texts = [node.text or "" for node in nodes]
            if rule.get("exact", True):
                total *= score(rule["text"] in texts)
            else:
                total *= max(likeness(rule["text"], text) for text in texts)
    return total
