"""What a task does by its instruction: reasons to refuse it that its steps and its evaluator do not show. Pure.

The agent of an instruction that names a web page has to load it, whatever the evaluator looks at afterwards. A copy of the site
may do for the web.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_REMOTE = r"(?:https?|ftp)://(?!localhost\b|127\.|\[::1\])[^\s\"'<>)]+"
_DOMAIN = r"\b(?:[a-z0-9-]+\.)+(?:com|org|net|edu|gov|io|ai|dev|info)\b(?:/\S*)?"
_HOST = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,}", re.IGNORECASE)
"""The first one in an address, or in words that end with the name of a site."""
_ASKED = r"(?:^|[.!?,;:]\s*|\b(?:please|to|me(?: in)?|you|and|then|in)\s+)"
"""Before a verb that asks for something: "I have downloaded it" asks for nothing."""
_FROM_ELSEWHERE = r"(?:the |this |these |its |all |my |a |an |next |latest |first )*[\w' -]{0,40}?"

_NETWORK: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), reason, where)
    for pattern, reason, where in (
        (rf"(?<![\w@]){_REMOTE}", "names the address {match}", "named"),
        (
            rf"\b(?:visit|browse|open|go to|through|via|from|on|at|in) (?:the )?(?<!@)(?:www\.)?{_DOMAIN}",
            "names the web site of '{match}'",
            "named",
        ),
        (rf"\b(?:log ?in to|clone) (?:the )?{_DOMAIN}", "names the web site of '{match}'", "nowhere"),
        (rf"{_ASKED}download(?:ing)? {_FROM_ELSEWHERE}\b", "the agent is to '{match}'", "opened"),
        (rf"{_ASKED}clone {_FROM_ELSEWHERE}\b", "the agent is to '{match}'", "nowhere"),
        (
            r"\binstall\w* [\w' -]*\b"
            r"(?:extensions?(?!.*\.vsix\b)|plug-?ins?|add-?ons?|packages?|app|application|software|themes?)\b",
            "the agent is to '{match}'",
            "nowhere",
        ),
        (r"\b(?:plug-?in|web|extension|app) store\b", "names the {match}", "nowhere"),
        (r"\b(?:home ?page|web ?page|website) links?\b", "works with {match}", "nowhere"),
        (
            r"\b(?:find|locate|look up|collect)\b[^.?!]*\b(?:web ?pages?|web ?sites?|home ?pages?)\b",
            "the agent is to '{match}'",
            "opened",
        ),
        (r"\bfind\b[^.?!]*\b(?:addresses|prices?|opening hours) of\b", "the agent is to '{match}'", "opened"),
        (r"\bsearch (?:on |through |in )?(?:the )?(?:internet|web|online)\b", "the agent is to '{match}'", "nowhere"),
        (r"\bcommand not found\b", "the agent would have to install a program ('{match}')", "nowhere"),
    )
)
"""Words, the reason that they are, and where it lies what they want: on the site that is ``named`` there, on the pages that the
set-up has ``opened``, or ``nowhere`` that could be copied."""
_SITES: Mapping[str, str] = {
    "arxiv": "arxiv.org", "google scholar": "scholar.google.com", "colab": "", "wikipedia": "en.wikipedia.org",
    "youtube": "www.youtube.com", "speedtest": "", "huggingface": "huggingface.co", "stack overflow": "stackoverflow.com",
    "stackoverflow": "stackoverflow.com",
}  # fmt: skip
"""Sites by the names that instructions give them -> their hosts; empty: programs run there, of which a copy does nothing."""
_SITE = re.compile(rf"\b(?:{'|'.join(_SITES)})\b", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"|“[^”]*”')
_MISSING_PROGRAMS = re.compile(r"\b(?:sysstat|conda|docker|npm|nmap|ffmpeg)\b")
"""Programs that instructions want used and that no image has."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that an instruction wants of the network."""

    reason: str
    sites: tuple[str, ...] = ()
    """Hosts of the sites that it names."""
    of_opened: bool = False
    """Whether it is to be had of the pages that the set-up opens."""

    @property
    def stand_in_does(self) -> bool:
        """Whether it only names sites: then a page that has nothing but its address may do."""
        return bool(self.sites)


def network_wishes(instruction: str) -> Iterator[Wish]:
    """Why the instruction cannot be followed without the network, one for each reason."""
    for pattern, reason, where in _NETWORK:
        match = pattern.search(instruction)
        if match is not None:
            text = match.group().strip(" .,;:!?\n")
            said = reason.format(match=text[:80])
            sites = tuple(_HOST.findall(text)[:1]) if where == "named" else ()
            yield Wish(said if "agent" in reason else f"the instruction {said}", sites, of_opened=where == "opened")
    site = _SITE.search(_QUOTED.sub("", instruction))  # in quotation marks it is text to write
    if site is not None:
        host = _SITES[site.group().lower()]
        yield Wish(f"the instruction names {site.group()}", (host,) if host else ())


def missing_programs(instruction: str) -> Iterator[str]:
    """Programs that the instruction wants and that no image has."""
    yield from dict.fromkeys(_MISSING_PROGRAMS.findall(instruction))
