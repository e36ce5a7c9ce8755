"""Models named as on the hub are found in its local cache, refused with the command that fetches them, and pinned by runs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, DiskFull, ResumeError, SetupError
from computerrl.common.models import hub
from computerrl.common.models.folder import check_model_folder, context_length, model_folder, model_folder_problems
from computerrl.launch.commands.main import cli
from computerrl.launch.plan.machine import inspect_machine
from computerrl.launch.plan.run_names import claim, find_resumable
from computerrl.launch.run import preflight
from computerrl.launch.setup import bundle
from computerrl.launch.setup.machine_setup import bring_model
from tests.support.folders.hub_cache import FIRST, NAME, SECOND, add_revision, model_files, use_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return use_cache(tmp_path / "cache", monkeypatch)


def run_of(tmp_path: Path, name: str = NAME) -> RunConfig:
    return RunConfig.model_validate({"name": "quick", "run_dir": str(tmp_path / "runs"), "model": {"name": name}})


def start(run: RunConfig) -> None:
    (run.folder / "config.yaml").write_text(yaml.safe_dump(run.model_dump(mode="json")))


def test_name_of_the_hub_is_the_folder_of_its_newest_revision(cache: Path) -> None:
    add_revision(cache, FIRST, model_files())
    newest = add_revision(cache, SECOND, model_files())
    assert model_folder(NAME) == newest
    check_model_folder(model_folder(NAME))
    assert context_length(NAME) == 8192
    assert hub.snapshot_at(newest) == hub.Snapshot(NAME, SECOND, cache)
    assert hub.model_label(str(newest)) == f"{NAME}@{SECOND[:12]}"


def test_folder_of_that_name_goes_before_the_cache(cache: Path, tmp_path: Path) -> None:
    add_revision(cache, FIRST, model_files())
    (tmp_path / NAME).mkdir(parents=True)
    assert model_folder(NAME) == Path(NAME)


def test_model_that_is_not_in_the_cache_is_refused_with_the_command_that_fetches_it(cache: Path, tmp_path: Path) -> None:
    (finding,) = preflight.check_model(run_of(tmp_path), inspect_machine())
    assert finding.error is ConfigError and "nothing is downloaded by itself" in finding.problem.reason
    assert finding.problem.next_step.startswith(f"hf download {NAME}, or `computerrl train CONFIG --download`")


@pytest.mark.parametrize("is_link", [True, False])
@pytest.mark.parametrize("missing", sorted(model_files()))
def test_model_that_is_there_in_part_is_refused_with_what_it_lacks(cache: Path, missing: str, is_link: bool) -> None:
    snapshot = add_revision(cache, FIRST, model_files())
    if is_link:
        # The blob of a download that was broken off has another name, and the link leads nowhere.
        blob = (snapshot / missing).resolve()
        blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    else:
        (snapshot / missing).unlink()
    ((reason, step),) = model_folder_problems(model_folder(NAME))
    assert reason == f"only a part of {NAME!r} is in the cache: revision {FIRST} lacks {missing}"
    assert step.startswith(f"hf download {NAME} --revision {FIRST}")


def test_weights_that_are_pickled_are_named_as_such(cache: Path) -> None:
    files = model_files()
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    add_revision(cache, FIRST, files)
    ((reason, _),) = model_folder_problems(model_folder(NAME))
    assert "pickled weights" in reason


def test_weight_files_that_the_index_or_the_cache_s_list_names_and_that_are_missing_are_named(cache: Path) -> None:
    files = model_files()
    places = {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    files["model-00001-of-00002.safetensors"] = files.pop("model.safetensors")
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    add_revision(cache, FIRST, files)
    ((reason, step),) = model_folder_problems(model_folder(NAME))
    assert reason.endswith("lacks model-00002-of-00002.safetensors") and step.startswith("hf download")
    assert model_folder_problems(model_folder(NAME), weights=False) == []


def test_list_of_the_revision_s_files_that_the_cache_holds_is_compared(cache: Path) -> None:
    from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache

    snapshot = add_revision(cache, FIRST, model_files())
    names = [*model_files(), "tokenizer_config.json", "README.md", "onnx/model.onnx", "consolidated.safetensors"]
    entry = TreeCacheEntry(size=1, blob_id="b", lfs_sha256=None, lfs_size=None, xet_hash=None)
    write_tree_cache(str(snapshot.parent.parent), FIRST, dict.fromkeys(names, entry))
    assert hub.unfetched(snapshot) == ["tokenizer_config.json"]
    assert model_folder(NAME) == snapshot
    ((reason, _),) = model_folder_problems(model_folder(NAME))
    assert reason.endswith("lacks tokenizer_config.json")


def test_run_keeps_the_revision_that_it_began_with(cache: Path, tmp_path: Path) -> None:
    first = add_revision(cache, FIRST, model_files())
    start(claim(run_of(tmp_path)))
    second = add_revision(cache, SECOND, model_files())
    assert find_resumable(run_of(tmp_path)).model.name == str(first)
    assert claim(run_of(tmp_path)).model.name == str(second)
    assert find_resumable(run_of(tmp_path, str(first))).model.name == str(first)
    with pytest.raises(ResumeError, match=r"model\.name"):
        find_resumable(run_of(tmp_path, "Some-Org/other"))


def test_revision_that_left_the_cache_is_named_with_the_command_that_brings_it_back(cache: Path) -> None:
    folder = cache / f"models--{NAME.replace('/', '--')}" / "snapshots" / FIRST
    ((reason, step),) = model_folder_problems(folder)
    assert FIRST in reason and NAME in reason and step.startswith(f"hf download {NAME} --revision {FIRST}")


class Hub:
    """Stands for the network: fetches a revision into the cache, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self._error = error

    def __call__(self, name: str, *, revision: str | None, cache: Path | None, local_files_only: bool) -> Path:
        assert not local_files_only
        self.asked.append((name, revision))
        if self._error is not None:
            raise self._error
        from huggingface_hub import constants

        return add_revision(Path(cache or constants.HF_HUB_CACHE), revision or SECOND, model_files(), name=name)


def test_download_fetches_the_newest_revision_of_a_name_and_the_revision_of_a_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Hub()
    with monkeypatch.context() as patched:
        patched.setattr(hub, "_hub_call", network)
        folder = hub.download_model(NAME)
        assert hub.download_model(str(folder).replace(SECOND, FIRST)) == folder.parent / FIRST
        assert hub.download_model("tiny-random") is None and hub.download_model("/no/folder") is None
    assert network.asked == [(NAME, None), (NAME, FIRST)]
    assert bring_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (OSError(28, "No space left on device"), DiskFull, "set HF_HOME"),
        (ConnectionError("no route"), SetupError, "no route"),
        (FileNotFoundError("no such repository"), SetupError, "whether the name is right"),
    ],
)
def test_download_that_fails_is_a_clear_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception], said: str
) -> None:
    monkeypatch.setattr(hub, "_hub_call", Hub(error))
    with pytest.raises(raised, match=said):
        hub.download_model(NAME)


def test_download_is_refused_where_the_environment_says_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cache(cache, monkeypatch, is_offline=True)
    with pytest.raises(SetupError, match="HF_HUB_OFFLINE"):
        bring_model(NAME, download=True)
    assert not cache.exists()


def test_train_downloads_only_when_it_is_told_to(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    network = Hub(ConnectionError("asked"))
    real = hub._hub_call
    monkeypatch.setattr(hub, "_hub_call", lambda name, **how: (real if how["local_files_only"] else network)(name, **how))
    words = ["train", "quickstart", f"model.name={NAME}", f"run_dir={tmp_path / 'runs'}"]
    assert isinstance(CliRunner().invoke(cli, [*words, "--dry-run"]).exception, preflight.PreflightFailed)
    assert network.asked == []
    assert "asked" in str(CliRunner().invoke(cli, [*words, "--download"]).exception)
    assert network.asked == [(NAME, None)] and not (tmp_path / "runs").exists()


def test_bundle_holds_the_files_of_a_revision_under_the_model_s_name(cache: Path, tmp_path: Path) -> None:
    add_revision(cache, FIRST, model_files())
    (tmp_path / "out").mkdir()
    bundle._model(tmp_path / "out", NAME)
    with tarfile.open(tmp_path / "out" / "models" / "tiny.Model-1B.tar") as archive:
        files = {member.name: member.isreg() for member in archive if not member.isdir()}
    assert files == {f"tiny.Model-1B/{name}": True for name in model_files()}


@given(name=st.text(alphabet="ab.-_/~ \\:é0", max_size=12))
def test_any_text_is_a_name_of_the_hub_or_not_and_never_leads_out_of_the_cache(name: str) -> None:
    if hub.is_hub_name(name):
        assert name.count("/") == 1 and ".." not in name and not name.startswith((".", "/", "~", "-"))
    else:
        assert model_folder(name).is_absolute() or model_folder(name) == Path(name)
