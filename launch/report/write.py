"""`report.json` and a self-contained `report.html` of a run, finished or not.

Reads the run folder only. Numbers come from `launch.report.report_data`, charts from `launch.report.charts`, the page from
`report.html.j2`; here they are put together. The page refers to nothing outside itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgspec

from computerrl.common.clock import unix_now
from computerrl.common.messages import Status
from computerrl.common.metrics import read_json_lines
from computerrl.common.run_files.run_folder import RunFolder, write_atomically
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.plan.run_names import REPORT_FILE, read_resolved
from computerrl.launch.progress import Tell, tell_nobody
from computerrl.launch.report.charts import PAGE_FOLDER, Band
from computerrl.launch.report.evaluation_figures import wilson_interval
from computerrl.launch.report.film_strips import Strip, make_strips
from computerrl.launch.report.headline import headline
from computerrl.launch.report.report_data import (
    CONTROLS,
    EVALUATIONS,
    ActiveTime,
    Attempt,
    figures,
    long_duration,
    number,
    percent,
    shown_controls,
    shown_evaluations,
    tiles,
)
from computerrl.launch.report.run_charts import family_charts, main_charts, more_charts, phase_bands
from computerrl.launch.report.usage import demonstrators, teaching, usage_line
from computerrl.launch.report.waste_view import length_chart, waste_rows
from computerrl.launch.watch.run_state import Record, RunState

if TYPE_CHECKING:
    import jinja2

ATTEMPT_FILE = "attempt.json"
STATUS_FILE = "status.json"
PAGE_FILE = "report.html"
_NUM_PARTS = 4
"""Parts of a report, as its progress counts them: records, figures, film strips, page."""


def write_attempt(log_folder: Path, attempt: Attempt) -> None:
    """Record one life of the supervisor, at its start and at its end."""
    write_atomically(log_folder / ATTEMPT_FILE, json.dumps(asdict(attempt), indent=2).encode())


def write_status(folder: Path, status: Status) -> None:
    """Keep the broker's last word: its counters are gone with it."""
    write_atomically(folder / STATUS_FILE, json.dumps(msgspec.to_builtins(status), indent=2).encode())


def write_report(folder: Path, *, tell: Tell = tell_nobody) -> Path:
    """Write both files into ``folder``; gives the page's path. ``tell`` receives the number of finished parts and of all."""
    run = RunFolder(folder)
    state, episodes, active = _records(run)
    tell(1, _NUM_PARTS)
    report = _report(folder, state, episodes, active)
    tell(2, _NUM_PARTS)
    write_atomically(folder / REPORT_FILE, json.dumps(report, indent=2).encode())
    strips = make_strips(episodes, trajectories=run.trajectories)
    tell(3, _NUM_PARTS)
    page = render_page(report, state=state, active=active, strips=strips, config_text=run.resolved_config.read_text())
    write_atomically(folder / PAGE_FILE, page.encode())
    tell(_NUM_PARTS, _NUM_PARTS)
    return folder / PAGE_FILE


def report_of(folder: Path) -> dict[str, Any]:
    """What report.json would say now; writes nothing."""
    return _report(folder, *_records(RunFolder(folder)))


def _records(run: RunFolder) -> tuple[RunState, list[Record], ActiveTime]:
    state = RunState().take_all(read_json_lines(run.metrics_path))
    active = ActiveTime(read_attempts(run.logs), last_record=last_moment(state))
    return state, latest_of_each(read_json_lines(run.episodes_path)), active


def _report(folder: Path, state: RunState, episodes: Sequence[Record], active: ActiveTime) -> dict[str, Any]:
    attempts = read_attempts(RunFolder(folder).logs)
    config = read_resolved(folder)
    status = _read_status(folder)
    numbers = figures(state, episodes=episodes, active=active, driver=config["desktop"]["driver"], final_status=status)
    outcome = attempts[-1] if attempts else Attempt(0.0, None)
    report = {
        "name": folder.name,
        "finished": outcome.outcome == "finished",
        "outcome": outcome.outcome or "killed",
        "reason": outcome.reason,
        **numbers,
        "demonstrations": demonstrators(episodes),
        "teacher": teaching(config, episodes),
        "restarts": _restarts(attempts),
        "num_attempts": len(attempts),
        "machine": inspect_machine().as_dict(),
        "versions": _read_json(folder / "versions.json"),
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    report["commit"] = report["versions"].get("commit", "unknown")
    return report


def latest_of_each(episodes: Sequence[Record]) -> list[Record]:
    """One record per trajectory: a learner that fell back to a checkpoint may have written some twice."""
    return list({episode.get("trajectory_id", index): episode for index, episode in enumerate(episodes)}.values())


def read_attempts(logs: Path) -> list[Attempt]:
    """All attempts, oldest first."""
    numbered = [folder for folder in logs.iterdir() if folder.name.isdigit()] if logs.is_dir() else []
    found = []
    for folder in sorted(numbered, key=lambda folder: int(folder.name)):
        tree = _read_json(folder / ATTEMPT_FILE)
        if "started" in tree:
            found.append(Attempt(**tree))
    return found


def now_of(attempts: Sequence[Attempt]) -> float:
    """Unix seconds now, by the clock that the newest of ``attempts`` records with."""
    return unix_now(attempts[-1].clock if attempts else "")


def last_moment(state: RunState) -> float:
    """Unix seconds of the newest record, 0 when there is none."""
    records = (*state.phases[-1:], *state.updates[-1:], *state.evaluations[-1:], *state.sft_steps[-1:])
    return max((float(record.get("time") or 0.0) for record in records), default=0.0)


# --- the page --------------------------------------------------------------------------------------------------------


def render_page(report: dict[str, Any], *, state: RunState, active: ActiveTime, strips: Sequence[Strip], config_text: str) -> str:
    """The whole page as text."""
    bands = phase_bands(state, active)
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            headline=headline(report),
            tiles=tiles(report),
            evaluations=[(title, report[name]) for name, title in shown_evaluations(report).items()],
            chances=report["chances"] if any(report.get(name) for name in CONTROLS) else {},
            controls=shown_controls(report),
            families=_families(report, state),
            teacher_usage=usage_line(report["teacher"]) if report["teacher"] else "",
            charts=main_charts(state, active, bands),
            family_charts=family_charts(state, active, bands, _families(report, state)),
            more_charts=more_charts(state, active, bands),
            waste=waste_rows(report["waste"], report["drops"]),
            length_chart=length_chart(report["waste"]),
            phases=_phase_bar(bands),
            strips=strips,
            config_text=config_text,
        )
    )


def page_environment() -> jinja2.Environment:
    """Where the pages' templates are, and what they can call."""
    import jinja2

    folders = [Path(__file__).parent, PAGE_FOLDER.parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, interval=_interval, duration=long_duration, figure=number, mean=fmean)
    return environment


def _interval(counts: Mapping[str, Any]) -> str:
    """`70–97%`: the interval of the success rate of ``counts``, a family's in `success_of`."""
    low, high = wilson_interval(counts["success"] or 0.0, counts["episodes"])
    return f"{100 * low:.0f}–{100 * high:.0f}%"


def _families(report: dict[str, Any], state: RunState) -> list[str]:
    names: dict[str, None] = {}
    for name in EVALUATIONS:
        names.update(dict.fromkeys((report[name] or {}).get("families", {})))
    for record in state.updates:
        names.update(dict.fromkeys(record.get("success_by_family") or {}))
    return list(names)


def _phase_bar(bands: Sequence[Band]) -> list[dict[str, Any]]:
    total = sum(band.end - band.start for band in bands)
    return [
        {
            "name": band.label,
            "style": band.style,
            "share": (band.end - band.start) / total,
            "seconds": (band.end - band.start) * 60,
        }
        for band in bands
        if total > 0 and band.end > band.start
    ]


def _restarts(attempts: Sequence[Attempt]) -> dict[str, int]:
    total: dict[str, int] = {}
    for attempt in attempts:
        for name, count in attempt.num_restarts.items():
            if count:
                total[name] = total.get(name, 0) + count
    return total


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _read_status(folder: Path) -> Status | None:
    try:
        # By the json of Python, which knows NaN: a metric may be that in a run that diverged.
        return msgspec.convert(json.loads((folder / STATUS_FILE).read_bytes()), Status)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None  # There is none, or another version wrote it.
