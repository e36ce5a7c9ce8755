"""What a hostile program inside a real desktop can reach: a list of attempts, each of which has to fail."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from computerrl.common.config import DesktopConfig
from computerrl.common.errors import HostBroken
from computerrl.common.models.folder import cache_folder
from computerrl.env_server.drivers import isolation
from computerrl.env_server.drivers.guest_driver import GuestDriver
from computerrl.env_server.drivers.isolation import NOBODY
from computerrl.env_server.drivers.memory import files_mb, processes_below
from computerrl.env_server.guest import confinement
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import open_desktop

CONFIG = DesktopConfig(apps=("files",), observation="tree")
ROOT = Path(__file__).resolve().parents[3]

GUEST = "$(pgrep -o -f guest.main)"
ATTEMPTS = {
    "core pattern": 'printf "%s" "$(cat /proc/sys/kernel/core_pattern)" > /proc/sys/kernel/core_pattern',
    "swappiness": 'printf "%s" "$(cat /proc/sys/vm/swappiness)" > /proc/sys/vm/swappiness',
    "sysrq": "echo h > /proc/sysrq-trigger",
    "huge pages": ": >> /sys/kernel/mm/transparent_hugepage/enabled",
    "cgroup": "mkdir /sys/fs/cgroup/evil || mkdir /sys/fs/cgroup/*/evil",
    "program": "touch /usr/bin/evil",
    "settings": "touch /etc/evil",
    "guest's code": "touch /opt/computerrl/guest/evil.py",
    "home of root": "ls /root/* /root/.[a-z]*",
    "host's files": "ls /host /.singularity.d/../work /proc/1/root/work",
    "log of the host": f"echo evil >> /proc/{GUEST}/fd/2",
    "wire to the host": f"echo evil >> /proc/{GUEST}/fd/1",
    "memory of the guest": f"g={GUEST}; dd if=/proc/$g/mem bs=1 count=1 skip=$((0x$(head -c 12 /proc/$g/maps))) iflag=skip_bytes",
    "environment of the guest": f"cat /proc/{GUEST}/environ",
    "user namespace": "unshare --user --map-root-user true",
    "mount": "mount -t tmpfs tmpfs /mnt",
    "network": "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)\"",
    "trace": f"python3 -c \"import ctypes,os; os._exit(ctypes.CDLL(None).ptrace(16, int('{GUEST}'), 0, 0) != 0)\"",
    "host of the virtual machine": 'python3 -c "import socket; socket.socket(40, socket.SOCK_STREAM)"',
    "cipher modules": 'python3 -c "import socket; socket.socket(38, socket.SOCK_SEQPACKET)"',
    "files in memory": "python3 -c \"import os; os.memfd_create('evil')\"",
    "permissions of files to come": "python3 -c \"import os; os.setxattr('/home/user', 'system.posix_acl_default',"
    " bytes.fromhex('0200000001000000ffffffff04000000ffffffff20000000ffffffff'))\"",
    "attributes of a folder": "python3 -c \"import os; os.setxattr('/tmp', 'user.evil', b'1')\"",
    "keys": 'python3 -c "import ctypes,os; os._exit(ctypes.CDLL(None).syscall(250, 0, -4, 1) < 0)"',
    "privileges": "su -c true",
    "shared memory": 'python3 -c "import ctypes, os; os._exit(ctypes.CDLL(None).shmget(0, 1 << 20, 0o600) < 0)"',
    "message queue": 'python3 -c "import ctypes, os; os._exit(ctypes.CDLL(None).msgget(0, 0o600) < 0)"',
    "all terminals": "python3 -c \"import os; [os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY) for _ in range(500)]\"",
    "all watchers of files": 'python3 -c "import ctypes, os; c = ctypes.CDLL(None).inotify_init;'
    ' os._exit(min(c() for _ in range(100)) < 0)"',
    "all timers": 'python3 -c "import ctypes, os; c, t = ctypes.CDLL(None).timer_create, ctypes.c_void_p();'
    ' os._exit(any(c(0, None, ctypes.byref(t)) for _ in range(20_000)))"',
    "all descriptors on their way": 'python3 -c "import os, socket; pairs = [socket.socketpair() for _ in range(10)];'
    " [socket.send_fds(a, [b'x'], [0] * 200) for a, _ in pairs for _ in range(2)]\"",
    "turn of the X server at the disk": "ionice -c 3 -p $(pgrep Xvfb)",
    "time slice of the X server": "python3 -c \"import ctypes, os, struct; n = 314 if os.uname().machine == 'x86_64' else 274;"
    " a = struct.pack('=IIQiIQQQ', 48, 0, 0, 0, 0, 100_000, 0, 0);"
    ' os._exit(ctypes.CDLL(None).syscall(n, $(pgrep Xvfb), a, 0) < 0)"',
    "semaphores": 'python3 -c "import ctypes, os; os._exit(ctypes.CDLL(None).semget(0, 1, 0o600) < 0)"',
}
"""What it is aimed at -> a command that ends well when it gets there."""
if confinement.has_landlock():  # docs/concepts/security.md says what is not promised without
    ATTEMPTS |= {
        "memory of the X server": "exec 3<>/proc/$(pgrep Xvfb)/mem",
        "whom the kernel ends first": "echo 1000 > /proc/$(pgrep Xvfb)/oom_score_adj",
        "share of the processors": "echo 19 > /proc/$(pgrep Xvfb)/autogroup",
    }


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestDriver]:
    secrets = {
        "APPTAINER_BIND": "/proc:/leak",
        "APPTAINERENV_SECRET": "42",
        "SINGULARITYENV_OTHER": "1",
        "http_proxy": "http://x",
    }
    with pytest.MonkeyPatch.context() as patch, open_desktop(tmp_path_factory.mktemp("d"), CONFIG) as first:
        first.close()
        for name, value in secrets.items():
            patch.setenv(name, value)
        with open_desktop(tmp_path_factory.mktemp("e"), CONFIG) as second:
            yield second


@pytest.mark.parametrize("aim", ATTEMPTS)
def test_attempt_fails(driver: GuestDriver, aim: str) -> None:
    ended = CalledDesktop(driver.get).run(f"({ATTEMPTS[aim]})", timeout_s=10.0)
    assert ended.returncode not in (0, 127), (aim, ended)
    assert driver.healthy()


def test_environment_of_the_user_and_of_the_site_is_unknown_inside(driver: GuestDriver) -> None:
    ended = CalledDesktop(driver.get).run("env; ls -d /leak", timeout_s=10.0)
    for word in ("SECRET", "OTHER", "proxy"):
        assert word not in ended.stdout
    assert "/leak" not in ended.stdout.splitlines()


def test_everything_of_a_desktop_of_root_runs_as_nobody(driver: GuestDriver) -> None:
    if os.geteuid() != 0:
        assert {os.stat(f"/proc/{pid}").st_uid for pid in processes_below(driver.pid or 0)} <= {os.geteuid(), 0, 65534}
        return
    status = [Path(f"/proc/{pid}/status").read_text() for pid in processes_below(driver.pid or 0)]
    users = {line.split()[1] for text in status for line in text.splitlines() if line.startswith("Uid:")}
    assert len(status) > 5 and users == {str(NOBODY)}


def test_files_anywhere_count_to_the_desktop_s_memory(driver: GuestDriver) -> None:
    before = files_mb(driver.pid or 0)
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/home/user"):
        done = CalledDesktop(driver.get).run(f"head -c 20000000 /dev/zero > {folder}/big", timeout_s=20.0)
        assert done.returncode == 0, done
    assert files_mb(driver.pid or 0) - before > 70
    full = CalledDesktop(driver.get).run("head -c 2000000000 /dev/zero > /dev/shm/huge; rm -f /dev/shm/huge", timeout_s=60.0)
    assert "No space left" in full.stderr


def test_number_of_files_is_limited(driver: GuestDriver) -> None:
    many = 'python3 -c \'for n in range(200_000): open(f"/tmp/{n}", "w").close()\'; rm -r /tmp/[0-9]*'
    assert "No space left" in CalledDesktop(driver.get).run(many, timeout_s=60.0).stderr


def test_difference_is_a_refusal_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from computerrl.env_server.drivers import apptainer

    monkeypatch.setattr(apptainer, "ISOLATION", (*apptainer.ISOLATION, "--writable-tmpfs", "--env", "AWS_SECRET=1"))
    with pytest.raises(HostBroken, match="AWS_SECRET"), open_desktop(tmp_path, CONFIG):
        pass


def test_guest_s_program_that_others_may_not_read_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from computerrl.env_server.drivers import apptainer

    closed = tmp_path / "guest"
    shutil.copytree(apptainer.GUEST, closed, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (closed, *closed.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.setattr(apptainer, "GUEST", closed)
    with open_desktop(tmp_path / "desktop", CONFIG) as driver:
        assert driver.healthy()


AS_USER = """
import os, sys
from pathlib import Path
from computerrl.env_server.drivers.memory import processes_below
from computerrl.env_server.tasks.osworld.desktop import CalledDesktop
from tests.support.desktops import open_desktop
from tests.integration.desktops.test_containment import ATTEMPTS, CONFIG
with open_desktop(Path(sys.argv[1]), CONFIG) as driver:
    run = CalledDesktop(driver.get).run
    reached = [aim for aim, text in ATTEMPTS.items() if run(f"({text})", timeout_s=10.0).returncode in (0, 127)]
    print(os.getuid(), {os.stat(f"/proc/{pid}").st_uid for pid in processes_below(driver.pid or 0)}, reached)
"""


def test_ordinary_user_s_desktop_is_contained_as_well() -> None:
    """Root becomes such a user first; whoever is one already has been tried above. A project that root keeps to itself (umask
    077) nobody else can use."""
    needs = [ROOT, Path(sys.prefix), Path(sys.base_prefix), cache_folder()]
    if os.geteuid() != 0 or any(not path.stat().st_mode & 0o004 for path in needs):
        return
    user = pwd.getpwnam("daemon").pw_uid
    become = [word.replace(str(NOBODY), str(user)) for word in isolation.become_nobody(needs, index=0)]
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, user, user)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COMPUTERRL_CACHE": str(cache_folder()), "HOME": home}
        done = subprocess.run(
            [*become, sys.executable, "-B", "-c", AS_USER, home], env=env, cwd=home, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{user} {{{user}}} []\n"
