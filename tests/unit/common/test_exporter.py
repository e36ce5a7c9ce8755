"""Prometheus endpoints: what they answer, that they are found, and that they end."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from computerrl.common.config import RunConfig
from computerrl.common.errors import SetupError
from computerrl.common.exporter import exporting, prometheus_name

ROOT = Path(__file__).parents[3]


def config(folder: Path, **metrics: object) -> RunConfig:
    return RunConfig.model_validate({"name": "trial", "run_dir": str(folder), "metrics": {"prometheus": True, **metrics}})


def test_endpoint_answers_with_the_figures_of_now_and_is_found_by_its_file(tmp_path: Path) -> None:
    figures = {"actor/env_steps_total": 5.0, "actor/step_p50_s": 0.25, "actor/time_left_s": float("nan")}
    target = tmp_path / "trial" / "metrics" / "actor-3.json"
    with exporting(config(tmp_path), role="actor", index=3, metrics=lambda: figures):
        ((entry,),) = (json.loads(target.read_text()),)
        address = f"http://{entry['targets'][0]}/metrics"
        figures["actor/env_steps_total"] = 7.0
        with urllib.request.urlopen(address, timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = {sample.name: sample for family in families for sample in family.samples}
        assert samples.keys() == {"computerrl_actor_env_steps_total", "computerrl_actor_step_p50_s"}
        steps = samples["computerrl_actor_env_steps_total"]
        assert (steps.value, steps.labels) == (7.0, {"run": "trial", "role": "actor", "index": "3"})
    assert not target.exists()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_without_the_setting_nothing_listens(tmp_path: Path) -> None:
    with exporting(config(tmp_path, prometheus=False), role="actor", index=0, metrics=dict):
        assert not (tmp_path / "trial").exists()


def test_address_of_another_host_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(SetupError, match=r"metrics\.bind_address"),
        exporting(config(tmp_path, bind_address="192.0.2.1"), role="actor", index=0, metrics=dict),
    ):
        pass


def test_grafana_dashboard_shows_figures_that_exist() -> None:
    documented = {prometheus_name(name) for name in re.findall(r"`((?:actor|engine|env_server|learner)/\w+)`", metrics_table())}
    broker = {f"computerrl_broker_{name}" for name in ("held", "groups_waiting", "groups_unconsumed", "rejected")}
    board = json.loads((ROOT / "configs/grafana/computerrl.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) >= 10
    for expression in expressions:
        (pattern, *_) = [*re.findall(r'=~"([^"]+)"', expression), *re.findall(r"computerrl_\w+", expression)]
        assert any(re.fullmatch(pattern, name) for name in documented | broker), expression


def metrics_table() -> str:
    return (ROOT / "docs/reference/metrics.md").read_text()
