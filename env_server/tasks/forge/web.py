"""Web pages in the browser, by mouse and keyboard. What was sent is read by the getter `web_result`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from computerrl.env_server.tasks.elements import BUTTON, CHECK, ENTRY, RADIO
from computerrl.env_server.tasks.forge import content, pages
from computerrl.env_server.tasks.forge.plan import Forged, Move, forge_family, key, typed
from computerrl.env_server.tasks.forge.scripts import click_on, listed, wording

_PAGE = "page.html"


def _web_task(
    said: str,
    data: bytes,
    *,
    result: Mapping[str, object],
    near_result: Mapping[str, object],
    solution: Sequence[Move],
    near_miss: Sequence[Move],
) -> Forged:
    return Forged(
        said,
        {_PAGE: data},
        wanted=dict,
        nearly=dict,
        solution=solution,
        near_miss=near_miss,
        opened=(_PAGE,),
        result=dict(result),
        near_result=dict(near_result),
    )


def _order_form(rng: random.Random, level: int) -> Forged:
    labels = ["Name", "City", "Quantity", "Telephone"][: level + 1]
    values = {
        "Name": content.people(rng, 1)[0],
        "City": rng.choice(content.CITIES),
        "Quantity": str(rng.randrange(2, 90)),
        "Telephone": f"0{rng.randrange(10, 99)} {rng.randrange(10000, 99999)}",
    }
    products = rng.sample(content.PRODUCTS, 5)
    product = rng.choice(products)
    rows = [*(pages.entry(label, label.lower()) for label in labels), pages.choice("Product", "product", sorted(products))]
    wishes = listed([f"{label} {values[label]}" for label in labels])
    said = wording(
        rng,
        "Fill in the order form: {wishes}. The product is {product}. Then send it.",
        "Order a {product} with this form ({wishes}) and send the order.",
        wishes=wishes,
        product=product,
    )

    def script(texts: Sequence[str]) -> list[Move]:
        moves: list[Move] = [click_on(None, ENTRY)]
        for text in texts:
            moves += [typed(text), key("tab")]
        return [*moves, typed(product), click_on("Send order", BUTTON)]

    texts = [values[label] for label in labels]
    wrong = [*texts[:-1], texts[-1] + "1"]
    result = {**{label.lower(): values[label] for label in labels}, "product": product}
    return _web_task(
        said,
        pages.page("Order form", rows, send="Send order"),
        result=result,
        near_result={**result, labels[-1].lower(): wrong[-1]},
        solution=script(texts),
        near_miss=script(wrong),
    )


_TOPICS = ("Events", "Invoices", "News", "Offers", "Reminders", "Reports", "Surveys", "Training")


def _preferences(rng: random.Random, level: int) -> Forged:
    topics = sorted(rng.sample(_TOPICS, 3 + level))
    before = {topic: rng.random() < 0.5 for topic in topics}
    *turned, other = rng.sample(topics, level + 1)
    ways = ("Every day", "Every week", "Every month")
    way, old = rng.sample(ways, 2)
    rows = [pages.box(topic, topic.lower(), is_checked=before[topic]) for topic in topics]
    rows += [pages.radio(text, "rhythm", is_checked=text == old) for text in ways]
    wishes = listed([f"{topic} {'off' if before[topic] else 'on'}" for topic in sorted(turned)])
    said = wording(
        rng,
        "Change the subscription: switch {wishes}, choose {way}, and save the preferences.",
        "In these preferences, turn {wishes}; messages should come {way}. Save.",
        wishes=wishes,
        way=way.lower(),
    )

    def script(names: Sequence[str]) -> list[Move]:
        return [*(click_on(name, CHECK) for name in names), click_on(way, RADIO), click_on("Save preferences", BUTTON)]

    def outcome(names: Sequence[str]) -> dict[str, object]:
        return {**{topic.lower(): before[topic] ^ (topic in names) for topic in topics}, "rhythm": way}

    wrong = [*turned[:-1], other]
    return _web_task(
        said,
        pages.page("Subscription", rows, send="Save preferences"),
        result=outcome(turned),
        near_result=outcome(wrong),
        solution=script(sorted(turned)),
        near_miss=script(sorted(wrong)),
    )


def _approve_invoices(rng: random.Random, level: int) -> Forged:
    companies = sorted(rng.sample(content.COMPANIES, 4 + level))
    amounts = dict(zip(companies, content.numbers(rng, len(companies), 100, 990), strict=True))
    limit = sorted(amounts.values())[-level] - 1
    due = [company for company in companies if amounts[company] > limit]
    rows = [pages.box(f"{company}: {amounts[company]} dollars", company.lower(), is_checked=False) for company in companies]
    said = wording(
        rng,
        "Tick every invoice of more than {limit} dollars and approve them.",
        "All invoices above {limit} dollars can be approved: select exactly these and approve.",
        limit=limit,
    )

    def script(names: Sequence[str]) -> list[Move]:
        ticks = [click_on(f"{name}: {amounts[name]} dollars", CHECK) for name in names]
        return [*ticks, click_on("Approve selected", BUTTON)]

    def outcome(names: Sequence[str]) -> dict[str, object]:
        return {company.lower(): company in names for company in companies}

    wrong = [*due, next(company for company in companies if company not in due)]
    return _web_task(
        said,
        pages.page("Open invoices", rows, send="Approve selected"),
        result=outcome(due),
        near_result=outcome(wrong),
        solution=script(due),
        near_miss=script(wrong),
    )


def _shopping_cart(rng: random.Random, level: int) -> Forged:
    products = sorted(rng.sample(content.PRODUCTS, 4 + level))
    wished = {product: rng.randrange(1, 4) for product in sorted(rng.sample(products, level))}
    lines = "".join(pages.counter(product, product.lower(), f"{content.price(rng):.2f}") for product in products)
    said = wording(
        rng,
        "Put {wishes} into the cart and check out.",
        "Buy {wishes}: add them to the cart, then check out.",
        wishes=listed([f"{count} x {product}" for product, count in wished.items()]),
    )

    def script(counts: Mapping[str, int]) -> list[Move]:
        adds = [click_on(f"Add {product}", BUTTON) for product, count in counts.items() for _ in range(count)]
        return [*adds, click_on("Check out", BUTTON)]

    def outcome(counts: Mapping[str, int]) -> dict[str, object]:
        return {product.lower(): counts.get(product, 0) for product in products}

    last = list(wished)[-1]
    wrong = {**wished, last: wished[last] + 1}
    return _web_task(
        said,
        pages.page("Office shop", [f"<table>{lines}</table>"], send="Check out"),
        result=outcome(wished),
        near_result=outcome(wrong),
        solution=script(wished),
        near_miss=script(wrong),
    )


FAMILIES = (
    forge_family("web-order-form", "chromium", "fill in a form with text fields and a drop-down list", _order_form),
    forge_family("web-preferences", "chromium", "check boxes and radio buttons, some of them set already", _preferences),
    forge_family("web-approve-invoices", "chromium", "tick what exceeds an amount and approve", _approve_invoices),
    forge_family("web-shopping-cart", "chromium", "add products to a cart by buttons and check out", _shopping_cart),
)
