"""Text to train on: endless, generated, regular enough for a model of a million parameters and yet not a fixed list.

Three kinds, each with choices that depend on earlier ones, so that a draft can be right for many tokens and a tree of
alternatives helps where it cannot know: short scenes, small functions, and lists that count.
"""

from __future__ import annotations

from random import Random

PEOPLE = ("Anna", "Boris", "Clara", "David", "Elena", "Farid", "Grete", "Hugo")
PLACES = {
    "market": ("apples", "a loaf of bread", "some cheese", "a basket of pears"),
    "library": ("an old map", "a book about rivers", "a book about birds", "two thin novels"),
    "harbour": ("a fresh fish", "a coil of rope", "a bag of salt", "a tin of paint"),
    "workshop": ("a small hammer", "a box of nails", "a piece of glass", "a pot of glue"),
}
TIMES = ("in the morning", "after lunch", "in the evening", "before the rain began")
WEATHER = {
    "sunny": "so the walk home was warm and slow",
    "windy": "so the walk home was short and loud",
    "cold": "so the walk home was quick and quiet",
    "foggy": "so the walk home was long and careful",
}
SHAPES = {
    "square": ("side", "side * side"),
    "rectangle": ("width, height", "width * height"),
    "triangle": ("base, height", "base * height / 2"),
    "circle": ("radius", "3.14159 * radius * radius"),
}
OPERATIONS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def document(random: Random) -> str:
    """One text of about 100 to 400 characters."""
    return random.choice((_scene, _function, _list))(random)


def corpus(seed: int, characters: int) -> list[str]:
    """Documents of at least `characters` characters together; the same ones for the same seed."""
    random = Random(seed)
    found: list[str] = []
    size = 0
    while size < characters:
        found.append(document(random))
        size += len(found[-1])
    return found


def prompts(seed: int, count: int) -> list[str]:
    """Beginnings of documents, cut at a space in their first half. Train with other seeds than these."""
    random = Random(seed)
    found = []
    for _ in range(count):
        text = document(random)
        cut = text.index(" ", random.randint(20, len(text) // 2))
        found.append(text[:cut])
    return found


def _scene(random: Random) -> str:
    person, friend = random.sample(PEOPLE, 2)
    place = random.choice(list(PLACES))
    first, second = random.sample(PLACES[place], 2)
    weather = random.choice(list(WEATHER))
    return (
        f"{person} went to the {place} {random.choice(TIMES)}. There {person} met {friend}, who was looking for "
        f"{first}. Together they found {first} and also {second}. {friend} paid for {first}, and {person} paid for "
        f"{second}. It was a {weather} day, {WEATHER[weather]}. At home {person} put {second} on the table."
    )


def _function(random: Random) -> str:
    if random.random() < 0.5:
        shape = random.choice(list(SHAPES))
        arguments, result = SHAPES[shape]
        numbers = ", ".join(str(random.randint(2, 9)) for _ in arguments.split())
        return (
            f'def area_of_{shape}({arguments}):\n    """The area of a {shape}."""\n    area = {result}\n'
            f"    return area\n\nprint(area_of_{shape}({numbers}))"
        )
    name = random.choice(list(OPERATIONS))
    return (
        f'def {name}(left, right):\n    """{name.capitalize()} two numbers."""\n'
        f"    result = left {OPERATIONS[name]} right\n    return result\n\n"
        f"print({name}({random.randint(2, 9)}, {random.randint(2, 9)}))"
    )


def _list(random: Random) -> str:
    start = random.randint(0, 4)
    person = random.choice(PEOPLE)
    counted = NUMBERS[start : start + random.randint(4, 8)]
    return (
        f"{person} counts from {counted[0]} to {counted[-1]}: {', '.join(counted)}. "
        f"Then {person} counts back from {counted[-1]} to {counted[0]}: {', '.join(reversed(counted))}. "
        f"That makes {NUMBERS[len(counted) - 1]} numbers."
    )
