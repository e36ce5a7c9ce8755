"""Command line of the two stages, see the package."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from computerrl.common.models.folder import cache_folder
from computerrl.learner.model_store import ensure_model
from computerrl.learner.pretraining.labels import Vocabulary
from computerrl.learner.pretraining.places import train_places
from computerrl.learner.pretraining.reader import Reader
from computerrl.learner.pretraining.tower import Eyes, Schedule, is_for_training_alone, train_tower
from computerrl.learner.tiny_vision import WEIGHTS_FILE


def main() -> None:
    """Run one stage."""
    arguments = _parser().parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.stage == "pack":
        _pack(arguments.start)
        return
    import transformers

    folder = ensure_model("smollm2-135m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    language_model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    eyes = Eyes(language_model.config.to_dict())
    started = _tensors(arguments.start)
    if started:
        eyes.take(started)
    fonts = arguments.fonts or next((cache_folder() / "images").glob("core-*/usr/share/fonts/truetype/liberation"))
    schedule = Schedule(arguments.steps, arguments.batch, arguments.lr, arguments.seed, arguments.device)
    if arguments.stage == "labels":
        embeddings = language_model.get_input_embeddings().weight.detach().float()
        train_tower(
            eyes,
            schedule,
            embeddings=embeddings,
            vocabulary=Vocabulary(tokenizer),
            fonts=fonts,
            say=_say,
            keep=lambda: save_file(eyes.state_dict(), arguments.out),
        )
        return
    reader = Reader(language_model, eyes)
    if not reader.take(started):
        reader.look_up_words(arguments.seed)
    train_places(
        reader,
        schedule,
        tokenizer=tokenizer,
        fonts=fonts,
        eyes_lr=arguments.eyes_lr,
        max_questions=arguments.questions,
        num_name_steps=arguments.name_steps,
        say=_say,
        keep=lambda: save_file(reader.state(), arguments.out),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m computerrl.learner.pretraining", description=__doc__)
    parser.add_argument("stage", choices=["labels", "places", "pack"])
    parser.add_argument(
        "--start",
        type=Path,
        nargs="+",
        default=[],
        help="results of earlier stages or parts of them, or the package's file; what stands in several is taken from the last",
    )
    parser.add_argument("--out", type=Path, help="where to write the result")
    parser.add_argument("--steps", type=int, default=6000, help="how long to train")
    parser.add_argument("--batch", type=int, default=6, help="pages of a step")
    parser.add_argument("--questions", type=int, default=12, help="questions about a page")
    parser.add_argument("--name-steps", type=int, default=0, help="in `places`, of the first layers alone before all others")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--eyes-lr", type=float, default=0.0, help="of tower and connector in `places`; 0: they stay as they are")
    parser.add_argument("--seed", type=int, default=1, help="of pages and weights")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: as torch chooses")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--fonts", type=Path, help="folder of Liberation Sans; default: that of the desktop image")
    return parser


def _tensors(files: list[Path]) -> dict[str, torch.Tensor]:
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _pack(start: list[Path]) -> None:
    """Write the package's file from the results of stages."""
    kept = {name: tensor.to(torch.bfloat16) for name, tensor in _tensors(start).items() if not is_for_training_alone(name)}
    save_file(kept, WEIGHTS_FILE)
    digest = hashlib.sha256(WEIGHTS_FILE.read_bytes()).hexdigest()
    print(json.dumps({"file": WEIGHTS_FILE.name, "bytes": WEIGHTS_FILE.stat().st_size, "sha256": digest}))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
