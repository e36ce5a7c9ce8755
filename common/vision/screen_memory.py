"""Memory that the screens of a run take where its policy is sampled: in an engine, in its process, and in actors. Upper estimates
from the configuration and the model's files; `common.memory_plan` adds them up. No torch here.

Activations of a prompt's first pass are not counted, in runs with images as in runs without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from computerrl.common.config import RunConfig
from computerrl.common.errors import PictureError
from computerrl.common.models.engine_choice import engine_here
from computerrl.common.models.folder import model_folder, read_json
from computerrl.common.sampling_limits import (
    MAX_FEATURE_BYTES,
    MAX_NUMBERED,
    MAX_PREPARED_BYTES,
    MAX_SENT,
    MAX_SERVED_BYTES,
    NUM_PREPARING,
    STORED_PER_LIVE,
)
from computerrl.common.vision.memory import TextShape, TowerShape, text_shape, tower_shape

_NAME_BYTES = 200
"""Memory for the number of one image, under its content hash (estimated)."""
_ENCODED_BYTES_PER_PIXEL = 0.5
"""Assumed for stored screenshots: PNGs of web pages and drawn windows take 0.1 to 0.2 (measured), photographs more."""
_PREPARING_FACTOR = 2.5
"""Memory that the image processor takes at work, beside its result and as a multiple of it. Measured: 1.3 to 2.4 for screens of
1280 x 720 and 1920 x 1080 in five families."""
_HELD_SHARE = 0.5
"""Memory that the C library holds between kept features, as a share of theirs: tensors of other sizes come and go between them.
Measured with tiny-vision: 0.55, and 0.2 with MALLOC_MMAP_THRESHOLD_=65536 in the environment. Assumed for other models."""
_VLLM_ENCODER_TOKENS = 16_384
"""Minimum number of image tokens whose features vLLM keeps, and that its tower encodes at once: those of the largest image that
the model's processor gives. Qwen2.5-VL's gives 16,384; assumed for other families."""
_UNKNOWN = TextShape(0, 0, 0, 0)
"""A language model whose sizes config.json does not name: its keys, values and features count as nothing."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One screen of a run, as its model sees it."""

    num_tokens: int
    """Number of image tokens."""
    num_pixels: int
    """Number of pixels of the desktop's screen."""
    tower: TowerShape
    text: TextShape
    element_bytes: int
    """Bytes of a number in the model's type."""

    @property
    def num_patches(self) -> int:
        return self.num_tokens * self.tower.patches_per_token

    @property
    def kv_bytes(self) -> int:
        """Of the keys and values of its tokens, in one row of an engine's cache."""
        return self.text.kv_bytes(self.num_tokens, element_bytes=self.element_bytes)

    @property
    def feature_bytes(self) -> int:
        """Of its features, which the vision tower gives."""
        return self.text.feature_bytes(self.num_tokens, element_bytes=self.element_bytes)

    @property
    def prepared_bytes(self) -> int:
        """Of its tensors, which the image processor gives."""
        return self.tower.prepared_bytes(self.num_patches)

    @property
    def encoded_bytes(self) -> int:
        """Of the stored screenshot."""
        return int(self.num_pixels * _ENCODED_BYTES_PER_PIXEL)

    def pass_bytes(self, num_tokens: int) -> int:
        """Of a tower without gradients that encodes ``num_tokens`` at once."""
        patches = num_tokens * self.tower.patches_per_token
        return self.tower.pass_bytes(patches, kept="nothing", element_bytes=self.element_bytes)


def screen_of(config: RunConfig) -> Screen | None:
    """None where prompts show no images, where the model has no tower that is known here, where its folder is not there yet, and
    for a screen that it does not take (another check reports it).

    Raises `ConfigError` for a folder without an image processor."""
    if not config.actor.prompt.shows_images or config.actor.agent is not None:
        return None
    folder = model_folder(config.model.name)
    tree = read_json(folder / "config.json") or {}
    tower, text = tower_shape(tree), text_shape(tree)
    if tower is None:
        return None
    from computerrl.common.vision.processor import load_processor

    width, height = config.desktop.screen_width, config.desktop.screen_height
    try:
        num_tokens = load_processor(folder).layout(width, height).num_pieces
    except PictureError:
        return None
    element_bytes = 2 if config.model.dtype == "bfloat16" else 4
    return Screen(num_tokens, width * height, tower, text or _UNKNOWN, element_bytes)


@dataclass(frozen=True, slots=True)
class SamplingMemory:
    """Bytes that images take in a process that samples, at most."""

    kv: int = 0
    """Keys and values of whole prompts with images. `memory_plan.PROCESS_MB` has those of a short text run as well."""
    features: int = 0
    """Features of images: kept ones, and those of requests under way."""
    tower: int = 0
    """The tower at work."""
    prepared: int = 0
    """Tensors of the image processor: kept ones, and those of requests under way."""
    preparing: int = 0
    """The image processor at work."""
    encoded: int = 0
    """Stored screenshots."""
    names: int = 0
    """Numbers of images under their content hashes."""

    @property
    def held(self) -> int:
        """Of the C library, between features on a CPU."""
        return int(_HELD_SHARE * self.features)

    @property
    def on_device(self) -> int:
        """Of a GPU that computes."""
        return self.kv + self.features + self.tower

    @property
    def total(self) -> int:
        """Of a process that computes on a CPU."""
        return self.on_device + self.held + self.prepared + self.preparing + self.encoded + self.names


def engine_images(config: RunConfig) -> SamplingMemory:
    """Of an actor with its own engine; with central inference of an engine process."""
    screen, actor = screen_of(config), config.actor
    if screen is None or actor.endpoint is not None:
        return actor_images(config)
    num_engines = 1 if actor.older_policy_every is None else 2
    # An episode has as many screens as steps.
    num_in_prompt = min(actor.prompt.images, max(1, actor.prompt.max_prompt_tokens // screen.num_tokens), config.tasks.max_steps)
    num_shown = actor.num_live * num_in_prompt
    num_preparing = actor.num_episodes if actor.inference == "local" else NUM_PREPARING
    of_process = SamplingMemory(
        prepared=_full(MAX_PREPARED_BYTES, screen.prepared_bytes) + num_shown * screen.prepared_bytes,
        preparing=int(num_preparing * _PREPARING_FACTOR * screen.prepared_bytes),
        encoded=_episodes_bytes(config, screen) if actor.inference == "local" else MAX_SERVED_BYTES,
    )
    if engine_here(config).engine == "vllm":
        num_kept = max(actor.max_num_batched_tokens or 0, _VLLM_ENCODER_TOKENS)
        return replace(
            of_process,
            # Keys and values are part of its share of a GPU; on a CPU, of `memory_plan.PROCESS_MB`.
            features=num_engines * screen.text.feature_bytes(num_kept, element_bytes=screen.element_bytes),
            tower=num_engines * screen.pass_bytes(min(num_shown * screen.num_tokens, num_kept)),
        )
    num_rows = num_engines * (1 + STORED_PER_LIVE) * (actor.num_live + 1)
    num_tokens = num_rows * (actor.prompt.max_prompt_tokens + actor.max_new_tokens)
    return replace(
        of_process,
        kv=screen.text.kv_bytes(num_tokens, element_bytes=screen.element_bytes),
        # Each of two engines keeps features; a request is in one of them.
        features=num_engines * _full(MAX_FEATURE_BYTES, screen.feature_bytes) + num_shown * screen.feature_bytes,
        tower=num_engines * screen.pass_bytes(num_in_prompt * screen.num_tokens),
        names=num_engines * MAX_NUMBERED * _NAME_BYTES,
    )


def actor_images(config: RunConfig) -> SamplingMemory:
    """Of an actor whose completions another process or a server samples."""
    screen = screen_of(config)
    if screen is None:
        return SamplingMemory()
    return SamplingMemory(encoded=_episodes_bytes(config, screen) + MAX_SENT * screen.encoded_bytes)


def _episodes_bytes(config: RunConfig, screen: Screen) -> int:
    """Of the stored screenshots of an actor's live episodes: one before each action, and the last one."""
    return config.actor.num_episodes * (config.tasks.max_steps + 1) * screen.encoded_bytes


def _full(limit: int, each: int) -> int:
    """Bytes in a cache of ``limit`` bytes that is full of images of ``each``."""
    return limit // each * each
