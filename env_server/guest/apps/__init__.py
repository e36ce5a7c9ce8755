"""Applications that run only while a task uses them: browser, VLC, GIMP, Thunderbird, terminal, Visual Studio Code.

`on_demand` says what each is to the rest of the guest; one file each has the application and, in its ``*Tools`` class, the
agent's API of it, one public method per action of `common.actions.tables.apps`. `catalog` lists them.
"""
