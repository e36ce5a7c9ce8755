"""Programs of others that play here, each in a virtual environment of its own."""
