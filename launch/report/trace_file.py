"""`computerrl trace`: reads a run's records, writes the trace file."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from computerrl.common.errors import ConfigError, Problem
from computerrl.common.metrics import json_ready, read_json_lines
from computerrl.common.run_files.run_folder import PRIVATE, RunFolder, write_atomically
from computerrl.launch.report.trace import trace_events
from computerrl.launch.report.write import latest_of_each
from computerrl.launch.watch.run_state import RunState

LEDGER_FILE = "ledger.jsonl"


def write_trace(folder: Path, *, episode: str | None, last: int, out: Path | None) -> str:
    """Write the trace of one episode, or of the ``last`` ones; gives what to tell the person. Raises `ConfigError`."""
    run = RunFolder(folder)
    # Those of older versions do not say when they were played.
    timed = (record for record in read_json_lines(run.episodes_path) if record.get("started_at") and record.get("actor"))
    episodes = latest_of_each(list(timed))
    chosen = [record for record in episodes if record["trajectory_id"] == episode] if episode else episodes[-last:]
    if not chosen:
        what = f"there is no {episode!r}" if episode else f"{folder} has no episode yet"
        raise ConfigError([Problem("EPISODE", what, "computerrl replay RUN lists all episodes")])
    state = RunState().take_all(read_json_lines(run.metrics_path))
    ledger = read_json_lines(folder / LEDGER_FILE)
    updates = state.updates
    if episode:
        wanted = {line.get("update") for line in ledger if line.get("trajectory_id") == episode}
        updates = [record for record in updates if record.get("update") in wanted]
    events = trace_events(chosen, ledger=ledger, updates=updates, completed=completed_groups(run.logs))
    # Not into the run folder: looking changes nothing in a run.
    path = out or Path(f"trace-{folder.resolve().name}.json")
    tree: dict[str, Any] = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": folder.resolve().name}}
    write_atomically(path, json.dumps(json_ready(tree), separators=(",", ":")).encode(), mode=PRIVATE)
    left_out = 0 if episode else len(episodes) - len(chosen)
    rest = f" (the newest; {left_out} older ones are left out, see --last)" if left_out else ""
    return f"{path}: {len(chosen)} episodes{rest}, {len(updates)} updates\n    -> open it at ui.perfetto.dev or chrome://tracing"


def completed_groups(logs: Path) -> dict[str, float]:
    """Unix seconds at which each group was whole, from the broker's logs of all attempts."""
    found = {}
    for path in sorted(logs.glob("[0-9]*/broker-0.log")):
        for record in read_json_lines(path):
            if record.get("event") == "group.completed":
                try:
                    found[str(record["group_id"])] = datetime.fromisoformat(record["timestamp"]).timestamp()
                except (KeyError, ValueError, TypeError):
                    continue  # another version's line
    return found
