"""All metrics by name. Each is a pure function ``metric(result, expected, **options) -> float`` in 0..1 over files and values.

Files are given as paths on the host. A metric that cannot open one raises `BrokenFile` (see `files`), and the evaluator decides
whether that is the agent's doing. The modules import their libraries when they are first used, so that naming metrics costs
nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

Metric = Callable[..., float]

_MODULES = {
    "general": (
        "check_include_exclude", "check_direct_json_object", "exact_match", "match_in_list", "literal_match", "is_in_list",
        "fuzzy_match",
        "check_list", "check_json", "check_csv", "file_contains", "diff_text_file", "check_line_number", "compare_text_file",
        "compare_python_pure_text", "run_sqlite3", "is_in_vm_clickboard", "compare_terminal_and_txt", "check_accessibility_tree",
    ),
    "system": (
        "is_utc_0", "check_gnome_favorite_apps", "check_moved_jpgs", "check_text_enlarged", "is_shortcut_on_desktop",
        "compare_archive", "compare_zip_files", "compare_result_files", "compare_epub",
    ),
    "config_files": (
        "check_config_status", "check_json_settings", "check_json_keybindings", "compare_config", "is_extension_installed",
        "check_html_background_image",
        "check_auto_saving_time", "check_presenter_console_disable", "find_default_font", "is_vlc_recordings_folder",
        "check_qt_bgcone", "check_qt_max_volume", "check_qt_minimal_view", "check_qt_slider_colours",
        "check_global_key_play_pause",
        "check_one_instance_when_started_from_file", "check_play_and_exit",
    ),
    "mail": ("check_thunderbird_prefs", "check_thunderbird_filter", "check_thunderbird_folder"),
    "browser": (
        "is_expected_active_tab", "is_expected_active_tab_approximate", "is_expected_url_pattern_match", "is_expected_tabs",
        "is_expected_bookmarks", "is_expected_installed_extensions", "is_expected_search_query", "is_cookie_deleted",
        "check_history_deleted", "check_enabled_experiments", "check_font_size", "compare_htmls", "is_added_to_steam_cart",
    ),
    "media": ("compare_audios", "compare_videos", "check_mp3_meta", "is_vlc_playing", "is_vlc_fullscreen"),
    "images": ("compare_images", "compare_image_list"),
    "image_edits": (
        "check_structure_sim", "check_structure_sim_resized", "check_file_exists_and_structure_sim", "check_image_size",
        "check_structure_sim_with_threshold",
        "check_image_file_size", "check_image_mirror", "check_brightness_decrease_and_structure_sim", "check_green_background",
        "check_saturation_increase_and_structure_sim", "check_contrast_increase_and_structure_sim", "check_sharper",
        "check_palette_and_structure_sim", "check_textbox_on_leftside", "check_triangle_position",
    ),
    "pdf": ("compare_pdfs", "check_pdf_pages", "compare_pdf_images", "is_gold_text_included_in_pdf"),
    "table": ("compare_table",),
    "sheets": ("compare_csv", "compare_conference_city_in_order", "compare_spreadsheet"),
    "slides": (
        "check_transition", "check_image_stretch_and_center", "check_slide_orientation_Portrait", "check_page_number_colors",
        "evaluate_presentation_fill_to_rgb_distance", "check_left_panel", "simple_pptx_compare",
    ),
    "slides_compare": ("compare_pptx_files",),
    "text_documents": (
        "compare_docx_files", "compare_docx_files_and_ignore_new_lines", "compare_docx_tables", "compare_docx_images",
        "compare_line_spacing", "compare_docx_lines", "compare_references", "compare_unique_train_records", "fuzzy_place_math",
        "simple_docx_compare",
    ),
    "text_styles": (
        "check_tabstops", "compare_subscript_contains", "has_page_numbers_in_footers", "compare_font_names",
        "is_first_line_centered",
        "check_highlighted_words", "evaluate_strike_through_last_paragraph", "evaluate_colored_words_in_tables",
        "check_italic_font_size_14", "contains_page_break",
    ),
}  # fmt: skip
METRICS: dict[str, str] = {name: module for module, names in _MODULES.items() for name in names}
"""Metric -> the module here that has it."""

ON_DESKTOP = frozenset({"check_python_file_by_test_suite"})
"""Metrics that run the agent's program: carried out inside the container (`env_server.tasks.osworld.on_desktop`)."""

REFUSED: dict[str, tuple[str, str]] = {
    "compare_image_text": (
        "unsupported",
        "metric compare_image_text reads text in pictures, and no text recognition is installed",
    ),
    "check_python_file_by_gold_file": ("unsupported", "metric check_python_file_by_gold_file has no published meaning"),
}
"""Metrics that are known and cannot be honoured: kind of reason and the reason."""


def metric(name: str) -> Metric:
    """The function called ``name``. Raises `KeyError` for one that is not in `METRICS`."""
    module: Any = importlib.import_module(f"{__name__}.{METRICS[name]}")
    function: Metric = getattr(module, name)
    return function
