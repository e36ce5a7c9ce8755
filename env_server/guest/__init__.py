"""The code that runs inside a desktop's container, next to the applications it drives.

Runs on the image's own Python 3.11 with python3-xlib and python3-uno; imports nothing of this project outside this folder
and no third-party package besides those two. The host side talks to it through `guest.wire` frames.
"""
