"""One step of TRL's GRPO on two of our desktops, through OpenEnv's client as TRL's `environment_factory`; prints what came out.

python trl_trainer.py ADDRESS TOKEN TOKENIZER FOLDER. The policy is a tiny one with random weights, whose answers are written down
here: one rollout solves its task with a tool, the other gives up. Tools, desktops, rewards and the update are real.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

ADDRESS, TOKEN, TOKENIZER, FOLDER = sys.argv[1:]
TASK = {"task": "calc-set-cell", "seed": 5}
CALL = '<tool_call>\n{"name": "set_cell", "arguments": {"cell": "C7", "value": "ocean"}}\n</tool_call><|im_end|>'
DONE = '<tool_call>\n{"name": "done", "arguments": {}}\n</tool_call><|im_end|>'
GIVES_UP, IS_DONE = "I cannot do this.<|im_end|>", "It is done.<|im_end|>"

seen: list[str] = []


class Desktop:
    """A desktop, as TRL sees an environment: its public methods are tools."""

    def __init__(self) -> None:
        self._env = GenericEnvClient(base_url=ADDRESS, headers={"Authorization": f"Bearer {TOKEN}"}).sync()
        self._env.connect()
        self._reward = 0.0

    def reset(self, **_: Any) -> str:
        """Put the task on the screen."""
        result = self._env.reset(**TASK)
        self._reward = 0.0
        return self._shown(result)

    def set_cell(self, cell: str, value: str) -> str:
        """
        Write a value into a cell.

        Args:
            cell: Name of the cell, such as C7.
            value: What to write.
        """
        return self._shown(self._env.step({"name": "calc.set_cell", "arguments": {"cell": cell, "value": value}}))

    def done(self) -> str:
        """
        Say that the task is done.
        """
        return self._shown(self._env.step({"text": "done()"}))

    def get_reward(self) -> float:
        """The evaluator's verdict."""
        return self._reward

    def _shown(self, result: Any) -> str:
        self._reward = float(result.reward or 0.0)
        observation = dict(result.observation)
        text = "\n".join([observation["instruction"], *observation["elements"]])
        seen.append(text.splitlines()[0])
        return text


class Policy(Qwen2ForCausalLM):
    """Its first rollout sets the cell and says so; the second one gives up."""

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:  # type: ignore[override]
        """Prompt and answer of each row, padded on the right."""
        answers = []
        for number, ids in enumerate(input_ids):
            num_calls = tokenizer.decode(ids).count("<tool_response>")
            text = (CALL, DONE, IS_DONE)[num_calls] if number == 0 else GIVES_UP
            answers.append(torch.tensor(tokenizer.encode(text, add_special_tokens=False)))
        padded = torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=tokenizer.pad_token_id)
        return torch.cat([input_ids, padded.to(input_ids.device)], dim=1)


tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
tokenizer.chat_template = qwen3_chat_template
tokenizer.eos_token = "<|im_end|>"
tokenizer.pad_token = "<|endoftext|>"


def main() -> None:
    """Train one step."""
    torch.manual_seed(0)
    policy = Policy(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    before = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
    arguments = GRPOConfig(
        output_dir=FOLDER,
        per_device_train_batch_size=2,
        num_generations=2,
        max_steps=1,
        max_completion_length=2000,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": "Do this on the desktop. "}]}] * 2)
    trainer = GRPOTrainer(
        model=policy,
        args=arguments,
        processing_class=tokenizer,
        train_dataset=prompts,
        environment_factory=Desktop,
    )
    trainer.train()
    moved = sum(float((weight.detach() - before[name]).abs().max()) > 0 for name, weight in policy.named_parameters())
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    found = {"reward": logged["reward"], "std": logged["reward_std"], "tools": logged.get("tools/call_frequency")}
    with open(f"{FOLDER}/found.json", "w", encoding="utf-8") as file:
        json.dump({**found, "seen": seen, "moved": moved, "steps": trainer.state.global_step}, file)


with contextlib.redirect_stdout(sys.stderr):
    main()
