"""ComputerRL: online reinforcement learning of computer-use agents on real, contained desktops.

In the source tree the entries of this folder are links to the folders beside it, so that `python -m computerrl` runs in a clone
in which nothing is installed but the dependencies. In an installation they are the folders themselves.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
"""This folder."""
SOURCE_ROOT = PACKAGE.parent
"""The folder on the module search path that holds this package: PYTHONPATH of the processes that a run starts."""
