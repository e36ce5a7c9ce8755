"""Web pages that the families make: one HTML file with its script, which keeps what was sent in `window.result`.

A page knows no right answer: it says what was entered, once, and the checker on the host compares. It leads nowhere else.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

_STYLE = """
html { zoom: 0.5 }
body { font: 15px 'Liberation Sans', sans-serif; margin: 12px; max-width: 540px }
h1 { font-size: 20px; margin: 0 0 10px }
label { display: block; margin: 5px 0 }
label > span { display: inline-block; width: 110px }
td, th { padding: 3px 14px 3px 0; text-align: left }
button { margin: 3px 8px 3px 0 }
"""
_SCRIPT = """
window.result = null;
const form = document.querySelector('form');
form.addEventListener('submit', event => {
  event.preventDefault();
  if (window.result !== null) return;
  const found = {};
  for (const field of form.elements) {
    if (!field.name || field.type === 'radio' && !field.checked) continue;
    found[field.name] = field.type === 'checkbox' ? field.checked : field.value;
  }
  for (const line of form.querySelectorAll('[data-count]')) found[line.id] = Number(line.textContent);
  window.result = found;
  document.querySelector('#note').textContent = 'Sent. Thank you.';
  for (const field of form.elements) field.disabled = true;
});
for (const button of form.querySelectorAll('[data-of]')) {
  button.addEventListener('click', () => {
    const line = document.getElementById(button.dataset.of);
    line.textContent = Math.max(0, Number(line.textContent) + Number(button.dataset.step));
  });
}
"""


def page(title: str, rows: Sequence[str], *, send: str) -> bytes:
    """A page with one form; ``send`` is what its last button says."""
    text = html.escape(title)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{text}</title><style>{_STYLE}</style></head>
<body><h1>{text}</h1><form autocomplete="off">
{chr(10).join(rows)}
<button type="submit">{html.escape(send)}</button></form><p id="note" role="status"></p>
<script>{_SCRIPT}</script></body></html>
""".encode()


def entry(label: str, name: str) -> str:
    """A line of text to fill in."""
    return f'<label><span>{html.escape(label)}</span><input name="{name}" type="text" aria-label="{html.escape(label)}"></label>'


def choice(label: str, name: str, options: Sequence[str]) -> str:
    """A drop-down list; the first option says nothing."""
    rows = "".join(f"<option>{html.escape(option)}</option>" for option in ("-", *options))
    return (
        f'<label><span>{html.escape(label)}</span><select name="{name}" aria-label="{html.escape(label)}">{rows}</select></label>'
    )


def box(label: str, name: str, *, is_checked: bool) -> str:
    """A check box."""
    return f'<label><input type="checkbox" name="{name}"{" checked" if is_checked else ""}> {html.escape(label)}</label>'


def radio(label: str, name: str, *, is_checked: bool) -> str:
    """One of several radio buttons called ``name``."""
    checked = " checked" if is_checked else ""
    return f'<label><input type="radio" name="{name}" value="{html.escape(label)}"{checked}> {html.escape(label)}</label>'


def counter(label: str, name: str, detail: str) -> str:
    """A line whose number two buttons change."""
    text = html.escape(label)
    return (
        f"<tr><td>{text}</td><td>{html.escape(detail)}</td>"
        f'<td><button type="button" data-of="{name}" data-step="1" aria-label="Add {text}">+</button>'
        f'<button type="button" data-of="{name}" data-step="-1" aria-label="Remove {text}">-</button></td>'
        f'<td id="{name}" data-count>0</td></tr>'
    )
