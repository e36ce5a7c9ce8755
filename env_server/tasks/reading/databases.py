"""SQLite databases that an agent could have made: read-only, and no query runs on without end.

A table may be a view over an endless recursion, a value may be made of a gigabyte of zeros, a sort may take all memory.
"""

from __future__ import annotations

import sqlite3
from itertools import islice
from pathlib import Path
from typing import Any

from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import Budget, LimitPassed, within

_STEPS_A_CALL = 100_000
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "printf", "format", "zeroblob", "randomblob"}
)
"""Functions that reach outside, or that make in one instruction a value of any length."""
_MAX_PATTERN = 100
"""Letters of a pattern of LIKE, which costs as much as pattern times text in one instruction."""


def rows_of(path: str | Path, sql: str, *, max_rows: int = limits.MAX_SQL_ROWS) -> list[tuple[Any, ...]]:
    """At most ``max_rows`` rows that the query gives; more are `LimitPassed`. Raises `sqlite3.DatabaseError` for no database."""
    rows = first_rows(path, sql, max_rows + 1)
    within("rows of the query", len(rows), max_rows)
    return rows


def first_rows(path: str | Path, sql: str, num_rows: int) -> list[tuple[Any, ...]]:
    """The first rows that the query gives, at most so many."""
    calls = 0

    def step() -> bool:
        nonlocal calls
        calls += 1
        return calls * _STEPS_A_CALL > limits.MAX_SQL_STEPS

    connection = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA hard_heap_limit = {limits.MAX_SQL_HEAP}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.MAX_SQL_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _MAX_PATTERN)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(step, _STEPS_A_CALL)
        size, rows = Budget("bytes of the query's rows", limits.MAX_SQL_BYTES), []
        for row in islice(connection.execute(sql), num_rows):
            size.spend(sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row))
            rows.append(tuple(row))
        return rows
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            raise LimitPassed(f"steps of the query: more than {limits.MAX_SQL_STEPS}") from error
        raise
    except MemoryError as error:
        raise LimitPassed(f"bytes of the query's memory: more than {limits.MAX_SQL_HEAP}") from error
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    allowed = action in _ALLOWED and not (action == sqlite3.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
