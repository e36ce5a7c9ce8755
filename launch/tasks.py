"""`computerrl tasks list` and `check`: the task families there are, and which task files of others can be run on our desktops."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from common.errors import ConfigError, Problem


def list_families(beginning: str) -> int:
    """Print name, applications and description of the families whose name starts with ``beginning``; the exit code, 1 when there
    is none."""
    from env_server.tasks import FAMILIES

    found = [family for name, family in sorted(FAMILIES.items()) if name.startswith(beginning)]
    for family in found:
        note = "" if family.has_demonstrator else "  (no demonstrator)"
        click.echo(f"{family.name:32} {'+'.join(sorted(family.apps)):16} {family.description}{note}")
    click.echo(f"{len(found)} families", err=True)
    return 0 if found else 1


def run_check(folder: Path, *, assets: Path | None, json_file: Path | None, apps: Sequence[str]) -> int:
    """Print the report, write it to ``json_file``; gives the exit code: 0 when every task can be run, else 1."""
    from env_server.tasks.osworld.abilities import DEFAULT_APPS, KINDS, Abilities
    from env_server.tasks.osworld.check import check_folder
    from env_server.tasks.osworld.families import missing_readers

    if not os.path.isdir(folder):
        raise ConfigError([Problem("DIR", f"there is no folder {str(folder)!r}", "give the folder with the tasks' JSON files")])
    abilities = Abilities(frozenset(apps) if apps else DEFAULT_APPS)
    missing = missing_readers()
    if missing:
        click.echo(f"expected files are not read: {', '.join(missing)} not installed (make setup WITH=osworld)", err=True)
    report = check_folder(folder, assets=assets, abilities=abilities, read_gold=not missing)
    for task in report.tasks:
        click.echo(f"{'run    ' if task.runnable else 'refused'}  {task.path}")
        for refusal in task.refusals:
            click.echo(f"           {refusal}")
    click.echo(f"\n{report.num_runnable} of {len(report.tasks)} tasks can be run")
    for kind, meaning in KINDS.items():
        if report.reasons[kind]:
            click.echo(f"{report.reasons[kind]:5}  {kind:12} {meaning}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    return 0 if report.num_runnable == len(report.tasks) else 1
