"""Metrics over sound and film, and over a player at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from computerrl.env_server.tasks.osworld.metrics.files import load, xml_of
from computerrl.env_server.tasks.osworld.metrics.general import Rules, score
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule, matches
from computerrl.env_server.tasks.osworld.metrics.similarity import average_hash
from computerrl.env_server.tasks.reading import limits
from computerrl.env_server.tasks.reading.limits import within

_RATE = 8000
"""Sound is compared at this rate, one channel: enough to tell recordings apart."""
_MAX_SOUND_S = 900
_CONTAINERS = "aac,aiff,asf,avi,flac,flv,m4v,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpeg,mpegts,mpegvideo,ogg,wav,w64,gif"
"""Formats of films and recordings that are read, by the library's names."""
_BANDS = 32
_MAX_HASH_DISTANCE = 26
"""Of 256 bits, a tenth: the same picture after another compression."""


def compare_audios(result: str, expected: str) -> float:
    """How alike two recordings sound, 0 to 1: the spectra over time, each brought to the same loudness.

    Recordings whose lengths differ by more than a tenth are different.
    """
    import numpy as np

    if load(result, Path.read_bytes) == load(expected, Path.read_bytes):
        load(expected, _sound)
        return 1.0
    found, wanted = load(result, _sound), load(expected, _sound)
    if not len(found) or not len(wanted) or abs(len(found) - len(wanted)) > 0.1 * max(len(found), len(wanted)):
        return 0.0
    one, other = _spectrum(found), _spectrum(wanted)
    length = min(len(one), len(other))
    one, other = one[:length].ravel(), other[:length].ravel()
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    if norms == 0:
        return score(not one.any() and not other.any())
    return max(0.0, min(1.0, float(one @ other) / norms))


def _opened(place: Path) -> Any:
    """A film or recording. Play lists are none: they would name files of this host and addresses."""
    import av

    return av.open(str(place), options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"})


def _sound(place: Path) -> Any:
    import av
    import numpy as np

    resampler = av.AudioResampler(format="flt", layout="mono", rate=_RATE)
    parts = []
    num_samples = 0
    with _opened(place) as container:
        for frame in container.decode(audio=0):
            # A sample of a slow recording becomes many here.
            within("seconds of sound", num_samples // _RATE + frame.samples // max(1, frame.sample_rate), _MAX_SOUND_S)
            for piece in resampler.resample(frame):
                parts.append(piece.to_ndarray()[0])
                num_samples += len(parts[-1])
            within("seconds of sound", num_samples // _RATE, _MAX_SOUND_S)
    sound = np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)
    if not np.isfinite(sound).all():
        raise ValueError("samples that are no numbers")
    return sound


def _spectrum(sound: Any) -> Any:
    """Loudness in bands over time, without its mean: rows of 64 ms."""
    import numpy as np

    size = _RATE * 64 // 1000
    frames = (
        sound[: len(sound) // size * size].reshape(-1, size)
        if len(sound) >= size
        else np.pad(sound, (0, size - len(sound)))[None]
    )
    power = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1)) ** 2
    bands = np.stack([band.sum(axis=1) for band in np.array_split(power[:, 1:], _BANDS, axis=1)], axis=1)
    loudest = bands.max()
    if loudest <= 0:
        return np.zeros_like(bands)
    # 60 dB below the loudest is silence.
    levels = np.clip(10 * np.log10(np.maximum(bands / loudest, 1e-12)), -60, 0) + 60
    return levels - levels.mean(axis=0, keepdims=True) * 0.5


def compare_videos(result: str, expected: str, *, max_frames_to_check: int = 100, threshold: int = _MAX_HASH_DISTANCE) -> float:
    """The first pictures of both films are alike one by one."""
    found, wanted = (
        load(result, lambda place: _hashes(place, max_frames_to_check)),
        load(expected, lambda place: _hashes(place, max_frames_to_check)),
    )
    if len(found) != len(wanted) or not wanted:
        return 0.0
    distances = [sum(a != b for a, b in zip(one, other, strict=True)) for one, other in zip(found, wanted, strict=True)]
    return score(max(distances) <= threshold)


def _hashes(place: Path, max_frames: int) -> list[Any]:
    def frames() -> Iterator[Any]:
        with _opened(place) as container:
            container.streams.video[0].codec_context.options = {"max_pixels": str(limits.MAX_PIXELS)}
            for index, frame in enumerate(container.decode(video=0)):
                if index >= max_frames:
                    return
                within("pixels", frame.width * frame.height, limits.MAX_PIXELS)
                yield average_hash(frame.to_image())

    return list(frames())


def check_mp3_meta(result: str, rules: Rules) -> float:
    """Every tag meets its rule; tags are named in words (``artist``) or as in the file (``TPE1``). A missing one is empty."""
    import mutagen.easyid3
    import mutagen.id3

    words, frames = load(result, mutagen.easyid3.EasyID3), load(result, mutagen.id3.ID3)

    def value(key: str) -> str:
        return str(frames[key]) if key in frames else ",".join(words.get(key, []))

    return score(all(matches(value(key), rule) for key, rule in rules.items()))


def is_vlc_playing(result: str, rules: Rules) -> float:
    """VLC's status says that it plays the expected file or address."""
    root = load(result, lambda place: xml_of(place.read_bytes()))
    if root.findtext("state") != "playing":
        return 0.0
    about = {node.get("name"): node.text or "" for node in root.iterfind("information/category[@name='meta']/info")}
    if rules["type"] == "file_name":
        wanted = Path(rules["file_name"]).name
        names = {Path(unquote(about.get(key, ""))).name for key in ("filename", "url")}
        return score(wanted in names or Path(unquote(about.get("title", ""))).name == wanted)
    if rules["type"] == "url":
        wanted = rules["url"]
        last = Path(urlsplit(wanted).path).name
        return score(about.get("url") == wanted or (bool(last) and last in {about.get("filename"), about.get("title")}))
    raise BadRule(f"is_vlc_playing of type {rules['type']!r}")


def is_vlc_fullscreen(result: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """VLC's window is as large as the screen."""
    return score(result["width"] == expected["width"] and result["height"] == expected["height"])
