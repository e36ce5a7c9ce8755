"""`computerrl journal`: list, print and verify the journal of a run, which may be at work. The journal is not changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from computerrl.launch.progress import Progress

_MAX_LIST = 8
"""Maximum length of a list that is printed; of a longer one, without --full, only the length is printed."""


def list_segments(run: Path, *, as_json: bool) -> int:
    """Print one line per segment, or JSON. Returns the exit code."""
    from computerrl.broker.journal.audit import describe

    segments = describe(_folder(run))
    if as_json:
        rows = [
            {"segment": one.number, "num_bytes": one.num_bytes, "num_tail_bytes": one.num_tail_bytes, "records": one.kinds}
            for one in segments
        ]
        click.echo(json.dumps(rows, indent=2))
        return 0
    click.echo("segment         bytes  records  of which")
    for segment in segments:
        kinds = ", ".join(f"{count} {kind}" for kind, count in segment.kinds.most_common())
        tail = f"; {segment.num_tail_bytes:,} bytes behind its last record" if segment.num_tail_bytes else ""
        click.echo(f"{segment.number:7} {segment.num_bytes:13,} {segment.kinds.total():8}  {kinds}{tail}")
    total = sum((segment.kinds for segment in segments), Counter())
    click.echo(f"  total {sum(segment.num_bytes for segment in segments):13,} {total.total():8}")
    return 0


def print_records(run: Path, *, kinds: Sequence[str], name: str, full: bool) -> int:
    """Print records as JSON, one per line. Returns the exit code."""
    from computerrl.broker.journal.audit import read_all

    num_printed = 0
    for position, kind, content in read_all(_folder(run)):
        if (kinds and kind not in kinds) or (name and name not in (content.get("trajectory_id"), content.get("order_id"))):
            continue
        shown = content if full else _shortened(content)
        click.echo(json.dumps({**position._asdict(), "record": kind, **shown}))
        num_printed += 1
    return 0 if num_printed else 1


def verify_journal(run: Path, *, as_json: bool) -> int:
    """Verify every record, and print the state that a broker would restore, or JSON. Returns the exit code."""
    from computerrl.broker.core import BrokerCore
    from computerrl.broker.journal.audit import verify
    from computerrl.common.config import load_config
    from computerrl.launch.plan.run_names import CONFIG_FILE

    core = BrokerCore.from_config(load_config(run / CONFIG_FILE), run_id=run.name)
    with Progress(f"verifying {run.name}", unit="segments") as shown:
        verdict = verify(_folder(run), core, tell=shown)
    counted = {name: verdict.counters.get(name, 0) for name in ("received", "delivered", "held", "rejected")}
    if as_json:
        tree = {"problems": verdict.problems, "num_bytes": verdict.num_bytes, "num_records": verdict.num_records}
        click.echo(json.dumps({**tree, "trajectories": counted}, indent=2))
        return 1 if verdict.problems else 0
    for problem in verdict.problems:
        click.echo(f"problem: {problem}")
    counts = ", ".join(f"{name} {count}" for name, count in counted.items())
    state = f"{len(verdict.problems)} problems" if verdict.problems else "whole"
    click.echo(f"{state}: {verdict.num_bytes:,} bytes, {verdict.num_records} records replayed; trajectories: {counts}")
    return 1 if verdict.problems else 0


def _folder(run: Path) -> Path:
    from computerrl.common.errors import ConfigError, Problem
    from computerrl.common.run_files.run_folder import RunFolder

    folder = RunFolder(run).journal
    if not any(folder.glob("journal-*.log")):
        raise ConfigError([Problem("RUN", f"{folder} holds no journal", "give a run whose broker was started")])
    return folder


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    if isinstance(value, list):
        return f"{len(value)} items" if len(value) > _MAX_LIST else [_shortened(item) for item in value]
    return value
