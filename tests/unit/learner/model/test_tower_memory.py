"""Memory of a tower: within the estimate of plans; less with recomputed blocks and with fewer images at once, with the same
gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from computerrl.common.memory_plan import image_plan, model_size
from computerrl.common.vision.memory import Kept, tower_shape
from computerrl.common.vision.tower import tower_parameters
from computerrl.learner.model.policy import load_policy
from tests.support.data.tensors import LiveBytes, assert_near
from tests.support.data.vision_data import FAMILIES, WIDE, Screens, make_config, save_model


@pytest.mark.parametrize("family", FAMILIES)
def test_peak_falls_with_recomputed_blocks_and_fewer_images_at_once(tmp_path: Path, family: str) -> None:
    folder = save_model(tmp_path / "model", model_type=family)
    peaks, gradients = [], []
    for number, (recompute, at_once) in enumerate((("none", 4), ("full", 4), ("full", 1))):
        learner = {"activation_checkpointing": recompute, "images_per_pass": at_once}
        config = make_config(folder, tmp_path / str(number), top_layers=1, vision="trained", **learner)
        policy, screens = load_policy(config), Screens(folder, config)
        assert policy.vision is not None
        steps = [screens.step(*(screens.take(seed, WIDE) for seed in range(4)), action=[11])]
        (pack,) = policy.packs(steps, max_tokens=4096)
        assert pack.images is not None and len(pack.images.refs) == 4
        model = policy.vision.model
        with LiveBytes(list(model.parameters())) as live:
            (policy.vision.features(pack.images).rows_RE ** 2).sum().backward()
        peaks.append(live.peak)
        gradients.append({name: one.clone() for name, one in policy.weights.gradients().items()})
    assert peaks[2] < peaks[1] < peaks[0]
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            assert_near(other[name], gradient, part=1e-4)


BLOCKS, WIDE_BLOCK, WIDE_MLP = 8, 64, 128


def wide_tower(family: str) -> dict[str, Any]:
    """Settings of a tower of which its blocks are the most, as in real models."""
    if family == "qwen2_vl":
        return {"depth": BLOCKS, "embed_dim": WIDE_BLOCK, "mlp_ratio": WIDE_MLP // WIDE_BLOCK}
    named = "num_hidden_layers" if family in ("idefics3", "smolvlm") else "depth"
    return {named: BLOCKS, "hidden_size": WIDE_BLOCK, "intermediate_size": WIDE_MLP}


@pytest.mark.parametrize("kept", ["nothing", "inputs", "everything"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tower_takes_what_the_plan_says(tmp_path: Path, family: str, kept: Kept) -> None:
    folder = save_model(tmp_path / "model", model_type=family, tower=wide_tower(family))
    shape = tower_shape(json.loads((folder / "config.json").read_text()))
    assert shape is not None
    recompute, vision = ("full" if kept == "inputs" else "none"), ("frozen" if kept == "nothing" else "trained")
    learner = {"activation_checkpointing": recompute, "image_cache_mb": 0, "images_per_pass": 80}
    config = make_config(folder, tmp_path / "run", top_layers=1, vision=vision, **learner)
    policy, screens = load_policy(config), Screens(folder, config)
    assert policy.vision is not None
    read = policy.vision.images.screens
    # Families of tiles reduce a screen to few patches: they get more screens, so that activations are more than gradients.
    for num_screens in (20, 80) if family in ("idefics3", "smolvlm") else (3, 6):
        refs = [screens.take(seed, (600, 400)) for seed in range(num_screens)]
        (pack,) = policy.packs([screens.step(*refs, action=[11])], max_tokens=4096)
        with LiveBytes(list(policy.vision.model.parameters())) as live:
            total = policy.vision.features(pack.images).rows_RE.square().sum()
            if kept != "nothing":
                total.backward()
        processed = sum(read.processed(ref).tensors["pixel_values"].nbytes for ref in refs)
        num_patches = sum(read.layout(ref).num_pieces for ref in refs) * shape.patches_per_token
        planned = shape.pass_bytes(num_patches, kept=kept, element_bytes=4)
        assert live.peak + processed == pytest.approx(planned, rel=0.25), num_screens


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_a_tower_are_those_of_its_blocks(tmp_path: Path, family: str) -> None:
    sizes = {name: 4 * value if name != "mlp_ratio" else value for name, value in wide_tower(family).items()}
    folder = save_model(tmp_path / "model", model_type=family, tower=sizes)
    shape = tower_shape(json.loads((folder / "config.json").read_text()))
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    counted = sum(one.numel() for name, one in model.named_parameters() if name in tower_parameters(model))
    assert shape is not None and shape.num_parameters == pytest.approx(counted, rel=0.15)
    assert model_size(str(folder))[0] == pytest.approx(sum(one.numel() for one in model.parameters()), rel=0.1)


def test_plan_counts_the_screens_of_a_pack(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", tower=wide_tower("qwen2_5_vl"))
    config = make_config(folder, tmp_path / "run", top_layers=1)
    assert image_plan(config, "none") is None  # its prompts show no images
    prompt = config.actor.prompt.model_copy(update={"format": "compact_vision"})
    config = config.model_copy(update={"actor": config.actor.model_copy(update={"prompt": prompt})})
    frozen = image_plan(config, "none")
    trained = config.model_copy(update={"model": config.model.model_copy(update={"vision": "trained"})})
    found = [image_plan(trained, recomputation) for recomputation in ("none", "full")]
    assert frozen is not None and found[0] is not None and found[1] is not None
    assert frozen.features_mb == config.learner.image_cache_mb and found[0].features_mb == 0
    assert frozen.num_in_pack == config.max_pack_tokens // frozen.screen.num_tokens
    assert found[1].pass_mb < found[0].pass_mb
