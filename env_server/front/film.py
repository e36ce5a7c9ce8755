"""A film of a session: the screenshots that its client took, at the times at which it took them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

_MAX_FRAMES = 1000
_MAX_BYTES = 64 << 20
_LAST_FRAME_S = 1.0
"""Time for which the last screen is shown."""
_MILLISECOND = Fraction(1, 1000)


def encoder() -> Any:
    """The module that encodes films. Raises `ImportError` where it is not installed."""
    import av

    return av


class Film:
    """Screens of one recording. Not thread-safe: a session takes one call at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._frames: list[tuple[float, bytes]] = []
        """(seconds since the beginning, PNG)"""

    def add(self, png: bytes) -> None:
        """The screen of now. Where there are too many, every second one goes, so that the film keeps its length."""
        self._frames.append((self._clock() - self._began, png))
        while len(self._frames) > _MAX_FRAMES or (
            len(self._frames) > 1 and sum(len(png) for _, png in self._frames) > _MAX_BYTES
        ):
            del self._frames[1::2]

    def __len__(self) -> int:
        return len(self._frames)

    def mp4(self) -> bytes:
        """The film as H.264 in MP4. Needs at least one screen; all have the size of the first."""
        from PIL import Image

        av, out = encoder(), io.BytesIO()
        with av.open(out, "w", format="mp4") as container:
            stream: Any = None
            for at, png in [*self._frames, (self._frames[-1][0] + _LAST_FRAME_S, self._frames[-1][1])]:
                with Image.open(io.BytesIO(png)) as screen:
                    even = screen.convert("RGB").crop((0, 0, screen.width & ~1, screen.height & ~1))  # the encoder's terms
                if stream is None:
                    stream = container.add_stream("libx264", rate=30, options={"preset": "veryfast"})
                    stream.width, stream.height, stream.pix_fmt = even.width, even.height, "yuv420p"
                    stream.time_base = stream.codec_context.time_base = _MILLISECOND
                frame = av.VideoFrame.from_image(even)
                frame.pts, frame.time_base = round(at * 1000), _MILLISECOND
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return out.getvalue()
