"""Starting, watching, stopping and reporting runs: the only folder that may import every other, and does so lazily."""
