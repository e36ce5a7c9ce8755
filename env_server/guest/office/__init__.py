"""LibreOffice: one process for Calc, Writer and Impress, spoken to by UNO over a pipe.

`process` starts it and makes its calls; `sheet` is the warm sheet of tasks without a file; `documents` opens files; the `*_tools`
files are the agent's API, one method per action.
"""
