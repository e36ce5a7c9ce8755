"""A process of its own that matches a regular expression against texts: patterns come from a model and may never end.

Reads JSON from standard input (``pattern``, ``replacement`` or null, ``texts``) and writes the matches, or ``error``. Its
processor time and memory are limited; whoever started it takes its death for "too slow". Imports nothing of ours.
"""

from __future__ import annotations

import json
import re
import resource
import sys

CPU_LIMIT_S = 2
MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
MAX_NEW_CHARS = 2_000_000
"""Of all matches together: no document that an agent edits is longer."""


def _matches(pattern: str, replacement: str | None, texts: list[str]) -> list[list[tuple[int, int, str]]]:
    """(start, end, new text) of every match that is not empty, for each text."""
    expression = re.compile(pattern)
    found: list[list[tuple[int, int, str]]] = []
    num_chars = 0
    for text in texts:
        matches = []
        for match in expression.finditer(text):
            if match.end() > match.start():
                new = match.group() if replacement is None else match.expand(replacement)
                num_chars += len(new)
                if num_chars > MAX_NEW_CHARS:
                    raise MemoryError
                matches.append((match.start(), match.end(), new))
        found.append(matches)
    return found


def main() -> None:
    """Answer one request."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    request = json.load(sys.stdin)
    try:
        answer: dict[str, object] = {"matches": _matches(request["pattern"], request["replacement"], request["texts"])}
    except (re.error, OverflowError, RecursionError, IndexError) as error:
        answer = {"error": str(error) or type(error).__name__}
    except MemoryError:
        answer = {"error": "it makes too long a text"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
