"""LibreOffice Impress: ComputerRL's ImpressTools. Slides count from 1, boxes and lines from 0."""

from __future__ import annotations

from computerrl.common.actions.spec import flag, many, number, table, text, whole

_SLIDE, _BOX = whole("slide_index"), whole("box_index")
_PLACES = ("left", "right", "center", "top", "bottom", "top-left", "top-right", "bottom-left", "bottom-right")

TABLE = table(
    "impress",
    ("save", (), "save the presentation"),
    ("env_info", (), "every slide's boxes with their texts, and the current slide"),
    ("save_as", (text("file_path"), flag("overwrite", False)), "save under another name"),
    ("go_to_slide", (_SLIDE,), "show a slide"),
    ("get_slide_count", (), "how many slides"),
    ("duplicate_slide", (_SLIDE,), "copy a slide to the end"),
    (
        "export_to_image",
        (text("file_path"), text("format", choices=("png", "jpeg", "gif", "bmp", "tiff")), whole("slide_index", None)),
        "export a slide as a picture, or all as name_1 and so on",
    ),
    (
        "write_text",
        (
            text("content"),
            whole("page_index"),
            _BOX,
            flag("bold", False),
            flag("italic", False),
            number("size", None),
            flag("append", False),
        ),
        "write into a box; a line end starts a line",
    ),
    (
        "set_style",
        (_SLIDE, _BOX, flag("bold", None), flag("italic", None), flag("underline", None)),
        "bold, italic, underline of a box's text",
    ),
    ("set_slide_font", (_SLIDE, text("font_name")), "font of all text on a slide"),
    ("set_text_color", (_SLIDE, _BOX, text("color")), 'colour of a box\'s text, like "#FF0000" or "red"'),
    ("set_background_color", (_SLIDE, _BOX, text("color")), "fill of a box"),
    (
        "set_text_strikethrough",
        (_SLIDE, _BOX, many("line_numbers", (int,)), flag("apply")),
        "strike lines of a box through, or not",
    ),
    (
        "set_textbox_alignment",
        (_SLIDE, _BOX, text("alignment", choices=("left", "center", "right", "justify"))),
        "alignment of a box's text",
    ),
    ("position_box", (_SLIDE, _BOX, text("position", choices=_PLACES)), "move a box to a named place"),
    ("delete_content", (_SLIDE, _BOX), "delete a box"),
    (
        "insert_image",
        (
            _SLIDE,
            text("image_path"),
            number("width", None),
            number("height", None),
            text("position", "center", choices=_PLACES),
        ),
        "an image, size in centimetres",
    ),
    (
        "insert_file",
        (
            text("file_path"),
            whole("slide_index", None),
            text("position", "center", choices=_PLACES),
            many("size", (int, float), None),
            flag("autoplay", False),
        ),
        "an audio or video file, size in centimetres",
    ),
    (
        "set_slide_background",
        (whole("slide_index", None), text("color", None), text("image_path", None)),
        "background of a slide, or of all",
    ),
    ("set_slide_orientation", (text("orientation", choices=("portrait", "landscape")),), "orientation of all slides"),
    ("set_slide_number_color", (text("color"),), "colour of the slide numbers"),
    ("configure_auto_save", (flag("enabled"), whole("interval_minutes", 15)), "save by itself every so often"),
    (
        "configure_display_settings",
        (flag("use_presenter_view", None), flag("primary_monitor_only", None), whole("monitor_for_presentation", None)),
        "how presentations are shown",
    ),
)
