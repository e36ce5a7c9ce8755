"""The network that a task wants, and what may do for it: stand-ins and a mirror of web sites."""
