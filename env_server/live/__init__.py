"""One desktop for a person: its screen in a web page, acted on through the same requests as an agent's."""
