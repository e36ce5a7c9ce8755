"""The grammar of instructions: several wordings for each kind of change. Pure.

Each wording of a kind takes all fields of its changes, so that the instruction says all that the checker asks for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from computerrl.env_server.tasks.forge.scripts import and_save
from computerrl.env_server.tasks.synthesis.changes import Change

WORDS: Mapping[str, tuple[str, ...]] = {
    "calc.write": (
        "Write {value} into the empty cell {cell}.",
        "Put {value} into {cell}.",
        "The cell {cell} should hold {value}.",
    ),
    "calc.correct": (
        "Change the content of {cell} from {old} to {value}.",
        "{cell} holds {old}; it has to be {value}.",
        "Replace {old} in {cell} by {value}.",
    ),
    "calc.empty": ("Empty the cell {cell}.", "Delete the content of {cell}.", "The cell {cell} should be empty."),
    "calc.formula": (
        "Put a formula into {cell} that gives the {function} of {cells}.",
        "In {cell}, calculate the {function} of {cells} with a formula.",
    ),
    "calc.bold": ("Make {cells} bold.", "Set {cells} in bold letters."),
    "calc.no bold": ("Take the bold letters away from {cells}.", "{cells} should not be bold."),
    "calc.italic": ("Make {cells} italic.", "Set {cells} in italic letters."),
    "calc.no italic": ("Take the italics away from {cells}.", "{cells} should not be italic."),
    "calc.fill": ("Give {cells} the background colour {colour}.", "Fill {cells} with the colour {colour}."),
    "calc.colour": ("Write {cells} in the font colour {colour}.", "The letters of {cells} should have the colour {colour}."),
    "calc.align": ("Align {cells} {side}.", "Set the horizontal alignment of {cells}: {side}."),
    "calc.format": ("Show {cells} in the format {format} with {decimals}.", "Format {cells} as {format}, with {decimals}."),
    "calc.merge": ("Merge the cells {cells} of {sheet}.", "On {sheet}, make one cell of {cells}."),
    "calc.hide": ("Hide these rows of {sheet}: {rows}.", "On {sheet}, nothing should be seen of row {rows}: hide it."),
    "calc.zoom": ("Zoom {sheet} to {percent} %.", "Show {sheet} at {percent} % of its size."),
    "calc.freeze": ("Freeze {what} of {sheet}.", "On {sheet}, {what} should stay in sight when one scrolls: freeze it."),
    "calc.rename": ("Rename the sheet {old} to {new}.", "The sheet {old} should be called {new}."),
    "calc.add sheet": ("Add a sheet {sheet} behind the others.", "The workbook needs a new last sheet called {sheet}."),
    "writer.replace everywhere": ("Replace {old} by {new} everywhere in the text.", "Wherever the text says {old}, write {new}."),
    "writer.replace": ("In {place}, replace {old} by {new}.", "Change {old} to {new} in {place}, and nowhere else."),
    "writer.append": ("Add a last paragraph that says {text}.", "Write {text} as a paragraph of its own at the end."),
    "writer.insert": ("Insert a new paragraph {text} right before {place}.", "Put the line {text} above {place}."),
    "writer.delete": ("Delete {place}.", "Remove {place}, without leaving an empty one."),
    "writer.bold": ("Make {what} bold.", "Set {what} in bold letters."),
    "writer.italic": ("Make {what} italic.", "Set {what} in italics."),
    "writer.underlined": ("Underline {what}.", "Draw a line under {what}."),
    "writer.struck": ("Strike {what} through.", "Draw a line through {what}."),
    "writer.colour": ("Give {what} the font colour {colour}.", "Write {what} in the colour {colour}."),
    "writer.size": ("Set {what} in {size} points.", "The font size of {what} should be {size} points."),
    "writer.font": ("Set {what} in the font {font}.", "Use the font {font} for {what}."),
    "writer.align": ("Make {place} {side}.", "Change the alignment of {place}: it has to be {side}."),
    "writer.spacing": ("Set the line spacing of {place} to {lines}.", "Give {place} a line spacing of {lines} lines."),
    "writer.new page": ("Begin a new page with {place}.", "Insert a page break before {place}."),
    "writer.page break": ("Insert a page break at the end of the document.", "End the document with a page break."),
    "writer.page numbers": (
        "Add page numbers in the {margin}, {side}, from {first} on, in {form}.",
        "Number the pages in {form}, beginning with {first}: in the {margin}, {side}.",
    ),
    "impress.write": ("Replace the text of {box} by {text}.", "Write {text} in place of what {box} says."),
    "impress.fill": ("Fill {box} with the colour {colour}.", "Give {box} the background colour {colour}."),
    "impress.bold": ("Make {what} bold.", "Set {what} in bold letters."),
    "impress.italic": ("Make {what} italic.", "Set {what} in italics."),
    "impress.underlined": ("Underline {what}.", "Draw a line under the text of {what}."),
    "impress.struck": ("Strike {what} through.", "Draw a line through the text of {what}."),
    "impress.colour": ("Give the text of {what} the colour {colour}.", "Write {what} in the colour {colour}."),
    "impress.align": ("Make the text of {what} {side}.", "Change the alignment of {what}: it has to be {side}."),
    "impress.background": (
        "Give slide {slide} the background colour {colour}.",
        "Colour the background of slide {slide} {colour}.",
    ),
    "impress.all backgrounds": (
        "Give all slides the background colour {colour}.",
        "Colour the background of every slide {colour}.",
    ),
    "files.make folder": ("Make a folder {folder}.", "Create a new folder called {folder}."),
    "files.rename": ("Rename {path} to {name}.", "The file {path} should be called {name}."),
    "files.move": ("Move {path} into {folder}.", "The file {path} belongs into {folder}: move it."),
    "files.move and rename": ("Move {path} into {folder}, and call it {name} there.", "Move {path} to {name} in {folder}."),
    "files.delete": ("Delete {path}.", "The file {path} is no longer needed: delete it."),
    "files.copy": ("Copy {path} to {target}.", "Make a copy of {path} called {target}."),
    "files.pack": ("Pack the folder {folder} into an archive {archive}.", "Make an archive {archive} of the folder {folder}."),
    "files.write": ("Write a text file {path} with these lines: {text}.", "Create the text file {path}, which says {text}."),
    "files.append": ("Add these lines at the end of {path}: {text}.", "Below the last line of {path}, write {text}."),
    "files.rewrite": (
        "Replace the content of {path} by these lines: {text}.",
        "The file {path} should say {text}, nothing else.",
    ),
}
"""Kind of change -> its wordings."""


def instruction(changes: Sequence[Change], rng: random.Random, *, thing: str) -> str:
    """An instruction for ``changes``, in wordings drawn by ``rng``. ``thing``: the document to save; empty: none is."""
    said = " ".join(_with_capital(rng.choice(WORDS[one.kind]).format(**one.as_dict())) for one in changes)
    return f"{said}{and_save(rng, thing)}" if thing else said


def _with_capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:] if sentence.startswith("the ") else sentence


def template(changes: Sequence[Change]) -> str:
    """The kinds of ``changes``, by which tasks are counted."""
    return " + ".join(sorted(one.kind for one in changes))
