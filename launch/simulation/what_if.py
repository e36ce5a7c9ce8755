"""Effect of one changed setting at a time on a simulated run. Pure; each row is a simulation of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from computerrl.common.config import RunConfig
from computerrl.launch.simulation.cluster import Cluster
from computerrl.launch.simulation.figures import Figures, figures_of
from computerrl.launch.simulation.loop import Simulation
from computerrl.launch.simulation.workload import AnyWorkload, with_stragglers

Progress = Callable[[str, float], None]
"""Called with a setting's name and the share of its time that is simulated."""
KNEE = 0.5
"""Share of twice the steps that twice as many desktops per GPU must bring at least."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulation."""

    name: str
    config: RunConfig
    cluster: Cluster
    workload: AnyWorkload

    def run(self, duration_s: float, *, seed: int, on_progress: Progress = lambda name, share: None) -> Figures:
        """Simulate it; gives the figures."""
        simulation = Simulation(self.config, self.cluster, self.workload, seed=seed)
        return figures_of(simulation.play(duration_s, on_progress=lambda share: on_progress(self.name, share)))


def variations(base: Setting) -> Iterator[Setting]:
    """``base``, and ``base`` with one change at a time."""
    cluster, eta, batch = base.cluster, base.config.broker.eta, base.config.learner.groups_per_batch
    yield replace(base, name="as asked")
    for other in sorted({0, 1, 2 * eta, 2 * eta + 2} - {eta}):
        yield replace(base, name=f"eta {other}", config=_with_eta(base.config, other))
    for other in sorted({max(1, batch // 2), 2 * batch} - {batch}):
        yield replace(base, name=f"groups_per_batch {other}", config=_with_batch(base.config, other))
    twice = replace(cluster, num_desktops=2 * cluster.num_desktops)
    yield replace(base, name=f"{twice.num_desktops} desktops", cluster=twice)
    if cluster.num_actors * 2 <= cluster.num_desktops:
        yield replace(base, name=f"{2 * cluster.num_actors} actors", cluster=replace(cluster, num_actors=2 * cluster.num_actors))
    quick = replace(cluster, train_fixed_s=cluster.train_fixed_s / 2, train_step_s=cluster.train_step_s / 2)
    yield replace(base, name="training twice as fast", cluster=quick)
    yield replace(base, name="1 % stragglers, 10 times slower", workload=with_stragglers(base.workload, 0.01, 10.0))
    failures = replace(cluster.failures, desktop_mtbf_s=6 * 3600.0, actor_mtbf_s=24 * 3600.0, learner_mtbf_s=24 * 3600.0)
    yield replace(base, name="failures: desktops 6 h, others 24 h", cluster=replace(cluster, failures=failures))


def table(
    base: Setting,
    duration_s: float,
    *,
    seed: int,
    on_row: Callable[[str, Figures], None] = lambda name, row: None,
    on_progress: Progress = lambda name, share: None,
) -> list[tuple[str, Figures]]:
    """(name, figures) of ``base`` and its variations."""
    rows = []
    for setting in variations(base):
        rows.append((setting.name, setting.run(duration_s, seed=seed, on_progress=on_progress)))
        on_row(*rows[-1])
    return rows


def desktops_per_gpu(
    base: Setting, duration_s: float, *, seed: int, on_progress: Progress = lambda name, share: None
) -> tuple[int, list[tuple[int, float]]]:
    """(how many desktops an engine can use, [(desktops per engine, environment steps/s of one)]), learner and bound left out.

    The answer is the last doubling that brought at least `KNEE` of what it could have brought.
    """
    free = _with_eta(base.config, 10_000)
    no_learner = {"train_fixed_s": 0.0, "train_step_s": 0.0, "overhead_s": 0.01, "weight_s": 0.0, "load_stall_s": 0.0}
    fast = replace(base.cluster, num_actors=1, **no_learner)  # type: ignore[arg-type]
    rates: list[tuple[int, float]] = []
    count, answer = 1, 1
    while count <= 256:
        setting = replace(base, name=f"{count} desktops an engine", config=free, cluster=replace(fast, num_desktops=count))
        rates.append((count, setting.run(duration_s, seed=seed, on_progress=on_progress).env_steps_per_s))
        if len(rates) > 1 and rates[-1][1] - rates[-2][1] < KNEE * rates[-2][1]:
            break
        answer = count
        count *= 2
    return answer, rates


def _with_eta(config: RunConfig, eta: int) -> RunConfig:
    return config.model_copy(update={"broker": config.broker.model_copy(update={"eta": eta})})


def _with_batch(config: RunConfig, groups: int) -> RunConfig:
    return config.model_copy(update={"learner": config.learner.model_copy(update={"groups_per_batch": groups})})
