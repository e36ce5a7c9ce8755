"""Foreign task bundles: folders with an instruction, a set-up script and a reward script.

    read_bundle -> Bundle -> refusals (static checks) -> import_bundles -> OUT (copies and index) -> families -> TaskInstance

No code of a bundle runs on the host. Set-up, solution, web application and reward script run inside the desktop's container, as
the agent's user, under limits; the host alone reads the verdict.
"""
