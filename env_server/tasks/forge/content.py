"""What the forged files are about: people, products, places, dates and money, drawn from word lists.

Pure: everything comes from the `random.Random` that is handed in, nothing from a clock. Names are short and contain neither one
another nor a number, so that a text names exactly one thing in a file.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass

FIRST_NAMES = tuple(
    """Adela Bruno Carla Dmitri Elena Farid Greta Hugo Ingrid Jonas Katya Lorenz Marta Nadia Oscar Petra Quentin Rosa Stefan
    Tamara Ulrich Vera Wanda Xavier Yusuf Zoe""".split()  # noqa: SIM905
)
LAST_NAMES = tuple(
    """Albrecht Barros Castell Dupont Ekberg Fontana Gruber Hansen Ivanov Jansen Keller Lindqvist Moreau Novak Okafor Pereira
    Quiroga Rossi Schubert Tanaka Ueda Varga Weber Xanthos Yilmaz Zeller""".split()  # noqa: SIM905
)
PRODUCTS = tuple(
    """Backpack Binder Bookcase Calculator Chair Clipboard Cooler Desk Easel Envelope Flashlight Folder Heater Keyboard Lamp
    Monitor Mousepad Organizer Paperweight Printer Projector Ruler Scanner Shelf Speaker Stapler Tablet Thermos Toolbox
    Tripod Whiteboard""".split()  # noqa: SIM905
)
CITIES = tuple(
    """Antwerp Bergen Cordoba Dresden Esbjerg Fukuoka Geneva Hobart Izmir Jaipur Kigali Leeds Malmo Nairobi Oporto Quito Rabat
    Salta Turin Utrecht Verona Winnipeg""".split()  # noqa: SIM905
)
DEPARTMENTS = ("Accounting", "Engineering", "Logistics", "Marketing", "Procurement", "Research", "Sales", "Support", "Training")
CATEGORIES = ("Catering", "Equipment", "Insurance", "Postage", "Rent", "Software", "Telephone", "Travel", "Utilities")
STATES = ("Cancelled", "Delivered", "Ordered", "Packed", "Pending", "Returned", "Shipped")
COMPANIES = tuple(
    """Ardent Brightwater Cobblestone Driftwood Evergreen Falconer Greystone Hartwell Ironbridge Juniper Kingfisher
    Larkspur Meridian Northgate Oakhurst""".split()  # noqa: SIM905
)
EVENTS = ("conference", "fair", "inspection", "meeting", "open day", "seminar", "summer party", "workshop")
ROOMS = ("Amber", "Birch", "Cedar", "Delta", "Garnet", "Harbour", "Indigo", "Magnolia", "Opal", "Saffron")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

COLORS = {"red": "FF0000", "green": "00B050", "blue": "0070C0", "orange": "FFC000", "purple": "7030A0", "yellow": "FFFF00"}
"""Colours with one name each, far from one another."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings, as they stand in a sheet from A1 on."""

    title: str
    """A word for the whole, good as a sheet's or file's name."""
    headings: tuple[str, ...]
    rows: tuple[tuple[str | int | float | datetime.date, ...], ...]
    amounts: tuple[int, ...]
    """Which columns (from 0) hold numbers that one adds up."""

    @property
    def last_row(self) -> int:
        """The sheet's row of the last entry."""
        return len(self.rows) + 1

    def column(self, index: int) -> list[str | int | float | datetime.date]:
        """One column without its heading."""
        return [row[index] for row in self.rows]


def people(rng: random.Random, count: int) -> list[str]:
    """Different full names; no first or last name comes twice."""
    return [f"{first} {last}" for first, last in zip(rng.sample(FIRST_NAMES, count), rng.sample(LAST_NAMES, count), strict=True)]


def day(rng: random.Random, *, year: int | None = None) -> datetime.date:
    """A day between 2021 and 2025."""
    first = datetime.date(year or rng.randrange(2021, 2026), 1, 1)
    return first + datetime.timedelta(days=rng.randrange(365))


def spoken(date: datetime.date) -> str:
    """As in a letter: `4 March 2024`."""
    return f"{date.day} {MONTHS[date.month - 1]} {date.year}"


def price(rng: random.Random, low: int = 3, high: int = 400) -> float:
    """An amount with cents that are not round."""
    return rng.randrange(low, high) + rng.choice((0.25, 0.45, 0.5, 0.75, 0.95))


def numbers(rng: random.Random, count: int, low: int, high: int) -> list[int]:
    """Different whole numbers."""
    return rng.sample(range(low, high), count)


def _sales(rng: random.Random, count: int) -> Table:
    units = numbers(rng, count, 11, 400)
    rows = tuple(
        (product, rng.choice(CITIES), num, price(rng)) for product, num in zip(rng.sample(PRODUCTS, count), units, strict=True)
    )
    return Table("Sales", ("Product", "City", "Units", "Price"), rows, (2,))


def _staff(rng: random.Random, count: int) -> Table:
    pay = numbers(rng, count, 240, 950)
    rows = tuple((name, rng.choice(DEPARTMENTS), day(rng), num * 100) for name, num in zip(people(rng, count), pay, strict=True))
    return Table("Staff", ("Name", "Department", "Hired", "Salary"), rows, (3,))


def _expenses(rng: random.Random, count: int) -> Table:
    year = rng.randrange(2021, 2026)
    days = sorted(day(rng, year=year) for _ in range(count))
    amounts = rng.sample([value + 0.5 for value in range(20, 900)], count)
    rows = tuple(
        (date, rng.choice(CATEGORIES), name, amount) for date, name, amount in zip(days, people(rng, count), amounts, strict=True)
    )
    return Table("Expenses", ("Date", "Category", "Paid by", "Amount"), rows, (3,))


def _stock(rng: random.Random, count: int) -> Table:
    values = numbers(rng, count * 2, 5, 900)
    rows = tuple(
        (product, rng.choice(CITIES), values[2 * index], values[2 * index + 1])
        for index, product in enumerate(rng.sample(PRODUCTS, count))
    )
    return Table("Stock", ("Item", "Warehouse", "In stock", "Sold"), rows, (2, 3))


def table(rng: random.Random, count: int) -> Table:
    """A table of one of several kinds with ``count`` (at most 25) entries; column A and every amount has different values."""
    return rng.choice((_sales, _staff, _expenses, _stock))(rng, count)


def product_table(rng: random.Random, count: int) -> Table:
    """A table whose first column holds different product names and that has at least one column of amounts."""
    return rng.choice((_sales, _stock))(rng, count)


def file_stem(rng: random.Random, title: str) -> str:
    """A file name's stem such as `sales-leeds-2024`."""
    return f"{title.lower()}-{rng.choice(CITIES).lower()}-{rng.randrange(2021, 2026)}"


def sentence(rng: random.Random) -> str:
    """A plain sentence of business prose."""
    return rng.choice(_SENTENCES).format(
        company=rng.choice(COMPANIES),
        city=rng.choice(CITIES),
        department=rng.choice(DEPARTMENTS),
        product=rng.choice(PRODUCTS).lower(),
        month=rng.choice(MONTHS),
        num=rng.randrange(12, 90),
        room=rng.choice(ROOMS),
    )


_SENTENCES = (
    "The branch in {city} reports {num} new customers for {month}.",
    "Our partner {company} will deliver the {product} in the second week of {month}.",
    "The {department} team has moved to the room {room} on the third floor.",
    "Please send all invoices to the office in {city} until the end of {month}.",
    "The board approved {num} additional working days for the {department} team.",
    "Every visitor receives a badge and a printed map at the entrance.",
    "The figures of {month} were checked twice and signed by {department}.",
    "Customers in {city} asked for a cheaper {product} with a longer guarantee.",
    "{company} extended its contract for another {num} months.",
    "The next inspection in {city} is planned for {month}.",
    "Travel costs are refunded within {num} days after the receipt arrives.",
    "The new {product} passed all tests and goes on sale in {month}.",
)


def sentences(rng: random.Random, count: int) -> list[str]:
    """Different sentences."""
    found: list[str] = []
    while len(found) < count:
        candidate = sentence(rng)
        if candidate not in found:
            found.append(candidate)
    return found


def paragraph(rng: random.Random, count: int = 2) -> str:
    """Some sentences in a row."""
    return " ".join(sentences(rng, count))
