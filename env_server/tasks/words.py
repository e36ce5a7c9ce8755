"""Word lists that make instances differ. Short common words: they are one or two tokens in most vocabularies."""

from __future__ import annotations

import random

NOUNS = tuple(
    """anchor apple arrow badge bagel bamboo banana barrel basket beach beaver berry blanket boat bottle branch bread
    breeze bridge broom bucket butter button cabin cactus camel camera candle canoe canyon carbon carpet carrot castle
    cedar cherry circle citrus cliff clock cloud clover cobalt coconut coffee comet compass copper coral cotton cousin
    crater cricket crystal cushion daisy desert diamond dinner dolphin donkey dragon drawer eagle engine falcon feather
    fence fern fiddle flame flute forest fossil fountain galaxy garden garlic ginger giraffe glacier glove grape gravel
    guitar hammer harbor harvest hazel helmet heron honey hotel iron island ivory jacket jasmine jelly jungle kettle
    kitchen kite ladder lagoon lantern laptop lemon letter lily lizard llama locket lotus magnet mango maple marble
    market meadow melon metal mirror mitten moon mosaic motor mountain muffin museum needle nickel notebook oasis ocean
    olive onion orange orchid otter oyster paddle palace panda paper parrot pasta peach pebble pelican pencil pepper
    piano pigeon pillow pine pirate planet plaza pocket pony poppy potato pumpkin puzzle quartz rabbit raven ribbon rice
    river robin rocket rose saddle salad salmon sandal scarf shadow shell silver spider spoon spruce squid star station
    stone storm sugar summit sunset table tailor teapot temple thunder tiger timber tomato tower tractor trumpet tulip
    tunnel turtle valley vanilla velvet village violet violin walnut water weasel whale wheat willow window winter
    wizard wolf yogurt zebra""".split()  # noqa: SIM905
)

FOLDERS = tuple(
    """archive backup blue budget drafts family finance garden green guests history invoices letters mail music
    notes office orders photos plans projects red reports school shared taxes team travel videos work yellow""".split()  # noqa: SIM905
)

ENDINGS = ("txt", "csv", "md", "log", "json")


def nouns(rng: random.Random, count: int) -> list[str]:
    """``count`` different nouns."""
    return rng.sample(NOUNS, count)


def file_names(rng: random.Random, count: int) -> list[str]:
    """``count`` different file names such as `harbor-42.csv`."""
    return [f"{noun}-{rng.randrange(10, 100)}.{rng.choice(ENDINGS)}" for noun in nouns(rng, count)]
