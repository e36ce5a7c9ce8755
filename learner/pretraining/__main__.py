"""Command line, see the package."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from computerrl.common.models.folder import cache_folder
from computerrl.learner.model_store import ensure_model
from computerrl.learner.pretraining.labels import Vocabulary
from computerrl.learner.pretraining.pages import Fonts
from computerrl.learner.pretraining.places import train_places
from computerrl.learner.pretraining.questions import Asker
from computerrl.learner.pretraining.reader import Reader
from computerrl.learner.pretraining.screens import Screens, Source, record
from computerrl.learner.pretraining.tower import LOOSE_SHARE, Eyes, Schedule, train_tower
from computerrl.learner.tiny_vision import WEIGHTS_FILE


def main() -> None:
    """All stages, each from where it was ended."""
    arguments = _parser().parse_args()
    folder: Path = arguments.folder
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    record(folder / "screens", num=arguments.screens, seed=arguments.seed, say=_say("screens"))
    import transformers

    model = ensure_model("smollm2-135m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    language_model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    torch.manual_seed(arguments.seed)
    reader = Reader(language_model, Eyes(language_model.config.to_dict()))
    if arguments.begin_with:
        reader.load(load_file(arguments.begin_with))
    else:
        reader.look_up_words(arguments.seed)
    fonts = Fonts(arguments.fonts or next((cache_folder() / "images").glob("core-*/usr/share/fonts/truetype/liberation")))
    screens = Screens(folder / "screens", fonts)
    source, drawn = Source(fonts, screens), Source(fonts)
    train_tower(
        reader.eyes,
        Schedule(arguments.label_steps, arguments.batch, arguments.lr, arguments.seed, arguments.device),
        embeddings=language_model.get_input_embeddings().weight.detach().float(),
        vocabulary=Vocabulary(tokenizer),
        source=source,
        held_out=drawn,
        loose_share=0.0 if arguments.begin_with else LOOSE_SHARE,
        say=_say("labels"),
        file=folder / "labels.safetensors",
    )
    train_places(
        reader,
        Schedule(arguments.steps, arguments.batch, arguments.lr, arguments.seed, arguments.device),
        asker=Asker(tokenizer, source, max_questions=arguments.questions),
        held_out=Asker(tokenizer, drawn, max_questions=4),
        num_name_steps=arguments.name_steps,
        say=_say("places"),
        files=(folder / "names.safetensors", folder / "places.safetensors"),
    )
    file = folder / WEIGHTS_FILE.name
    save_file({name: tensor.to(torch.bfloat16).contiguous() for name, tensor in reader.state().items()}, file)
    _say("end")(
        f"{file.name} has {file.stat().st_size} bytes and sha256 {hashlib.sha256(file.read_bytes()).hexdigest()};"
        f" the screens have {screens.digest()}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m computerrl.learner.pretraining", description=__doc__)
    parser.add_argument("folder", type=Path, help="where screens, the state of each stage and the result are kept")
    parser.add_argument("--begin-with", type=Path, metavar="FILE", help="weights of an earlier run; default: from the beginning")
    parser.add_argument("--screens", type=int, default=2400, help="screens of desktops to record")
    parser.add_argument("--label-steps", type=int, default=8000, help="steps of the first stage")
    parser.add_argument("--name-steps", type=int, default=1500, help="steps of the second stage for its first layers alone")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the second stage for all layers")
    parser.add_argument("--batch", type=int, default=6, help="pages of a step")
    parser.add_argument("--questions", type=int, default=12, help="questions about a page")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of instances, pages and weights")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: as torch chooses")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--fonts", type=Path, help="folder of Liberation Sans; default: that of the desktop image")
    return parser


def _say(stage: str) -> Callable[[str], None]:
    return lambda text: print(f"{stage}: {text}", flush=True)


if __name__ == "__main__":
    main()
