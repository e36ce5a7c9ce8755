"""What a task does by its instruction: reasons to refuse it that its steps and its evaluator do not show. Pure.

The agent of an instruction that names a web page has to load it, whatever the evaluator looks at afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_REMOTE = r"(?:https?|ftp)://(?!localhost\b|127\.|\[::1\])[^\s\"'<>)]+"
_DOMAIN = r"\b(?:[a-z0-9-]+\.)+(?:com|org|net|edu|gov|io|ai|dev|info)\b(?:/\S*)?"
_ASKED = r"(?:^|[.!?,;:]\s*|\b(?:please|to|me(?: in)?|you|and|then|in)\s+)"
"""Before a verb that asks for something: "I have downloaded it" asks for nothing."""
_FROM_ELSEWHERE = r"(?:the |this |these |its |all |my |a |an |next |latest |first )*[\w' -]{0,40}?"

_NETWORK: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (rf"(?<![\w@]){_REMOTE}", "names the address {match}"),
        (
            rf"\b(?:visit|browse|open|go to|log ?in to|through|via|from|on|at|in|clone) (?:the )?(?<!@)(?:www\.)?{_DOMAIN}",
            "names the web site of '{match}'",
        ),
        (rf"{_ASKED}(?:download(?:ing)?|clone) {_FROM_ELSEWHERE}\b", "the agent is to '{match}'"),
        (
            r"\binstall\w* [\w' -]*\b"
            r"(?:extensions?(?!.*\.vsix\b)|plug-?ins?|add-?ons?|packages?|app|application|software|themes?)\b",
            "the agent is to '{match}'",
        ),
        (r"\b(?:plug-?in|web|extension|app) store\b", "names the {match}"),
        (r"\b(?:home ?page|web ?page|website) links?\b", "works with {match}"),
        (r"\b(?:find|locate|look up|collect)\b[^.?!]*\b(?:web ?pages?|web ?sites?|home ?pages?)\b", "the agent is to '{match}'"),
        (r"\bfind\b[^.?!]*\b(?:addresses|prices?|opening hours) of\b", "the agent is to '{match}'"),
        (r"\bsearch (?:on |through |in )?(?:the )?(?:internet|web|online)\b", "the agent is to '{match}'"),
        (r"\bcommand not found\b", "the agent would have to install a program ('{match}')"),
    )
)
_SITES = re.compile(r"\b(?:arxiv|google scholar|colab|wikipedia|youtube|speedtest|huggingface|stack ?overflow)\b", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"|“[^”]*”')
_MISSING_PROGRAMS = re.compile(r"\b(?:sysstat|conda|docker|npm|nmap|ffmpeg)\b")
"""Programs that instructions want used and that no image has."""


def network_wishes(instruction: str) -> Iterator[str]:
    """Why the instruction cannot be followed without the network: one phrase for each reason."""
    for pattern, reason in _NETWORK:
        match = pattern.search(instruction)
        if match is not None:
            text = match.group().strip(" .,;:!?\n")
            yield f"the instruction {reason.format(match=text[:80])}" if "agent" not in reason else reason.format(match=text[:80])
    site = _SITES.search(_QUOTED.sub("", instruction))  # in quotation marks it is text to write
    if site is not None:
        yield f"the instruction names {site.group()}"


def missing_programs(instruction: str) -> Iterator[str]:
    """Programs that the instruction wants and that no image has."""
    yield from dict.fromkeys(_MISSING_PROGRAMS.findall(instruction))
