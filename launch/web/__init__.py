"""The pages that show a run: the dashboard of one that is under way, the replay of its episodes.

    run folder ── files ──────────────────────────► snapshot (pure) ──► JSON once a second ─┐
    broker, env_servers ── status, desktops ──────►                                         ├─► server ──► page/
    trajectories/ ── episodes, samples, pictures ─► episodes ─────────► JSON when asked ────┘      │
    run folder ◄── request files, controls.jsonl ◄── controls ◄── POST, after a confirmation ──────┘

Only `controls` writes. Rules: no torch, no drawing (that is `launch.report.charts`), and no process of the run waits for a page.
"""
