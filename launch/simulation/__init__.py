"""A discrete-event model of the whole loop, with the real broker core inside. `computerrl simulate` is its command.

workload.py      times of an episode: assumed laws, heavy tails, or a run's own episodes
cluster.py       number of desktops, actors and engines; times of the learner; failures
world.py         clock, broker core and records that all parts share
engine.py        one engine shared by its episodes
trajectories.py  finished episodes as messages
actors.py        slots, episodes, weights
learner.py       batches, updates
breakdowns.py    failures
loop.py          all of it as one run
records.py       what is kept of a run
figures.py       rates, ages, and the bottleneck
calibrate.py     workload and cluster of a recorded run
what_if.py       the same run with one thing changed
replays.py       published comparisons, played by this model
picture.py       stages over time
"""
