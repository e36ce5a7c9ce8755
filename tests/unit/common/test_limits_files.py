"""Open files: the soft limit is raised as far as allowed; where the hard limit is too low, the error names it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRY = """
import resource, sys
from computerrl.common.errors import SetupError
from computerrl.common.host import allow_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500))
try:
    allow_files(int(sys.argv[1]))
except SetupError as error:
    print(error)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("needed", "said"),
    [(50, ["100"]), (400, ["400"]), (501, ["500 open files", "ulimit -Hn", "501 are needed", "100"])],
)
def test_allow_files_raises_the_soft_limit_or_names_the_hard_one(needed: int, said: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", TRY, str(needed)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(text in done.stdout for text in said), done.stdout
    assert done.stdout.split()[-1] == said[-1]
