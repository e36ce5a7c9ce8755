"""Tasks found by random walks on a desktop: the difference that a walk makes becomes an instruction and a checker.

`walks` draws start states and walks, `calc`, `files`, `impress` and `writer` read differences, `wording` says them, and
`task_file` stores tasks and loads them as families. Desktops play them in `env_server.serving.synthesis`. After GUI-Bee (arXiv
2501.13896) and Explorer (arXiv 2502.11357), with scripted walks and templates in place of models.
"""
