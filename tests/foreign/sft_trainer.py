"""One step of TRL's SFT on each exported folder of chats, read as it is; writes what came out.

python sft_trainer.py CHATS MODEL PICTURE_CHATS PICTURE_MODEL TABLE FOLDER. Both models are tiny and have random weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
from datasets import load_dataset
from transformers import AutoImageProcessor, AutoTokenizer, Idefics3Processor
from trl import SFTConfig, SFTTrainer

CHATS, MODEL, PICTURE_CHATS, PICTURE_MODEL, TABLE, FOLDER = sys.argv[1:]


def picture_processor(folder: str) -> Idefics3Processor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    images = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)


def take_a_step(chats: str, model: str, processor: Any, out: Path) -> dict[str, Any]:
    data = load_dataset(chats, split="train", cache_dir=str(out / "cache"))
    config = SFTConfig(
        str(out), max_steps=1, per_device_train_batch_size=2, learning_rate=1e-2, max_length=None, use_cpu=True, report_to=[],
        bf16=False, gradient_checkpointing=False, save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(model, args=config, train_dataset=data, processing_class=processor)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    loss = trainer.train().training_loss
    moved = sum(float((now.detach() - was).abs().sum()) for now, was in zip(trainer.model.parameters(), before, strict=True))
    labels = trainer.data_collator([trainer.train_dataset[0]])["labels"][0]
    trained = (processor.tokenizer if hasattr(processor, "image_processor") else processor).decode(labels[labels >= 0])
    return {"rows": len(data), "columns": data.column_names, "loss": loss, "moved": moved, "trained": trained}


def main() -> None:
    torch.manual_seed(0)
    out = Path(FOLDER)
    table = pyarrow.parquet.read_table(TABLE)
    found = {
        "text": take_a_step(CHATS, MODEL, AutoTokenizer.from_pretrained(MODEL), out / "text"),
        "pictures": take_a_step(PICTURE_CHATS, PICTURE_MODEL, picture_processor(PICTURE_MODEL), out / "pictures"),
        "table": {"rows": table.num_rows, "bytes": [len(one["bytes"]) for one in table["screenshot"].to_pylist()]},
    }
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
