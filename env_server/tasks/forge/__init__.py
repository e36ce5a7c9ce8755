"""OfficeForge: families that make their own files, instructions, checkers and scripted solutions from a seed.

`content` draws names and numbers; `books`, `papers`, `decks` and `pages` make files of them, the same bytes on every
host; `*_facts` read saved files, and `plan` compares. The families stand in `calc_*`, `writer_*`, `impress_*`, `files`,
`web` and `across`.
"""

from __future__ import annotations

from computerrl.env_server.tasks.forge import (
    across,
    calc_looks,
    calc_sheets,
    calc_values,
    files,
    impress_slides,
    impress_text,
    web,
    writer_looks,
    writer_text,
)
from computerrl.env_server.tasks.forge.plan import ForgeFamily

FAMILIES: tuple[ForgeFamily, ...] = (
    *calc_values.FAMILIES,
    *calc_looks.FAMILIES,
    *calc_sheets.FAMILIES,
    *writer_text.FAMILIES,
    *writer_looks.FAMILIES,
    *impress_text.FAMILIES,
    *impress_slides.FAMILIES,
    *files.FAMILIES,
    *web.FAMILIES,
    *across.FAMILIES,
)
