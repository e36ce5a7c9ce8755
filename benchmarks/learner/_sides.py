"""The sides of `learner`: our trainer, padded plain transformers and TRL's GRPOTrainer, each doing a whole optimizer step.

All three minimise the same loss: the clipped surrogate against the sampling policy, eps 0.2 and 0.28, as a mean over the action
tokens of the batch; so their gradients can be compared. Gradients are clipped to the same norm, and AdamW takes the step.

Padded sides go through the steps in order of length, so that as little as possible is padding. TRL's gradient checkpointing is
off: it would cost it time.

Shape legend: B samples of a padded batch, T its longest sample.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from computerrl.common.config import AlgorithmConfig, LearnerConfig, ModelConfig, OptimizerConfig, RunConfig
from computerrl.common.memory_plan import Recomputation, learner_parts
from computerrl.common.messages import Step, TrajectoryGroup
from computerrl.learner.algorithms import PolicyAges, PolicyOutputs, TrainBatch, make_algorithm
from computerrl.learner.model.batching import make_packs
from computerrl.learner.model.policy import load_policy
from computerrl.learner.model_store import ensure_model
from computerrl.learner.training.loss_batch import make_loss_batch
from computerrl.learner.training.trainer import Trainer

MODEL = "smollm2-135m"
NUM_THREADS = 2
MAX_PACK_TOKENS = 4096
"""Above the longest sample, as the default is: otherwise every long prompt is a pack of its own, and nothing is shared."""
PEER_BATCH_SIZE = 4
LR = 1e-6
_OPTIONS = {"correction": "none", "aggregation": "token_mean", "eps_low": 0.2, "eps_high": 0.28}
_RECOMPUTATION = {"keeping": "none", "recomputing": "full"}
"""Sides that are ours with another `learner.activation_checkpointing` than auto."""


@dataclass(slots=True)
class StepTimes:
    """Seconds of one optimizer step."""

    whole_s: float = 0.0
    forward_s: float = 0.0
    """Forward passes that are followed by a backward pass."""
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    """AdamW itself, without clipping and without copying the masters."""
    recomputed_s: float = 0.0
    """Forward passes without gradient, for the proximal policy."""
    num_trained: int = 0
    """Tokens that ran forward and backward."""
    num_recomputed: int = 0


class Side(Protocol):
    """One of the three."""

    def step(self, groups: Sequence[TrajectoryGroup]) -> StepTimes: ...

    def parameters(self) -> dict[str, torch.Tensor]:
        """Hugging Face name -> parameter that the optimizer steps."""
        ...

    @property
    def own_bytes(self) -> int:
        """Of parameters that this side keeps beside the model's."""
        ...


def missing_trl() -> str | None:
    """Why TRL cannot be compared with, None when it can."""
    for package in ("trl", "datasets", "pandas", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            return f"{package} not installed"
    return None


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all sides of a comparison have in common."""

    dtype: str
    top_layers: int | None = None
    """None: all are trained."""
    device: str = "cpu"
    model: str = MODEL
    """A built-in one or a folder."""

    def now(self) -> float:
        """Seconds, once everything that was asked of the device is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def make_side(name: str, setting: Setting, *, options: dict[str, Any] | None = None) -> Side:
    """``name``: ours, one of `_RECOMPUTATION`, padded, padded-1 (samples one by one) or trl. ``options``: more of the
    algorithm's; `num_minibatches`."""
    if setting.device == "cpu":
        torch.set_num_threads(NUM_THREADS)
    if name in _RECOMPUTATION:
        options = {**(options or {}), "activation_checkpointing": _RECOMPUTATION[name]}
        name = "ours"
    if name == "ours":
        return _Ours(setting, options=options or {})
    if name == "trl":
        return _Trl(setting)
    return _Padded(setting, batch_size=1 if name == "padded-1" else PEER_BATCH_SIZE)


@contextlib.contextmanager
def gradients_of(side: Side) -> Iterator[dict[str, torch.Tensor]]:
    """Gradients that the optimizer receives in the step taken inside: name -> float32 gradient."""
    found: dict[str, torch.Tensor] = {}

    def keep(optimizer: Any, args: Any, kwargs: Any) -> None:
        for name, parameter in side.parameters().items():
            if parameter.grad is not None:
                found[name] = parameter.grad.to(torch.float32, copy=True)

    handle = register_optimizer_step_pre_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def _config(setting: Setting, options: dict[str, Any]) -> RunConfig:
    options = {**_OPTIONS, **options}
    num_minibatches = options.pop("num_minibatches", 1)
    activation_checkpointing = options.pop("activation_checkpointing", "auto")
    return RunConfig(
        model=ModelConfig.model_validate(
            {"name": setting.model, "dtype": setting.dtype, "trainable_top_layers": setting.top_layers}
        ),
        learner=LearnerConfig(
            device=setting.device,
            num_threads=NUM_THREADS if setting.device == "cpu" else None,
            algorithm=AlgorithmConfig(options=options),
            optimizer=OptimizerConfig(lr=LR),
            num_minibatches=num_minibatches,
            max_pack_tokens=MAX_PACK_TOKENS,
            activation_checkpointing=activation_checkpointing,
        ),
    )


# --- ours --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Clock:
    """Adds up the time inside calls."""

    now: Callable[[], float]
    times: StepTimes = field(default_factory=StepTimes)
    depth: int = 0

    def timed(self, call: Callable[..., Any], note: Callable[[float], None]) -> Callable[..., Any]:
        """``call``; a call inside another one that is timed counts as part of that."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            started = self.now()
            try:
                return call(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    note(self.now() - started)

        return run

    def forward(self, seconds: float) -> None:
        if torch.is_grad_enabled():
            self.times.forward_s += seconds
        else:
            self.times.recomputed_s += seconds

    def frozen(self, seconds: float) -> None:
        # Made once for all passes over a pack, so it is part of training, for whichever caller is first.
        self.times.forward_s += seconds

    def backward(self, seconds: float) -> None:
        self.times.backward_s += seconds

    @contextlib.contextmanager
    def running(self) -> Iterator[StepTimes]:
        """Measure one step: backward passes and the optimizer are torch's own, wherever they are called."""
        self.times = StepTimes()
        begun = [0.0]

        def before(*_: Any) -> None:
            begun[0] = self.now()

        def after(*_: Any) -> None:
            self.times.optimizer_s += self.now() - begun[0]

        hooks = (
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        )
        backward = torch.Tensor.backward
        torch.Tensor.backward = self.timed(backward, self.backward)
        started = self.now()
        try:
            yield self.times
            self.times.whole_s = self.now() - started
        finally:
            torch.Tensor.backward = backward
            for hook in hooks:
                hook.remove()


class _Ours:
    """`learner.training.trainer.Trainer`, from `Algorithm.prepare` on."""

    def __init__(self, setting: Setting, *, options: dict[str, Any]) -> None:
        config = _config(setting, options)
        self._policy = load_policy(config)
        self._trainer = Trainer(config, self._policy)
        self._config, self._clock = config, _Clock(setting.now)
        self._num_minibatches = config.learner.num_minibatches
        for name, note in (("forward", self._clock.forward), ("frozen_hidden", self._clock.frozen)):
            setattr(self._policy, name, self._clock.timed(getattr(self._policy, name), note))

    @property
    def own_bytes(self) -> int:
        trained = self._policy.weights.compute
        own = [one for name, one in self._policy.weights.masters.items() if one.data_ptr() != trained[name].data_ptr()]
        return sum(master.nbytes for master in own)

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._policy.weights.masters

    @property
    def planned_bytes(self) -> int:
        """Of a step, by the estimate that plans show and the learner chooses by."""
        recomputation: Recomputation = "full" if self._policy._recomputes else "none"
        parts = learner_parts(self._config, recomputation, on_card=self._config.learner.device == "cuda")
        return int(sum(parts.values()))

    def step(self, groups: Sequence[TrajectoryGroup]) -> StepTimes:
        with self._clock.running() as times, self._counting() as counts:
            self._trainer.update(self._trainer.algorithm.prepare(groups, ages=PolicyAges(1)))
        times.num_trained, times.num_recomputed = counts[True], counts[False]
        return times

    @torch.no_grad()
    def logprobs(self, groups: Sequence[TrajectoryGroup]) -> list[np.ndarray]:
        """[A] float32 for every step, in order."""
        steps = [step for group in groups for one in group.trajectories for step in one.steps]
        found: dict[int, np.ndarray] = {}
        for pack in make_packs(steps, max_tokens=MAX_PACK_TOKENS):
            logprobs_U = self._policy.forward(pack, temperature=1.0).logprobs_U.cpu().numpy()
            ends = np.cumsum([len(steps[i].action_tokens) for i in pack.samples_S])
            parts = np.split(logprobs_U[pack.token_pair_M], ends[:-1])
            found.update(zip(pack.samples_S.tolist(), parts, strict=True))
        return [found[i] for i in range(len(steps))]

    @contextlib.contextmanager
    def _counting(self) -> Iterator[dict[bool, int]]:
        """Nodes run with and without gradient."""
        counts = {True: 0, False: 0}
        forward = self._policy.forward

        def count(pack: Any, **kwargs: Any) -> Any:
            counts[torch.is_grad_enabled()] += pack.num_nodes
            return forward(pack, **kwargs)

        self._policy.forward = count  # type: ignore[method-assign]
        try:
            yield counts
        finally:
            self._policy.forward = forward  # type: ignore[method-assign]


# --- padded ------------------------------------------------------------------------------------------------------------


class _Peer:
    """A plain model and the steps in order of length."""

    own_bytes = 0

    def __init__(self, setting: Setting) -> None:
        import transformers

        self._now = setting.now
        self._device = torch.device(setting.device)
        self._folder = ensure_model(setting.model)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            self._folder, dtype=getattr(torch, setting.dtype), attn_implementation="sdpa"
        ).to(self._device)
        top_layers = setting.top_layers
        first = 0 if top_layers is None else len(self._model.model.layers) - top_layers
        trained = {id(p) for module in (*self._model.model.layers[first:], self._model.model.norm) for p in module.parameters()}
        for parameter in self._model.parameters():
            parameter.requires_grad_(top_layers is None or id(parameter) in trained)
        self._algorithm = make_algorithm(_config(setting, {}).learner)

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def _micro_batches(self, batch: TrainBatch, size: int) -> list[list[int]]:
        order = sorted(range(len(batch.samples)), key=lambda i: _num_tokens(batch.samples[i]))
        return [order[i : i + size] for i in range(0, len(order), size)]


class _Padded(_Peer):
    """Padded batches, logits at every position, log_softmax, and the same loss function as ours."""

    def __init__(self, setting: Setting, *, batch_size: int) -> None:
        super().__init__(setting)
        self._batch_size = batch_size
        self._optimizer = torch.optim.AdamW(list(self.parameters().values()), lr=LR, fused=True)

    def step(self, groups: Sequence[TrajectoryGroup]) -> StepTimes:
        times = StepTimes()
        started = self._now()
        batch = self._algorithm.prepare(groups, ages=PolicyAges(1))
        for members in self._micro_batches(batch, self._batch_size):
            self._loss(batch, members).backward()
            times.num_trained += sum(_num_tokens(batch.samples[i]) for i in members)
        torch.nn.utils.clip_grad_norm_(list(self.parameters().values()), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        times.whole_s = self._now() - started
        return times

    def _loss(self, batch: TrainBatch, members: Sequence[int]) -> torch.Tensor:
        steps = [batch.samples[i] for i in members]
        tokens_BT, mask_BT = (tensor.to(self._device) for tensor in _right_padded([_tokens(step) for step in steps]))
        logits = self._model(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False).logits[:, :-1].float()
        logprobs_BT = torch.log_softmax(logits, dim=-1).gather(2, tokens_BT[:, 1:, None])[..., 0]
        action_BT = torch.zeros_like(logprobs_BT, dtype=torch.bool)
        for row, step in enumerate(steps):
            action_BT[row, len(step.prompt_tokens) - 1 : _num_tokens(step) - 1] = True
        logprobs_M = logprobs_BT[action_BT]
        outputs = PolicyOutputs(logprobs_M, torch.zeros_like(logprobs_M).detach(), logprobs_M.detach(), None)
        return self._algorithm.loss(outputs, make_loss_batch(batch, members, device=self._device)).loss


class _Trl(_Peer):
    """TRL's own `compute_loss` on tensors as its generation step would leave them, its backward pass and its optimizer."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        import datasets
        import transformers
        import trl

        arguments = trl.GRPOConfig(
            output_dir="unused",
            use_cpu=setting.device == "cpu",
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=PEER_BATCH_SIZE,
            num_generations=PEER_BATCH_SIZE,
            learning_rate=LR,
            weight_decay=0.01,
            loss_type="dapo",
            epsilon=_OPTIONS["eps_low"],
            epsilon_high=_OPTIONS["eps_high"],
            beta=0.0,
            report_to=[],
            disable_tqdm=True,
        )
        self._trainer: Any = trl.GRPOTrainer(
            model=self._model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            # No data loader is ever made; with a fingerprint given nothing has to be pickled for one.
            train_dataset=datasets.Dataset(datasets.table.InMemoryTable.from_pydict({"prompt": ["x"]}), fingerprint="bench"),
            processing_class=transformers.AutoTokenizer.from_pretrained(self._folder),
        )
        self._trainer.model.train()
        self._trainer.create_optimizer()
        # One window of accumulation, so that `num_items_in_batch` is all the loss is divided by.
        self._trainer.current_gradient_accumulation_steps = 1
        self._trainer.args.steps_per_generation = 1

    def step(self, groups: Sequence[TrajectoryGroup]) -> StepTimes:
        times = StepTimes()
        started = self._now()
        batch = self._algorithm.prepare(groups, ages=PolicyAges(1))
        num_items = torch.tensor(float(sum(len(step.action_tokens) for step in batch.samples)))
        for members in self._micro_batches(batch, PEER_BATCH_SIZE):
            loss = self._trainer.compute_loss(self._trainer.model, _trl_inputs(batch, members, num_items, device=self._device))
            self._trainer.accelerator.backward(loss)
            times.num_trained += sum(_num_tokens(batch.samples[i]) for i in members)
        torch.nn.utils.clip_grad_norm_(list(self.parameters().values()), 1.0)
        self._trainer.optimizer.step()
        self._trainer.optimizer.zero_grad(set_to_none=True)
        times.whole_s = self._now() - started
        return times


def _trl_inputs(
    batch: TrainBatch, members: Sequence[int], num_items: torch.Tensor, *, device: torch.device
) -> dict[str, torch.Tensor]:
    """As `GRPOTrainer._generate_and_score_completions` gives them: prompts padded on the left, completions on the right."""
    steps = [batch.samples[i] for i in members]
    flipped, flipped_mask = _right_padded([step.prompt_tokens[::-1] for step in steps])
    completion_ids, completion_mask = _right_padded([step.action_tokens for step in steps])
    old = torch.zeros(completion_ids.shape)
    for row, step in enumerate(steps):
        old[row, : len(step.action_tokens)] = torch.from_numpy(step.behavior_logprobs)
    inputs = {
        "prompt_ids": flipped.flip(1),
        "prompt_mask": flipped_mask.flip(1),
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.from_numpy(batch.advantage_S[list(members)]),
        "old_per_token_logps": old,
        "num_items_in_batch": num_items,
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def _right_padded(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """([B, T] tokens, [B, T] mask), both int64."""
    width = max(map(len, rows))
    tokens = np.full((len(rows), width), 2, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return torch.from_numpy(tokens), torch.from_numpy(mask)


def _tokens(step: Step) -> np.ndarray:
    return np.concatenate([step.prompt_tokens, step.action_tokens])


def _num_tokens(step: Step) -> int:
    return len(step.prompt_tokens) + len(step.action_tokens)
