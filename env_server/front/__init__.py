"""The desktops of this host over HTTP, for programs that are none of ours: agents, trainers, benchmarks.

    agents, trainers ──HTTP, WebSocket──┐             ┌──► openenv ──────┐
    OSWorld's agents ──HTTP─────────────┼──► access ──┼──► osworld_face ─┼──► Sessions ──► DesktopService ──► desktops
    assistants ────────HTTP─────────────┘   (token)   └──► mcp_face ─────┤    (leases)
                 └─────stdio────────────────────────────► mcp_face ──────┘

A session is the lease of one desktop and the task on it. `app` puts the faces together; a face turns the requests of one
published protocol into calls of a session and holds no state of its own.
"""
