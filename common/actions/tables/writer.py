"""LibreOffice Writer: ComputerRL's WriterTools.

Patterns are Python's regular expressions, matched paragraph by paragraph. The body's paragraphs count from 0; None means all of
them and those in tables.
"""

from __future__ import annotations

from computerrl.common.actions.spec import flag, many, number, table, text, whole

_WHERE = many("paragraph_indices", (int,), None)

TABLE = table(
    "writer",
    ("save", (), "save the document"),
    ("env_info", (), "every paragraph with its number"),
    (
        "write_text",
        (text("text"), flag("bold", False), flag("italic", False), number("size", None)),
        "write at the cursor; a line end starts a paragraph",
    ),
    ("find_and_replace", (text("pattern"), text("replacement"), _WHERE), "replace matches of a pattern; \\1 is its first group"),
    ("set_color", (text("pattern"), text("color"), _WHERE), 'colour matches, like "#FF0000" or "red"'),
    ("set_font", (text("font_name"), _WHERE), "font of paragraphs"),
    ("set_font_size", (number("font_size"), text("pattern"), _WHERE), "size of matches, in points"),
    ("set_default_font", (text("font_name"), number("font_size", None)), "font of new text; what is there stays as it is"),
    ("set_strikethrough", (text("pattern"), _WHERE), "strike matches through"),
    ("capitalize_words", (_WHERE,), "a capital at each word's start"),
    (
        "change_text_case",
        (text("case_type", choices=("lowercase", "uppercase")), text("pattern"), _WHERE),
        "change the case of matches",
    ),
    ("set_line_spacing", (number("spacing_value"), _WHERE), "line spacing, 1 is single"),
    (
        "set_paragraph_alignment",
        (text("alignment", choices=("left", "center", "right", "justify")), _WHERE),
        "alignment of paragraphs",
    ),
    ("remove_highlighting", (_WHERE,), "take highlighting away"),
    ("find_highlighted_text", (text("highlight_color"),), "texts highlighted in a colour"),
    ("insert_formula_at_cursor", (text("formula"),), "a formula in LibreOffice Math's language"),
    (
        "insert_image_at_cursor",
        (text("image_path"), whole("width", None), whole("height", None)),
        "an image, size in pixels",
    ),
    ("insert_page_break", (text("position", "at_cursor", choices=("at_cursor", "end_of_document")),), "a page break"),
    (
        "add_page_numbers",
        (
            text(
                "position",
                choices=("bottom_left", "bottom_center", "bottom_right", "top_left", "top_center", "top_right"),
            ),
            whole("start_number", 1),
            text("format", "arabic", choices=("arabic", "roman", "ROMAN", "alphabetic", "ALPHABETIC")),
        ),
        "page numbers in header or footer",
    ),
    (
        "export_to_pdf",
        (text("output_path", None), text("output_filename", None), flag("include_comments", False), whole("quality", 90)),
        "export as PDF, into a folder or file; quality of pictures",
    ),
)
