"""Models named as on the Hugging Face hub (`owner/name`): their folders in the local cache, and their download on request.

The cache is read by huggingface_hub's own functions, which obey `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE`. Only
`download_model` uses the network. Checks no model: `common.models.folder` does.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from computerrl.common.errors import DiskFull, Problem, SetupError

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FOLDER, _SNAPSHOTS = "models--", "snapshots"
"""Layout of the cache: models--OWNER--NAME/snapshots/COMMIT."""

_READ = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"]
_UNREAD = ["original/*", "onnx/*", "consolidated*"]
"""Files of a repository that a run reads, and copies of the weights in other layouts that it does not."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One revision of a model of the hub in a cache."""

    name: str
    """`owner/name`."""
    commit: str
    """Commit hash, 40 hexadecimal digits."""
    cache: Path
    """Folder of the cache (`HF_HUB_CACHE`)."""

    @property
    def command(self) -> str:
        """Shell command that fetches this revision where there is internet."""
        return f"hf download {self.name} --revision {self.commit}"


def is_hub_name(name: str) -> bool:
    """Whether ``name`` has the form `owner/name` and is no existing folder or file."""
    return _NAME.fullmatch(name) is not None and ".." not in name and not os.path.exists(name)


def snapshot_at(folder: Path) -> Snapshot | None:
    """The revision whose files ``folder`` holds, by its path alone; None for a folder outside a cache."""
    owner, _, name = folder.parent.parent.name.removeprefix(_FOLDER).partition("--")
    is_snapshot = folder.parent.name == _SNAPSHOTS and folder.parent.parent.name.startswith(_FOLDER)
    if not is_snapshot or not name or _COMMIT.fullmatch(folder.name) is None:
        return None
    return Snapshot(f"{owner}/{name}", folder.name, folder.parent.parent.parent)


def is_of_hub(name: str) -> bool:
    """Whether `download_model` fetches model ``name``: a name of the hub, or a folder of its cache."""
    return is_hub_name(name) or snapshot_at(Path(name)) is not None


def cached_folder(name: str) -> Path | None:
    """The folder of the revision of ``name`` that was fetched last, perhaps incomplete; None where the cache has none.

    Raises `SetupError` where huggingface_hub is not installed."""
    return _fetch(name, local_files_only=True)


def unfetched(folder: Path) -> list[str]:
    """Files of the revision in ``folder`` that a run reads and that were not fetched, as far as the cache lists the revision's
    files; empty for a folder outside a cache."""
    snapshot = snapshot_at(folder)
    if snapshot is None or importlib.util.find_spec("huggingface_hub") is None:
        return []  # Without the package, the checks of the folder itself remain.
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError
    from huggingface_hub.utils import filter_repo_objects

    try:
        tree = get_cached_repo_tree(snapshot.name, revision=snapshot.commit, cache_dir=snapshot.cache)
    except CachedRepoTreeNotFoundError:
        return []  # Older versions of huggingface_hub wrote no list.
    read = filter_repo_objects((file.path for file in tree), allow_patterns=_READ, ignore_patterns=_UNREAD)
    return sorted(path for path in read if not (folder / path).is_file())


def download_model(name: str) -> Path | None:
    """Fetch the files of model ``name`` into the cache that are not there: the newest revision of a name of the hub, or the
    revision of a folder of the cache. Returns its folder; None for any other model, of which nothing is fetched.

    Raises `SetupError` for a model that the hub does not give, and `DiskFull`.
    """
    if not is_of_hub(name):
        return None
    snapshot = snapshot_at(Path(name))
    if _is_offline():
        reason = f"{name!r} is not downloaded, because HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"
        raise SetupError(Problem("model.name", reason, "unset it, or leave --download out"))
    return _fetch(name) if snapshot is None else _fetch(snapshot.name, revision=snapshot.commit, cache=snapshot.cache)


def model_label(name: str) -> str:
    """A short name of model ``name`` for people: that of its folder, and of a folder of the cache the name on the hub."""
    snapshot = snapshot_at(Path(name))
    return Path(name).name if snapshot is None else f"{snapshot.name}@{snapshot.commit[:12]}"


def _fetch(name: str, *, revision: str | None = None, cache: Path | None = None, local_files_only: bool = False) -> Path | None:
    """The folder of the revision, incomplete only with ``local_files_only``; None where that finds none."""
    if importlib.util.find_spec("huggingface_hub") is None:
        step = "run `make setup`, or set model.name to the path of a model folder"
        raise SetupError(Problem("huggingface_hub", f"not installed, and {name!r} is a name of the hub", step))
    from huggingface_hub.errors import HFValidationError, HTTPError, IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        return _hub_call(name, revision=revision, cache=cache, local_files_only=local_files_only)
    except HFValidationError:
        return None  # The hub allows fewer names than file systems do.
    except IncompleteSnapshotError as error:
        if local_files_only:
            return Path(error.snapshot_path)
        raise _not_given(name, error) from error
    except LocalEntryNotFoundError as error:
        if local_files_only:
            return None
        raise _not_given(name, error) from error
    except (HTTPError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space for {name!r} in the cache of the hub\n    -> free space, or set HF_HOME") from error
        raise _not_given(name, error) from error


def _hub_call(name: str, *, revision: str | None, cache: Path | None, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        name,
        revision=revision,
        cache_dir=cache,
        local_files_only=local_files_only,
        allow_patterns=_READ,
        ignore_patterns=_UNREAD,
    )
    return Path(folder)


def _not_given(name: str, error: Exception) -> SetupError:
    reason = f"{name!r} cannot be downloaded: {type(error).__name__}: {str(error).strip():.300}"
    step = "look whether the name is right, whether this machine has internet, and whether `hf auth login` is needed"
    return SetupError(Problem("model.name", reason, step))


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
