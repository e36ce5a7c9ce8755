"""A discrete-event model of the whole loop, with the real broker core inside. `computerrl simulate` is its command.

workload.py   what an episode takes: assumed laws, or a run's own episodes
cluster.py    how many of everything, and how long the rest takes
engine.py     one engine shared by its episodes
loop.py       the events: actors, broker core, learner
breakdowns.py what fails, and what that costs
records.py    what is kept of it all
figures.py    what came out, and where the bottleneck is
calibrate.py  workload and cluster of a recorded run
what_if.py    the same with one thing changed
replays.py    published comparisons, played by this model
picture.py    stages over time
"""
