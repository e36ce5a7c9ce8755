"""The trained language model: any Hugging Face causal LM with an ordinary stack of decoder layers, run on packed tries; also one
that takes images (`learner.model.vision`).

With `model.trainable_top_layers` only the top layers and the final norm are trained: the layers below run without a graph, and
their output can be kept between passes of one batch. Where a vision tower is trained (`model.vision`), gradients go through all
layers to reach it. Passes compute in bfloat16 or float32; `learner.model.trained_weights` has the weights that training changes.
Logits exist only where an action token is predicted, a few rows at a time. No optimizer, no loss and no batch logic here; how the
weights lie over several ranks is `learner.model.sharding`'s business.

Shape legend: N nodes of a pack, Q nodes with logits, U distinct (node, next token) pairs, E hidden size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from computerrl.common import host, log
from computerrl.common.config import LoraConfig, RunConfig
from computerrl.common.errors import ConfigError, Problem
from computerrl.common.memory_plan import Recomputation, card_room_mb, choose_recomputation, host_room_mb, ranks_per_node
from computerrl.common.messages import Step
from computerrl.common.models.folder import has_vision_tower, sharing_problems
from computerrl.common.models.loading import load_whole, refusing_model
from computerrl.common.vision.tower import Features, tower_parameters
from computerrl.common.weight_plan import probe_difference, probe_tokens
from computerrl.learner.model.attention import ATTENTION
from computerrl.learner.model.batching import Pack, make_packs
from computerrl.learner.model.fused import fuse
from computerrl.learner.model.head import action_logprobs
from computerrl.learner.model.lora import Adapter, adapters_among, add_adapters
from computerrl.learner.model.pack_tensors import PackTensors
from computerrl.learner.model.parallel.context import ContextGroup, PackShare
from computerrl.learner.model.ranks import SOLO, Ranks
from computerrl.learner.model.trained_weights import TrainedWeights
from computerrl.learner.model.vision import Vision, auto_class, load_vision
from computerrl.learner.model_store import ensure_model

_PROBE_TOLERANCE = {torch.bfloat16: 0.15, torch.float32: 2e-3}
"""`probe_difference` to the model's own forward pass that rounding explains."""


_ROUTERS = ("gate", "router")
"""What families call the map from a hidden state to a number for each expert."""


@dataclass(frozen=True, slots=True)
class _ProbeSample:
    prompt_tokens: np.ndarray
    action_tokens: np.ndarray


@dataclass(frozen=True, slots=True)
class PackOutputs:
    """Result of one forward pass over a pack."""

    logprobs_U: torch.Tensor
    """[U] float32, of the sampling distribution at the asked temperature; carries the graph."""
    entropy_Q: torch.Tensor
    """[Q] float32, detached."""
    states_QE: torch.Tensor
    """Hidden states that the logits were computed from, after the final norm; detached."""


class Policy:
    """A model on its device, split into frozen lower and trained upper layers."""

    def __init__(
        self,
        model: Any,
        *,
        folder: Path,
        num_trained_layers: int | None,
        recomputation: Recomputation = "none",
        lora: LoraConfig | None = None,
        vision: Vision | None = None,
        float32_head: bool = False,
        trains_routers: bool = False,
        offload: bool = False,
        context: ContextGroup | None = None,
    ) -> None:
        """``recomputation``: what each trained layer computes again when going back, see `LearnerConfig`.
        ``float32_head``: compute the output layer in float32, see `ModelConfig.head_dtype`.
        ``lora``: the model's adapters, which are in it already, are all that is trained. ``vision``: of a model that takes
        images; it tells whether its tower is trained. ``trains_routers``: see `ModelConfig.router`. ``offload``: see
        `OptimizerConfig.offload`. ``context``: the ranks that share each pack; None: packs are run whole."""
        self.folder = folder
        self.vision = vision
        self._has_rope_grid = vision is not None and vision.has_rope_grid
        self._float32_head = float32_head
        self._recomputes = recomputation == "full"
        self._offload = offload
        self._context = context
        self._model = model
        self._base = model.get_decoder()
        self._layers = self._base.layers
        num_layers = len(self._layers)
        text = model.config.get_text_config()
        self._head_size: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self._first_trained = 0 if num_trained_layers is None else max(0, num_layers - num_trained_layers)
        self._trains_tower = vision is not None and not vision.frozen
        self._trains_input = self._trains_tower or (num_trained_layers is None and lora is None)
        """Whether gradients reach what enters the lowest layer."""
        self.tower_names = frozenset() if vision is None else tower_parameters(model)
        """Names of the parameters of the vision tower and its connector."""
        self._num_deep = len(getattr(getattr(model.config, "vision_config", None), "deepstack_visual_indexes", None) or ())
        """Number of layers to whose output features of images are added."""
        adapters = adapters_among((name for name, _ in model.named_parameters()), lora)
        of_adapters = {name for adapter in adapters for name in (adapter.down, adapter.up)}
        kept = frozenset() if trains_routers else _routers(model)
        model.requires_grad_(False)
        trained: dict[str, torch.nn.Parameter] = {}
        for name, parameter in model.named_parameters():
            if name in self.tower_names:
                is_trained = self._trains_tower
            elif lora:
                is_trained = name in of_adapters
            else:
                is_trained = (num_trained_layers is None or self._is_top(parameter)) and name not in kept
            if is_trained:
                trained[name] = parameter.requires_grad_(True)
        self.weights = self._make_weights(trained, adapters)

    def _make_weights(self, trained: dict[str, torch.nn.Parameter], adapters: Sequence[Adapter]) -> TrainedWeights:
        return TrainedWeights.of(self._model, trained, adapters=adapters, offload=self._offload)

    @property
    def hidden_size(self) -> int:
        """Length of a state."""
        return int(self._model.get_input_embeddings().embedding_dim)

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding."""
        return int(self._model.get_input_embeddings().num_embeddings)

    def _is_top(self, parameter: torch.nn.Parameter) -> bool:
        layers = self._layers[self._first_trained :]
        top = [*layers, self._base.norm] if len(layers) else []
        return any(parameter is candidate for module in top for candidate in module.parameters())

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    def packs(self, samples: Sequence[Step], *, max_tokens: int, groups: Sequence[int] | None = None) -> list[Pack]:
        """As `make_packs`, with the images of a model that takes them. Raises `PictureError`."""
        if self.vision is None:
            return make_packs(samples, max_tokens=max_tokens, groups=groups)
        return self.vision.images.packs(samples, max_tokens=max_tokens, groups=groups)

    def tensors(self, pack: Pack) -> PackTensors:
        """``pack`` on this device; worth keeping when the pack is run more than once."""
        return PackTensors.of(pack, device=self.device, dtype=self.dtype, head_size=self._head_size, context=self._context)

    def frozen_hidden(self, pack: Pack, tensors: PackTensors) -> torch.Tensor | None:
        """[1, N, E] what enters the first trained layer; None when something below it is trained."""
        if self._trains_input:
            return None
        with torch.no_grad():
            return self._within(self._below, pack, tensors)

    def _below(self, pack: Pack, tensors: PackTensors) -> torch.Tensor:
        shown = self._shown(pack, tensors)
        return self._run(self._embed(tensors, shown), tensors, range(self._first_trained), shown)

    def forward(
        self, pack: Pack, *, temperature: float, tensors: PackTensors | None = None, hidden: torch.Tensor | None = None
    ) -> PackOutputs:
        """Log-probs of the pack's (node, token) pairs at ``temperature``. ``tensors`` and ``hidden`` are what `tensors` and
        `frozen_hidden` gave for this pack, or None. Under `torch.no_grad` no graph is made."""
        tensors = tensors or self.tensors(pack)
        if hidden is None:
            hidden = self.frozen_hidden(pack, tensors)
        return PackOutputs(*self._within(self._above, pack, tensors, hidden, temperature))

    def _within(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do ``work`` with the weights at hand."""
        return work(*arguments)

    def _above(
        self, pack: Pack, tensors: PackTensors, hidden: torch.Tensor | None, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Where all layers that take features of images are frozen, ``hidden`` holds them.
        shown = self._shown(pack, tensors) if hidden is None or self._first_trained < self._num_deep else None
        first = self._first_trained
        if hidden is None:
            hidden, first = self._embed(tensors, shown), 0
        top = self._run(hidden, tensors, range(first, len(self._layers)), shown)
        states_QE = self._base.norm(top.squeeze(0).index_select(0, tensors.logit_nodes_Q))
        head = self._model.get_output_embeddings()
        weight_VE, bias_V = head.weight, getattr(head, "bias", None)
        if self._float32_head:
            weight_VE, bias_V = weight_VE.float(), None if bias_V is None else bias_V.float()
        logprobs, entropy = action_logprobs(
            states_QE.to(weight_VE.dtype),
            weight_VE,
            bias_V,
            tensors.pair_node_U,
            tensors.pair_token_U,
            host_pair_node_U=tensors.host_pair_node_U,
            temperature=temperature,
        )
        states = states_QE.detach()
        share = tensors.share
        return (logprobs, entropy, states) if share is None else _gathered(share, logprobs, entropy, states)

    def _shown(self, pack: Pack, tensors: PackTensors) -> Features | None:
        """[V, E] rows of the pack's images, one for each of their nodes; None without images."""
        if self.vision is None or pack.images is None or tensors.images is None:
            return None
        return self.vision.features(pack.images).at(tensors.images.rows_V, dtype=self.dtype)

    def _embed(self, tensors: PackTensors, shown: Features | None) -> torch.Tensor:
        """[1, N, E] what enters the lowest layer."""
        embedded_NE = self._model.get_input_embeddings()(tensors.tokens_N)
        if shown is not None and tensors.images is not None:
            embedded_NE = embedded_NE.index_copy(0, tensors.images.nodes_V, shown.rows_RE)
        elif self._trains_tower and torch.is_grad_enabled():
            embedded_NE = embedded_NE + _nothing_of(self._model, self.tower_names)
        return embedded_NE[None]

    def _run(self, hidden: torch.Tensor, tensors: PackTensors, layers: range, shown: Features | None) -> torch.Tensor:
        positions = tensors.depth_N[None]
        deep = () if shown is None else shown.deep
        rotary = self._base.rotary_emb(hidden, position_ids=tensors.rope_positions(has_grid=self._has_rope_grid))
        recomputes = self._recomputes and torch.is_grad_enabled()
        rest = {"attention_mask": tensors.layout, "position_ids": positions, "position_embeddings": rotary, "use_cache": False}
        for number in layers:
            layer = self._layers[number]
            if recomputes:
                # Nothing random happens in a layer (the model is in eval mode), so no generator has to be put back.
                out = checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False, **rest)
            else:
                out = layer(hidden, **rest)
            hidden = out[0] if isinstance(out, tuple) else out
            if number < len(deep) and tensors.images is not None:
                hidden = hidden.index_add(1, tensors.images.nodes_V, deep[number][None])
        return hidden

    @torch.no_grad()
    def probe_logprobs(self) -> np.ndarray:
        """[15] float32: log-probs of `probe_tokens`, each after the first given all before it, at temperature 1. With a vision
        tower [12]: of the tokens after the image of `common.vision.probe`."""
        if self.vision is not None:
            return self._token_logprobs(self.vision.probe.pack(self.vision.images))
        return self._token_logprobs(_pack_of([_sample_of(_probe(self.vocabulary_size))]))

    @torch.no_grad()
    def fork_logprobs(self) -> np.ndarray:
        """[62] float32: of the tokens of `_fork_samples`, packed."""
        return self._token_logprobs(_pack_of(_fork_samples(self.vocabulary_size)))

    def _token_logprobs(self, pack: Pack) -> np.ndarray:
        tensors = self.tensors(pack)
        logprobs_U = self.forward(pack, temperature=1.0, tensors=tensors).logprobs_U
        return logprobs_U.index_select(0, tensors.token_pair_M).float().cpu().numpy()


def _gathered(
    share: PackShare, logprobs: torch.Tensor, entropy: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs of a slice of a pack -> those of the pack."""
    return share.whole_pairs(logprobs), share.whole_states(entropy), share.whole_states(states)


def _routers(model: Any) -> frozenset[str]:
    """Names of the parameters that choose experts; some are of no model."""
    names = [name.removesuffix("experts") for name, _ in model.named_modules() if name.endswith(".experts")]
    return frozenset(f"{name}{part}.weight" for name in names for part in _ROUTERS)


def _nothing_of(model: Any, tower_names: frozenset[str]) -> torch.Tensor:
    """0, which gives the tower gradients of 0. Ranks whose packs show images sum gradients of the tower, and go back through all
    layers: a rank whose pack is text alone must do the same, or neither ends."""
    tower = [model.get_parameter(name).flatten()[0] for name in sorted(tower_names)]
    return (torch.stack(tower) * 0.0).sum()


def _sample_of(tokens: np.ndarray) -> _ProbeSample:
    """The first token is the prompt, the rest the action."""
    return _ProbeSample(tokens[:1], tokens[1:])


def _probe(vocabulary: int) -> np.ndarray:
    return np.array(probe_tokens(vocabulary), dtype=np.int32)


def _fork_samples(vocabulary: int) -> list[_ProbeSample]:
    """The probe, and beside it one that shares its first half: packed, two of its nodes have one parent."""
    tokens = _probe(vocabulary)
    middle = len(tokens) // 2
    other = np.concatenate([tokens[:middle], tokens[middle:][::-1]])
    return [_sample_of(row) for row in sorted((tokens, other), key=tuple)]


def _pack_of(samples: Sequence[_ProbeSample]) -> Pack:
    (pack,) = make_packs(samples, max_tokens=sum(len(sample.prompt_tokens) + len(sample.action_tokens) for sample in samples))
    return pack


def load_policy(config: RunConfig, *, make: Callable[..., Policy] = Policy, ranks: Ranks = SOLO) -> Policy:
    """Load the configured model onto the configured device and check that it computes what the model itself does.

    ``make`` has the arguments of `Policy`; another than that puts the model onto its device itself (`learner.model.sharding`).
    ``ranks``: all of them call it. `model.trainable_top_layers` 0, which no file of a configuration may have, loads a frozen
    model (`learner.training.teacher`).

    Raises `ConfigError` when the folder is no model or its architecture is none of those that can be run layer by layer.
    """
    folder = ensure_model(config.model.name)
    if config.learner.context_parallel_size > 1 and (problems := sharing_problems(config.model.name)):
        raise ConfigError(problems)
    device = choose_device(config.learner.device)
    if device.type == "cpu" and config.learner.num_threads is not None:
        torch.set_num_threads(max(1, config.learner.num_threads // config.learner.num_ranks))
    # A frozen model has no gradients for which anything is computed again.
    is_frozen = config.model.trainable_top_layers == 0
    recomputation: Recomputation = "none" if is_frozen else agreed_recomputation(config, device=device, ranks=ranks)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.disable_progress_bar()
    dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
    step = "use a folder written by save_pretrained() of a causal language model, with or without a vision tower"
    # A vision tower attends here as it always will: rounding alone makes other features of one image, and a sharp model other
    # log-probs of these.
    attention = {"text_config": "eager", "vision_config": "sdpa"} if has_vision_tower(folder) else "eager"
    with refusing_model("transformers", folder, next_step=step):
        model = load_whole(auto_class(folder).from_pretrained, folder, dtype=dtype, attn_implementation=attention)
        model = (model.to(device) if make is Policy else model).eval()
        expected = _own_logprobs(model)
    if not np.isfinite(expected).all():
        step = "copy the model folder again, or use one whose training did not diverge"
        raise ConfigError([Problem("model.name", f"{str(folder)!r} computes log-probs that are no numbers", step)])
    vision = load_vision(model, config, folder=folder, recompute=recomputation == "full")
    with refusing_model("transformers", folder, next_step="copy config.json and all weight files of the same model"):
        expected_after_image = None if vision is None else vision.probe.own_logprobs(model)
    lora = config.learner.lora
    if lora is not None:
        num_layers, num_trained = len(model.get_decoder().layers), config.model.trainable_top_layers
        first = 0 if num_trained is None else max(0, num_layers - num_trained)
        add_adapters(model, lora, first_layer=first, seed=config.seed)
    # Nothing of a vision tower is packed.
    model.set_attn_implementation(ATTENTION if vision is None else {"text_config": ATTENTION, "vision_config": "sdpa"})
    if device.type == "cuda":
        fuse(model, attends=vision is None)
    try:
        policy = make(
            model,
            folder=folder,
            num_trained_layers=config.model.trainable_top_layers,
            recomputation=recomputation,
            lora=lora,
            vision=vision,
            float32_head=config.model.head_dtype == "float32",
            trains_routers=config.model.router == "trained",
            offload=config.learner.optimizer.offload,
        )
        difference = probe_difference(expected, policy.fork_logprobs())
        if expected_after_image is not None:
            difference = max(difference, probe_difference(expected_after_image, policy.probe_logprobs()))
    except (AttributeError, TypeError) as error:
        raise _unsupported(model, f"its decoder cannot be run layer by layer ({error})") from error
    if not difference < _PROBE_TOLERANCE[dtype]:
        raise _unsupported(model, f"run layer by layer, its log-probs differ by {difference:.3f} from its own")
    return policy


def agreed_recomputation(config: RunConfig, *, device: torch.device, ranks: Ranks) -> Recomputation:
    """Choose what the run computes again for its gradients (`common.memory_plan`) by the memory that is free, and log the reason.

    All ``ranks`` call it, and it returns the same on all of them: a rank that computes layers again has other collectives than
    one that does not. It is called before the model takes memory.
    """
    if device.type == "cuda":
        free_mb, total_mb = (num_bytes / 2**20 for num_bytes in torch.cuda.mem_get_info())
        room_mb = card_room_mb(config, total_mb=total_mb, free_mb=free_mb, num_cards=torch.cuda.device_count())
        choice = choose_recomputation(config, room_mb=room_mb, on_card=True)
    else:
        total, available = host.total_and_available_mb()
        room_mb = host_room_mb(config, total_mb=total, available_mb=available)
        choice = choose_recomputation(config, room_mb=room_mb, num_sharing=ranks_per_node(config))
    num_keeping, _ = ranks.sum({"keeping": (float(choice.recomputation == "none"), 0.0)})["keeping"]
    agreed: Recomputation = "none" if num_keeping == ranks.num_ranks else "full"
    if ranks.rank == 0:
        log.get_logger().info("activation_checkpointing.chosen", value=agreed, reason=choice.reason)
    return agreed


def choose_device(name: str) -> torch.device:
    """`auto`: CUDA when there is one. Raises `ConfigError`, also where a GPU is here and this torch cannot use it."""
    built_for, has_cuda = torch.version.cuda, torch.cuda.is_available()
    return torch.device(host.choose_device(name, built_for=built_for, has_cuda=has_cuda, has_gpu=host.has_visible_gpu()))


def _unsupported(model: Any, reason: str) -> ConfigError:
    step = "use a Llama- or Qwen-like model (full causal attention, rotary positions, an ordinary output layer)"
    return ConfigError([Problem("model.name", f"{type(model).__name__} is not supported: {reason}", step)])


@torch.no_grad()
def _own_logprobs(model: Any) -> np.ndarray:
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    rows = [np.concatenate([sample.prompt_tokens, sample.action_tokens]) for sample in _fork_samples(vocabulary)]
    tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(model.device)
    logprobs = torch.log_softmax(model(input_ids=tokens, use_cache=False).logits[:, :-1].float(), dim=-1)
    return logprobs.gather(2, tokens[:, 1:, None]).flatten().cpu().numpy()
