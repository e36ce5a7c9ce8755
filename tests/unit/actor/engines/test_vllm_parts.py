"""What the vLLM engine checks before vLLM is asked: folders, names of weights, symbols. Without vLLM itself."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from computerrl.actor.engines import vllm_engine
from computerrl.actor.engines.vllm_parts.known import (
    CLIENT_METHODS,
    ENGINE_OPTIONS,
    IMAGE_OPTIONS,
    IMAGE_SYMBOLS,
    OUTPUT_FIELDS,
    REQUEST_FIELDS,
    require_known_vllm,
    torchvision_problem,
)
from computerrl.actor.engines.vllm_parts.weights import check_tensors, require_one_tie, tensor_shapes
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError, WeightError
from computerrl.common.vision.processor import load_processor
from computerrl.launch.plan.machine import Machine
from computerrl.launch.run.preflight import check_packages
from tests.support.data.vision_data import FAMILIES, own_model, save_model

MACHINE = Machine("Debian", "6.1", "cpu", 2, 24_000, 20_000, ())
NORMALISES = "supports_mm_device_do_normalize"
"""Attribute of vLLM's classes of models: pixels come as bytes and are normalised on the device, unless it is turned off."""


def classes(*, without: str = "") -> tuple[list[Any], dict[str, Any]]:
    """The classes that `require_known_vllm` takes, and the names of vLLM's module for images; one of the names is missing."""
    options = [name for name in ("model", "seed", *ENGINE_OPTIONS, *IMAGE_OPTIONS) if name != without]
    engine_args = dataclasses.make_dataclass("EngineArgs", [(name, object, None) for name in options])
    client = type("InprocClient", (), {name: None for name in CLIENT_METHODS if name != without})
    request, output = (
        type(name, (), {"__struct_fields__": [field for field in fields if field != without]})
        for name, fields in (("EngineCoreRequest", REQUEST_FIELDS), ("EngineCoreOutput", OUTPUT_FIELDS))
    )
    multimodal = {
        name: type(name, (), {part: None for part in parts if part != without})
        for name, parts in IMAGE_SYMBOLS.items()
        if name != without
    }
    return [engine_args, client, request, output], multimodal


def assigned(file: Path, name: str) -> dict[str, Any]:
    """Names that the body of the class ``name`` in ``file`` assigns or annotates, with their values where those are constants."""
    (found,) = [one for one in ast.parse(file.read_text()).body if isinstance(one, ast.ClassDef) and one.name == name]
    values: dict[str, Any] = {}
    for part in found.body:
        if isinstance(part, ast.Assign | ast.AnnAssign):
            value = part.value.value if isinstance(part.value, ast.Constant) else part.value
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            values |= {target.id: value for target in targets if isinstance(target, ast.Name)}
    return values


def test_vllm_that_lacks_what_images_need_is_named() -> None:
    known, multimodal = classes()
    require_known_vllm(*known, multimodal=multimodal)
    cases = {
        "mm_device_do_normalize": r"EngineArgs\.mm_device_do_normalize",
        "reset_encoder_cache": r"InprocClient\.reset_encoder_cache",
        "mm_features": r"EngineCoreRequest\.mm_features",
        "is_embed": r"PlaceholderRange\.is_embed",
        "MultiModalKwargsItems": r"MultiModalKwargsItems\.from_hf_inputs",
    }
    for missing, named in cases.items():
        lacking, multimodal = classes(without=missing)
        with pytest.raises(ConfigError, match=named):
            require_known_vllm(*lacking, multimodal=multimodal)
    # A model of text alone needs none of the options of images.
    lacking, _ = classes(without="mm_device_do_normalize")
    require_known_vllm(*lacking)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where modules of vLLM have nothing but the names that an engine takes from them: the `EngineArgs` of engines' starts."""
    (engine_args, client, request, output), multimodal = classes()
    args: list[Any] = []

    def from_engine_args(given: Any) -> Any:
        args.append(given)
        return SimpleNamespace(engine_core=None)

    known: dict[str, dict[str, Any]] = {
        "vllm": {"EngineArgs": engine_args},
        "vllm.multimodal": {"inputs": SimpleNamespace(**multimodal)},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: False)},
        "vllm.v1": {},
        "vllm.v1.engine": {"EngineCoreRequest": request, "EngineCoreOutput": output},
        "vllm.v1.engine.core_client": {"InprocClient": client},
        "vllm.v1.engine.llm_engine": {"LLMEngine": SimpleNamespace(from_engine_args=from_engine_args)},
    }
    for name, parts in known.items():
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    return args


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_has_vllm_normalise_no_pixels_and_make_no_images_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any], family: str
) -> None:
    """Its default is to normalise on the device: log-probs after an image would be a nat off, without an error."""
    monkeypatch.setattr(vllm_engine, "torchvision_problem", lambda folder: None)
    folder = save_model(tmp_path / "model", model_type=family)
    processor = load_processor(folder)
    settings: dict[str, Any] = {"dtype": "float32", "num_live": 1, "max_tokens": 64, "seed": 0}
    vllm_engine.VLLMCore(folder, **settings, num_threads=None, gpu_memory=0.4, processor=processor)
    (args,) = started
    assert args.mm_device_do_normalize is False
    assert args.skip_tokenizer_init is False and args.skip_mm_profiling is True and args.mm_processor_cache_gb == 0
    assert args.limit_mm_per_prompt["image"] >= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_installed_vllm_asks_by_the_known_name_which_families_it_normalises(family: str) -> None:
    """Under another name the option that turns it off would do nothing. Read, not imported: vLLM changes torch."""
    found = importlib.util.find_spec("vllm")
    assert found is not None and found.submodule_search_locations is not None
    package = Path(found.submodule_search_locations[0])
    name = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family]
    registry = (package / "model_executor" / "models" / "registry.py").read_text()
    module = re.search(rf'"{name}": \(\s*"(\w+)",\s*"{name}",?\s*\)', registry)
    assert module is not None and f'"{NORMALISES}"' in registry
    of_class = assigned(package / "model_executor" / "models" / f"{module[1]}.py", name)
    assert of_class.get(NORMALISES, False) is (family not in ("idefics3", "smolvlm"))
    options = assigned(package / "engine" / "arg_utils.py", "EngineArgs")
    assert options.keys() >= {*ENGINE_OPTIONS, *IMAGE_OPTIONS}


def test_family_that_needs_torchvision_is_refused_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, installed = importlib.util.find_spec, {"torchvision": False}

    def find_spec(name: str, package: str | None = None) -> Any:
        return own("json" if installed["torchvision"] else "no_such_module") if name == "torchvision" else own(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "vision_config": {}}))
    problem = torchvision_problem(tmp_path)
    assert problem is not None and "'qwen2_5_vl'" in problem.reason and "needs torchvision" in problem.reason
    assert "actor.engine: transformers" in problem.next_step and "make setup DEVICE=cuda" in problem.next_step
    config = RunConfig.model_validate({"model": {"name": str(tmp_path)}, "actor": {"engine": "vllm"}})
    [finding] = check_packages(config, MACHINE)
    assert finding.error is ConfigError and finding.problem == problem
    installed["torchvision"] = True
    assert torchvision_problem(tmp_path) is None and check_packages(config, MACHINE) == []
    installed["torchvision"] = False
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "idefics3", "vision_config": {}}))
    assert torchvision_problem(tmp_path) is None and check_packages(config, MACHINE) == []


@pytest.mark.parametrize("outer", [True, False])
def test_folder_whose_tie_settings_disagree_is_refused(tmp_path: Path, outer: bool) -> None:
    path = save_model(tmp_path / "model", model_type="idefics3") / "config.json"
    tree = json.loads(path.read_text())
    for inner in (outer, not outer):
        tree["tie_word_embeddings"], tree["text_config"]["tie_word_embeddings"] = outer, inner
        path.write_text(json.dumps(tree))
        if inner == outer:
            require_one_tie(path.parent)
            continue
        with pytest.raises(ConfigError, match=f"(?s)embeddings {outer}, and {inner} in text_config.*{str(outer).lower()}"):
            require_one_tie(path.parent)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_published_folders_and_those_of_learners_are_known(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", model_type=family)
    shapes = tensor_shapes(folder)
    published = load_file(folder / "model.safetensors")
    of_learner = {name: parameter.data for name, parameter in own_model(folder).named_parameters()}
    for tensors in (published, of_learner):
        check_tensors(shapes, tensors)
    with pytest.raises(WeightError, match=r"no tensor 'model\.visual\.nothing'"):
        check_tensors(shapes, {"model.visual.nothing": torch.zeros(1)})


def test_part_of_a_tower_that_vllm_fuses_is_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", model_type="idefics3")
    tensors = {name: parameter.data for name, parameter in own_model(folder).named_parameters()}
    name = next(name for name in tensors if "vision_model" in name and ".k_proj." in name)
    with pytest.raises(WeightError, match="came without"):
        check_tensors(tensor_shapes(folder), {name: tensors[name]})
