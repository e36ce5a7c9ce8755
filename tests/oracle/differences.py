"""Pairs on which the published evaluators and ours differ on purpose: which of them is right, and why.

docs/how-to/osworld.md shows the same table. A difference that is not here fails the comparison, and so does one that is no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

OURS, PUBLISHED, MEASURE = "ours", "OSWorld", "matter of measure"


@dataclass(frozen=True, slots=True)
class Difference:
    """One reason to differ."""

    metrics: str
    """Pattern of names."""
    kinds: str
    """Pattern of what is special about a pair."""
    right: str
    why: str

    def covers(self, metric: str, kind: str) -> bool:
        """Is this pair one of them?"""
        return re.fullmatch(self.metrics, metric) is not None and re.search(self.kinds, kind) is not None

    def row(self) -> str:
        """As docs/how-to/osworld.md shows it."""
        names = self.metrics.replace("|", ", ").replace(".*", "...")
        return f"| {names} | {self.right} | {self.why} |"


TEXT = (
    "compare_text_file|diff_text_file|compare_csv|compare_result_files|compare_python_pure_text|compare_config|"
    "file_contains|check_list|check_line_number|compare_terminal_and_txt|check_csv"
)
DIFFERENCES = [
    Difference(
        f"{TEXT}|check_json.*|is_.*|check_qt.*|check_global.*|check_one.*",
        "utf-16|latin-1|byte order mark|no text",
        OURS,
        "Text in any encoding is read; OSWorld raises, or takes a byte order mark for a letter.",
    ),
    Difference(
        f"{TEXT}|check_thunderbird.*",
        "form feed|line separator|line break",
        OURS,
        "Only line feeds end a line; a quoted cell of a CSV file may hold them.",
    ),
    Difference("compare_csv", "not strict", OURS, "Not strict: blanks around cells, quotes and empty rows do not count."),
    Difference("compare_result_files", "part of a number", OURS, "The expected number has to stand in the answer by itself."),
    Difference(
        "check_json.*", "remark|not |null|a list", OURS, "JSON with remarks is read; what is not there is not unexpected."
    ),
    Difference("check_auto_saving_time", "switched off", OURS, "Automatic saving has to be on."),
    Difference("is_vlc_recordings_folder", "slash", OURS, "A slash at a folder's end means nothing."),
    Difference(
        "check_qt.*|check_global_key_play_pause|check_one_instance_when_started_from_file",
        "remarks",
        OURS,
        "A line that begins with # is no setting.",
    ),
    Difference("check_config_status", "nested", OURS, "Nested keys with or without the bracket in front."),
    Difference("check_thunderbird_prefs", "no blank|no JSON", OURS, "A line without a blank or with a bare word counts."),
    Difference("check_thunderbird_filter", "two actions", OURS, "A filter with another action more is another filter."),
    Difference("check_thunderbird_folder", ".", OURS, "Mails are compared; OSWorld leaves all of them out."),
    Difference("compare_htmls", "blanks|empty|more|less", OURS, "Pages are compared to their ends; blanks are one."),
    Difference("check_enabled_experiments", "two", OURS, "The order of experiments does not count."),
    Difference("is_expected_.*", r"\.co\.uk|:8080", OURS, "Another country's domain, or another port, is another page."),
    Difference(
        "is_expected_.*",
        "(?i)shop|chrome",
        OURS,
        "http and https, www., capitals of the host and a slash at the end do not count.",
    ),
    Difference(
        "is_cookie_deleted",
        ".",
        OURS,
        "Cookies of hosts below the domain belong to it, those of other countries' domains do not.",
    ),
    Difference("check_direct_json_object", "apostrophe", OURS, "An apostrophe in a value is read."),
    Difference("check_accessibility_tree|check_left_panel", ".", OURS, "The tree is that of our desktops, with its own names."),
    Difference("run_sqlite3", ".", OURS, "A score is at most 1."),
    Difference("is_vlc_playing", "address|longer", OURS, "The name of the file counts, wherever the status has it."),
    Difference("compare_table", "chart sheet", OURS, "A chart sheet is a sheet without cells."),
    Difference(
        "compare_table",
        "formula = formula|base = formula",
        OURS,
        "A formula without a stored value in the expected workbook is the task's fault.",
    ),
    Difference("compare_table", "number as text", OURS, "A number kept as text is no number."),
    Difference("compare_table", "blanks", OURS, "Blanks around a text do not count."),
    Difference(
        "compare_table",
        r"style|row_props|col_props|\(colour\)",
        OURS,
        "Unformatted cells, rows and columns are left out; conditions and colours without alpha are read.",
    ),
    Difference(
        "compare_docx_.*|compare_line_spacing",
        "insertion|control|table|header|footer|link|line in two",
        OURS,
        "All that a reader sees counts: tracked insertions, content controls, tables, headers and footers,"
        " equations, symbols and phonetic guides.",
    ),
    Difference("compare_references", ".", OURS, "Other names of the heading are known; no references at all are none."),
    Difference("evaluate_colored_words_in_tables", ".", OURS, "The text of tables counts, and letters in tracked insertions."),
    Difference(
        "compare_subscript_contains|evaluate_strike_through_last_paragraph|check_italic_font_size_14|check_tabstops|"
        "contains_page_break|has_page_numbers_in_footers|compare_font_names|is_first_line_centered",
        ".",
        OURS,
        "All runs are looked at, in the paragraphs that count, whatever styles, insertions and tables they are in.",
    ),
    Difference(
        "compare_docx_files|check_highlighted_words",
        "odt|green|yellow|heading|note|remark|deletion|blanks|tab",
        OURS,
        "odt files are read as they are shown, highlights of any colour count.",
    ),
    Difference(
        "compare_pptx_files",
        ".",
        OURS,
        "Blanks at the ends do not count, colours that only one side has do; a switch leaves out all of its aspect; "
        "nothing moved pays nothing; groups are compared where they lie.",
    ),
    Difference(
        "compare_images|compare_pdfs|compare_epub|compare_audios|compare_videos",
        ".",
        MEASURE,
        "Pictures, texts, parts, spectra and frames are measured otherwise; files that cannot be read agree with nothing.",
    ),
    Difference(
        "compare_image_list|check_structure_sim|check_structure_sim_resized|check_file_exists_and_structure_sim|"
        "check_brightness_decrease_and_structure_sim|check_contrast_increase_and_structure_sim|check_sharper|"
        "check_saturation_increase_and_structure_sim|check_palette_and_structure_sim|check_image_mirror",
        ".",
        OURS,
        "Pictures of other modes and very small ones are compared in colour.",
    ),
    Difference(
        "check_green_background|check_triangle_position",
        ".",
        OURS,
        "What was white has to be green and the rest as it was; the triangle is the yellow part.",
    ),
    Difference(
        "check_image_size|check_image_file_size", "cut off|empty|no such kind", OURS, "The file has to be a whole picture."
    ),
    Difference(
        "compare_pdf_images", ".", OURS, "Pages are compared as they look; two files without pictures are not alike by that."
    ),
    Difference(
        "compare_archive|compare_zip_files", "folder|nothing|empty|pdf", OURS, "Folders in archives are compared as well."
    ),
]


def unexplained(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Differing pairs (metric, kind) that no entry covers."""
    return (pair for pair in pairs if not any(one.covers(*pair) for one in DIFFERENCES))
