"""How different two colours look: CIEDE2000 (Sharma, Wu and Dalal 2005, doi 10.1002/col.20070)."""

from __future__ import annotations

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

Lab = tuple[float, float, float]


def difference(first: str, second: str) -> float:
    """Distance of two colours given as RRGGBB; about 1 is the least that an eye sees."""
    return ciede2000(_lab(first), _lab(second))


def _lab(colour: str) -> Lab:
    """CIE L*a*b* of an sRGB colour, white D65."""
    linear = []
    for index in (0, 2, 4):
        value = int(colour[index : index + 2], 16) / 255
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    red, green, blue = linear
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(first: Lab, second: Lab) -> float:
    """Equations 2 to 22 of the paper with all weights 1; names are the paper's."""
    mean_c7 = ((hypot(*first[1:]) + hypot(*second[1:])) / 2) ** 7
    stretch = 1.5 - 0.5 * sqrt(mean_c7 / (mean_c7 + 25**7))
    (l1, c1, h1), (l2, c2, h2) = (_polar(light, stretch * a, b) for light, a, b in (first, second))
    dh = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    if c1 * c2 == 0:
        mean_h = h1 + h2
    elif abs(h1 - h2) <= 180:
        mean_h = (h1 + h2) / 2
    else:
        mean_h = (h1 + h2 + 360) / 2 if h1 + h2 < 360 else (h1 + h2 - 360) / 2
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * _cos(mean_h - 30) + 0.24 * _cos(2 * mean_h) + 0.32 * _cos(3 * mean_h + 6) - 0.20 * _cos(4 * mean_h - 63)
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / sqrt(20 + (mean_l - 50) ** 2)
    s_c = 1 + 0.045 * mean_c
    s_h = 1 + 0.015 * mean_c * t
    rotation = -2 * sqrt(mean_c**7 / (mean_c**7 + 25**7)) * sin(radians(60 * exp(-(((mean_h - 275) / 25) ** 2))))
    lightness, chroma = (l2 - l1) / s_l, (c2 - c1) / s_c
    hue = 2 * sqrt(c1 * c2) * sin(radians(dh / 2)) / s_h
    return sqrt(lightness**2 + chroma**2 + hue**2 + rotation * chroma * hue)


def _polar(light: float, a: float, b: float) -> Lab:
    """Lightness, chroma and hue in degrees, 0 to 360."""
    return light, hypot(a, b), degrees(atan2(b, a)) % 360 if a or b else 0.0


def _cos(angle: float) -> float:
    return cos(radians(angle))
