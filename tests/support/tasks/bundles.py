"""Task bundles made for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MADE = "/home/user/made"
CHECKS = f"import os\nprint('looks for it')\nprint('REWARD:', 1.0 if os.path.exists('{MADE}') else 0.0)\n"
"""A reward script that pays for the file `MADE`."""
MAKES = f"open('{MADE}', 'w').close()\n"
"""A solution of it."""


def write_bundle(
    folder: Path,
    name: str,
    *,
    reward: str | bytes | None = CHECKS,
    setup: str | None = None,
    solution: str | None = None,
    files: dict[str, str | bytes] | None = None,
    **fields: Any,
) -> Path:
    """Write the bundle ``name`` into ``folder``; None leaves a script out. ``fields`` go into its task file."""
    place = folder / name
    task = {"instruction": f"Make {name}.", "app_type": "os", **fields}
    scripts = {"reward.py": reward, "initial_setup.py": setup, "solution.py": solution, "task.json": json.dumps(task)}
    for path, content in (scripts | (files or {})).items():
        if content is not None:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


HUB_PAGE = """<!doctype html><title>Shop</title><h1 id="offer"></h1><button id="buy">Buy it</button><script type="module">
const sid = new URLSearchParams(location.search).get('sid');
const stored = await (await fetch(`/state?sid=${sid}`)).json();
const state = stored.stored_state ?? {};
document.getElementById('offer').textContent = `${state.offer} for you`;
document.getElementById('buy').addEventListener('click', async () => {
  const bought = { action: 'set_current', state: { ...state, bought: state.offer } };
  await fetch(`/post?sid=${sid}`, { method: 'POST', body: JSON.stringify(bought) });
  document.title = 'Bought';
});
</script>"""
_HUB_CONFIG = """import { defineConfig } from 'vite'
import react from '@vitejs/plugin-react'
import fs from 'fs'
import path from 'path'
import { differences } from './src/differences.js'
import { plain } from '../../shared/plain.mjs'

const STATES = path.join(process.cwd(), '.mock-states')
fs.mkdirSync(STATES, { recursive: true })
const place = (request, name) => path.join(STATES, plain(new URL(request.url, 'http://x').searchParams.get('sid')) + name)
const read = (file) => (fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf-8')) : null)
const answer = (response, value) => {
  response.setHeader('Content-Type', 'application/json')
  response.end(JSON.stringify(value))
}

export default defineConfig({
  plugins: [react(), [{
    name: 'mock-api',
    configurePreviewServer(server) {
      server.middlewares.use('/post', async (request, response, next) => {
        if (request.method !== 'POST') return next()
        let body = ''
        for await (const chunk of request) body += chunk
        const { action, state } = JSON.parse(body)
        if (action === 'set') fs.writeFileSync(place(request, '.first.json'), JSON.stringify(state))
        fs.writeFileSync(place(request, '.json'), JSON.stringify(state))
        answer(response, { success: true })
      })
      server.middlewares.use('/state', (request, response) => answer(response, { stored_state: read(place(request, '.json')) }))
      server.middlewares.use('/go', (request, response) => {
        const [first, now] = [read(place(request, '.first.json')), read(place(request, '.json'))]
        answer(response, { initial_state: first, current_state: now, state_diff: differences(first, now) })
      })
    },
  }]],
})
"""
_DIFFERENCES = """export const differences = (first, now) =>
  Object.fromEntries(Object.entries(now ?? {}).filter(([key, value]) => first?.[key] !== value))
"""


def write_hub(folder: Path, name: str = "shop_mock") -> Path:
    """Write a hub with one built web application, whose configuration keeps states as those of CUA-Gym-Hub do."""
    site = folder / "websites" / name
    files = {
        site / "dist/index.html": HUB_PAGE,
        site / "dist/assets/a.css": "h1 { color: green }",
        site / "vite.config.js": _HUB_CONFIG,
        site / "src/differences.js": _DIFFERENCES,
        site / "package.json": '{"name": "shop", "scripts": {"build": "vite build"}}',
        site / "node_modules/vite/index.js": "throw new Error('not to be loaded')",
        folder / "shared/plain.mjs": "export const plain = (sid) => String(sid).replace(/[^a-zA-Z0-9_-]/g, '')",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
