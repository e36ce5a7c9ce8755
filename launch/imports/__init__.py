"""Trajectories of other programs as data to clone (`computerrl import-trajectories`)."""
