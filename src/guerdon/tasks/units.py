r"""Units of measure behind a value: what they are, and by which number one is converted into another.

One table for numbers and for mathematics. Units with a fixed ratio convert (mm and cm, km/h and m/s, acres and square
feet); temperatures, currencies, counts of things, US and imperial measures do not.

    value, unit = split_unit("250 mm", "")                  # "250", millimetres
    ratio(unit, split_unit("25 cm", "")[1])                 # 10: what a value in cm is multiplied by
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple


class Meaning(NamedTuple):
    """One meaning of a unit: its size in base units (metre, kilogram, second, ...), and their powers."""

    size: Fraction
    powers: frozenset[tuple[str, int]]


class Unit(NamedTuple):
    """What stands behind a value.

    Attributes:
        meanings: its meanings (an ounce is a mass or a volume).
        things: what is counted or described, words of the question: apples, flour.
        name: as it was written.
        letters: its parts that were written as a bare letter (`5 m`), which may be a variable, or millions.
    """

    meanings: tuple[Meaning, ...]
    things: frozenset[str]
    name: str
    letters: tuple[str, ...] = ()


_TABLE = """
    m: 1 meter meters metre metres m; 0.01 centimeter centimeters centimetre centimetres cm cms; 1000 kilometer
       kilometers kilometre kilometres km kms; 0.001 millimeter millimeters millimetre millimetres mm; 0.1 decimeter
       decimeters decimetre decimetres dm; 0.000001 micrometer micrometers micrometre micrometres micron microns;
       0.000000001 nanometer nanometers nanometre nanometres nm; 0.0254 inch inches in; 0.3048 foot feet ft;
       0.9144 yard yards yd yds; 1609.344 mile miles mi; 1852 nautical_mile nautical_miles
    m^2: 4046.8564224 acre acres; 10000 hectare hectares ha
    m^3: 0.001 liter liters litre litres l L; 0.000001 milliliter milliliters millilitre millilitres ml cc;
       0.00001 centiliter centiliters centilitre centilitres cl; 0.0001 deciliter deciliters decilitre decilitres dl;
       1 kiloliter kiloliters kilolitre kilolitres kl
    kg: 1 kilogram kilograms kilogramme kilogrammes kg kgs; 0.001 gram grams gramme grammes g; 0.000001 milligram
       milligrams mg; 1000 tonne tonnes metric_ton metric_tons t; 0.45359237 pound pounds lb lbs;
       0.028349523125 ounce ounces oz
    s: 1 second seconds sec secs s; 60 minute minutes min mins; 3600 hour hours hr hrs h; 86400 day days;
       604800 week weeks wk wks; 0.001 millisecond milliseconds ms; 0.000001 microsecond microseconds
    month: 1 month months; 12 year years yr yrs; 120 decade decades; 1200 century centuries
    gallon: 1 gallon gallons gal; 0.25 quart quarts qt qts; 0.125 pint pints pt pts; 0.0625 cup cups
    fluid ounce: 1 fluid_ounce fluid_ounces fl_oz ounce ounces oz
    teaspoon: 1 teaspoon teaspoons tsp; 3 tablespoon tablespoons tbsp
    ton: 1 ton tons
    m s^-1: 0.44704 mph; 5/18 kph kmh kmph; 463/900 knot knots
    s^-1: 1 hertz hz; 1000 kilohertz khz; 1000000 megahertz mhz; 1000000000 gigahertz ghz
    m kg s^-2: 1 newton newtons N; 1000 kilonewton kilonewtons kn
    m^2 kg s^-2: 1 joule joules J; 1000 kilojoule kilojoules kj; 1000000 megajoule megajoules MJ; 3600000 kwh
    m^2 kg s^-3: 1 watt watts W; 1000 kilowatt kilowatts kw; 1000000 megawatt megawatts MW
    m^-1 kg s^-2: 1 pascal pascals pa; 1000 kilopascal kilopascals kpa; 101325 atm
    ampere: 1 ampere amperes amp amps; 0.001 milliampere milliamperes ma
    volt: 1 volt volts V; 1000 kilovolt kilovolts kv
    ohm: 1 ohm ohms
    coulomb: 1 coulomb coulombs
    mole: 1 mole moles mol
    calorie: 1 calorie calories cal
    kilocalorie: 1 kilocalorie kilocalories kcal
    degree: 1 degree degrees deg degs
    radian: 1 radian radians rad rads
    celsius: 1 celsius C degree_celsius degrees_celsius degree_C degrees_C
    fahrenheit: 1 fahrenheit F degree_fahrenheit degrees_fahrenheit degree_F degrees_F
    kelvin: 1 kelvin kelvins
    bit: 1 bit bits
    byte: 1 byte bytes
    kilobyte: 1 kilobyte kilobytes kb
    megabyte: 1 megabyte megabytes mb
    gigabyte: 1 gigabyte gigabytes gb
    terabyte: 1 terabyte terabytes tb
    dollar: 1 dollar dollars usd US_dollars US_dollar
    euro: 1 euro euros eur
    sterling: 1 pound pounds gbp pounds_sterling
    yen: 1 yen jpy
    rupee: 1 rupee rupees inr
    yuan: 1 yuan rmb cny
    peso: 1 peso pesos
    cent: 1 cent cents
    penny: 1 penny pennies pence
"""
_THINGS = {
    name: names.split()[0]
    for names in ("unit units", "point points", "person persons people", "item items", "piece pieces", "time times")
    for name in names.split()
}
_MONEY = {"$": "dollar", "\u20ac": "euro", "\u00a3": "gbp", "\u00a5": "\u00a5", "\u20b9": "rupee"}


def _table() -> dict[str, tuple[Meaning, ...]]:
    found: dict[str, tuple[Meaning, ...]] = {"\u00a5": (_base("yen or yuan"),)}
    for entry in re.split(r"\n {4}(?! )", _TABLE.rstrip())[1:]:
        dimension, _, sizes = entry.partition(":")
        bases = [dimension] if dimension == "fluid ounce" else dimension.split()
        powers = frozenset((base.partition("^")[0], int(base.partition("^")[2] or 1)) for base in bases)
        for size in sizes.split(";"):
            number, *names = size.split()
            for name in names:
                key = name.replace("_", " ")
                found[key] = (*found.get(key, ()), Meaning(Fraction(number), powers))
    return found


def _base(name: str) -> Meaning:
    return Meaning(Fraction(1), frozenset([(name, 1)]))


_UNITS = _table()
UNIT_WORDS = frozenset(word.lower() for name in _UNITS for word in name.split()) | _THINGS.keys()
_PHRASES = frozenset(name for name in _UNITS if " " in name)
VARIABLES = frozenset("tCF")  # units only against another unit
_LETTERS = frozenset(name for name in _UNITS if len(name) == 1) | {"in"}
_SQUARES = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS = {"squared": 2, "cubed": 3}
COUPLES = _SQUARES.keys() | {"per", "of", "a", "an", "each"}  # stand before or between units, never alone
CHANGING = {
    "hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "gross", "lakh", "crore", "mil", "bn",
    "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fifth", "tenth", "tenths", "hundredth",
    "hundredths", "thousandth", "thousandths", "twice", "double", "triple", "percent", "percentage", "squared",
    "cubed", "square", "cubic", "root", "power", "factorial", "mod", "modulo", "plus", "minus", "divided",
    "over", "less", "more", "fewer", "than", "least", "most", "not", "negative", "about", "almost", "nearly",
    "under", "between", "and", "but", "the", "with", "without", "base", "remainder", "zero", "one", "two", "three",
    "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty", "thirty", "forty", "fifty",
    "sixty", "seventy", "eighty", "ninety", "below", "above", "ago", "off", "out", "another", "other", "others",
    "greater", "smaller", "larger", "equal", "equals", "approximately", "around", "roughly", "to", "per",
    "never", "no", "wrong", "incorrect", "false", "if",
}  # fmt: skip
"""Words that change a number, or may; they are not things that it counts."""

_LONGEST = 200  # characters of a unit, and of a number, worth meaning
_BARE = "\ue000"  # behind letters that LaTeX sets as text: they are not variables
_SIGN = "\ue001"  # a sign of money, while dollars of maths are removed
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|textit|textrm|textnormal|operatorname)\s*\{([^{}]*)\}")
_TOKEN = re.compile(rf"[A-Za-z]+{_BARE}?|\^[-+]?[0-9]+|\s+|\\[A-Za-z]+|.", re.DOTALL)
_SPACES = re.compile(r"\\[,;: ]|~(?=[A-Za-z\\])|(?<=[0-9A-Za-z}])~|\\q?quad(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s?(?:\\circ(?![A-Za-z])|\{\s?\\circ\s?\})|\\degree(?![A-Za-z])|\\deg(?![A-Za-z])|\u00b0")
_POWER = re.compile(r" ?\^ ?(?:\{ ?([-+]?[0-9]{1,2}) ?\}|([-+]?[0-9]{1,2}))")
_FRACTION = re.compile(rf"\\[dt]?frac ?\{{ ?([A-Za-z]+{_BARE}?) ?\}} ?\{{ ?([A-Za-z]+{_BARE}?(?: ?\^[23])?) ?\}}\Z")
_CONNECTORS = {"/": -1, "per": -1, "a": -1, "an": -1, "each": -1, "of": 1, "-": 1, "*": 1, "\u00b7": 1}


def flat(text: str) -> str:
    r"""The same answer with single spaces, powers and degrees in one spelling, without `$`, `\,` or `\text{}`.

    Words that were set as text are followed by a private character, because they are not variables.
    """
    if not re.search(r"[\\^~$\u00b0\u00a2]", text):
        return " ".join(text.split())
    text = re.sub(r"\$([^$]*)\$", r" \1 ", text.replace("\\!", "").replace("\\$", _SIGN))
    text = text.replace(_SIGN, "$").replace("\\%", "%")
    text = _POWER.sub(r"^\1\2", text)
    text = TEXT.sub(lambda found: f" {re.sub('[A-Za-z]+', lambda w: w[0] + _BARE, found[1])} ", text)
    text = _DEGREES.sub(" degrees ", " ".join(_SPACES.sub(" ", text).split())).replace("\u00a2", " cents ")
    text = _POWER.sub(r"^\1\2", text)
    return " ".join(text.split())


def unmarked(text: str) -> str:
    """Without the private characters of `flat`."""
    return text.replace(_BARE, "")


def split_unit(text: str, question: str) -> tuple[str, Unit | None]:
    """A value and the unit behind it; the whole text and None where it ends with no unit.

    Args:
        text: an answer, as `flat` gives it.
        question: its words count as things that a number counts.
    """
    if not text or not (text[-1].isalpha() or text[-1] in f"0123456789.}}{_BARE}"):
        return text, None
    shown = re.sub(rf"(?<=[A-Za-z])([23])(?=[\s/*]|\Z)|(?<={_BARE})([23])(?=[\s/*]|\Z)", r"^\1\2", text)
    shown = _FRACTION.sub(r" \1/\2", shown)
    shown = re.sub(rf"(?<=[A-Za-z{_BARE}])\.(?=[\s/^]|\Z)", "", shown)
    tokens = [found[0] for found in _TOKEN.finditer(shown[-_LONGEST:])]
    asked: frozenset[str] | None = None
    for begin in range(max(_begin_of_words(tokens), len(tokens) - 24), len(tokens)):
        if not tokens[begin][0].isalpha() or not (begin > 0 or len(shown) > _LONGEST):
            continue
        if asked is None:
            asked = frozenset(_singular(word) for word in re.findall(r"[a-z]{3,}", question.lower()))
        unit = _unit(_phrases([part for part in tokens[begin:] if not part.isspace()]), asked)
        if unit is not None:
            return (shown[:-_LONGEST] + "".join(tokens[:begin])).strip(), unit
    return text, None


def _begin_of_words(tokens: Sequence[str]) -> int:
    """Where the words at the end of an answer begin, with powers and signs between them."""
    start = len(tokens)
    while start > 0 and (tokens[start - 1][0].isalpha() or tokens[start - 1][0] in " ^/-*\u00b7"):
        start -= 1
    return start


def _phrases(words: list[str]) -> list[str]:
    """The same words, with units of two words (`nautical mile`) as one."""
    found: list[str] = []
    for word in words:
        pair = f"{unmarked(found[-1]).lower()} {unmarked(word)}" if found else ""
        pair = next((name for name in (pair, pair.lower()) if name in _PHRASES), None) or ""
        found[-1:] = [pair] if pair else [*found[-1:], word]
    return found


def _unit(words: list[str], asked: frozenset[str]) -> Unit | None:
    """The unit that these words are; None where one of them belongs to none."""
    factors = _factors(words, asked)
    if factors is None or not 0 < len(factors) <= 6:
        return None
    things = frozenset(name for name, power in factors if name not in _UNITS and power == 1)
    meanings = [Meaning(Fraction(1), frozenset())]
    for name, power in factors:
        if name not in things:
            measures = _UNITS.get(name, (_base(name),))
            meanings = [_times(meaning, measure, power) for meaning in meanings for measure in measures]
    letters = tuple(word for word in words if word in _LETTERS)
    return Unit(tuple(meanings), things, unmarked(" ".join(words)), letters)


def _factors(words: list[str], asked: frozenset[str]) -> list[tuple[str, int]] | None:
    """Names of the units and things that are multiplied, with their powers; None where a word belongs to none."""
    factors: list[tuple[str, int]] = []
    sign = square = 1  # of the power of the next factor
    described = pending = False  # behind `of`; something has to follow
    for word in words:
        name = unmarked(word)
        small = name.lower()
        power = _power(name)
        if power is not None:
            if pending or not factors or not 0 < abs(power) <= 4 or factors[-1][0] not in _UNITS | _THINGS:
                return None
            factors[-1] = (factors[-1][0], factors[-1][1] * power)
        elif small in _CONNECTORS and (factors or small == "per") and not pending:
            sign, pending = _CONNECTORS[small], True
            described |= small == "of"
        elif small in _SQUARES and square == 1:
            square, pending = _SQUARES[small], True
        else:
            factor = _factor(name, asked, described=described)
            if factor is None:
                return None
            factors.append((factor, sign * square))
            sign, square, pending = 1, 1, False
    return None if pending else factors


def _power(word: str) -> int | None:
    """The power to which a word raises the unit in front of it, 0 where it is no number; None where it is no power."""
    if word[0] != "^":
        return _POWERS.get(word.lower())
    return int(word[1:]) if re.fullmatch(r"-?[0-9]+", word[1:]) else 0


def _factor(name: str, asked: frozenset[str], *, described: bool) -> str | None:
    """The unit or the thing that a word names; None where it is neither. Behind `of` it is a thing."""
    small = name.lower()
    unit = None if described else _name(name)
    if unit is not None:
        return unit
    singular = _singular(small)
    if small in _THINGS:
        thing = _THINGS[small]
        return thing if thing != small or singular in asked else None
    if small in CHANGING or len(small) <= 2:
        return None
    if small in _UNITS:
        return small
    return singular if singular in asked else None


def _name(word: str) -> str | None:
    """The entry of the table for a word; single letters only as they are."""
    small = word.lower()
    if word in _UNITS:
        return word
    wrong_case = len(word) == 1 or (len(word) == 2 and word[0] == "M" and word[1].islower())  # Mm is not mm
    return small if small in _UNITS and not wrong_case else None


def _times(left: Meaning, right: Meaning, power: int = 1) -> Meaning:
    powers = dict(left.powers)
    for base, exponent in right.powers:
        powers[base] = powers.get(base, 0) + exponent * power
    return Meaning(left.size * right.size**power, frozenset(item for item in powers.items() if item[1]))


def money(sign: str) -> Unit:
    """The unit of a sign in front of a number: $, euro, pound, yen or yuan, rupee."""
    return Unit(_UNITS[_MONEY[sign]], frozenset(), sign)


def product(left: Unit, right: Unit) -> Unit:
    """The unit of a sign of money and what stands behind the number (`$5 per hour`)."""
    meanings = tuple(_times(a, b) for a in left.meanings for b in right.meanings)
    return Unit(meanings, left.things | right.things, f"{left.name} {right.name}", right.letters)


def ratio(gold: Unit, answer: Unit) -> Fraction | None:
    """What a value in the answer's unit is multiplied by to be in the true answer's; None: not the same quantity."""
    if not (gold.things <= answer.things or answer.things <= gold.things):
        return None
    pairs = ((a, b) for a in gold.meanings for b in answer.meanings if a.powers == b.powers)
    return next((b.size / a.size for a, b in pairs), None)


def is_rounded(ratio: Fraction) -> bool:
    """Whether people round what this ratio gives: metric against US and nautical measures (1 mile is 1.609344 km)."""
    return any(part % prime == 0 for part in ratio.as_integer_ratio() for prime in (127, 463, 45359237))


def has_base(unit: Unit, base: str) -> bool:
    """Whether one of its meanings has this base unit."""
    return any(base in dict(meaning.powers) for meaning in unit.meanings)


_PART = rf"([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?) ?([A-Za-z]+{_BARE}?)"
_MIXED = re.compile(
    rf"{_PART},?(?: and)? ?([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)(?: ?([A-Za-z]+{_BARE}?)(?:,?(?: and)? ?{_PART})?)?"
)
_CLOCK = re.compile(rf"([0-9]{{1,6}}):([0-5][0-9])(?::([0-5][0-9]))? ?((?:h|hrs?|hours?){_BARE}?)")


def _mixed_parts(text: str) -> tuple[list[str], list[str]]:
    """Numbers and names of units, one after the other, of a value that has several; none where it is no such value."""
    parts = _MIXED.fullmatch(text)
    if parts is None:
        return [], []
    hours = unmarked(parts[2]) in ("h", "hr", "hrs", "hour", "hours")
    below = parts[4]
    if hours and below in (None, "", "m"):
        below = "min"
    numbers = [number for number in (parts[1], parts[3], parts[5]) if number]
    names = [unmarked(name) for name in (parts[2], below, parts[6]) if name]
    return numbers, names


def mixed_number(text: str) -> tuple[Fraction, Unit] | None:
    """A value in units of two or three sizes (`4 h 15 min`, `4h15`, `4:15 h`, `5 feet 3 inches`), in the first one.

    Args:
        text: an answer, as `flat` gives it.
    """
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        numbers = [clock[1], clock[2], clock[3] or "0"]
        names = [unmarked(clock[4]), "min", "s"]
    else:
        numbers, names = _mixed_parts(text)
    if not numbers:
        return None
    units = [_unit([name], frozenset()) for name in names]
    first = units[0]
    if first is None or len(units) != len(numbers) or not all(number.isdigit() for number in numbers[:-1]):
        return None
    value, larger = Fraction(numbers[0]), Fraction(1)
    for number, unit in zip(numbers[1:], units[1:], strict=True):
        size = None if unit is None else ratio(first, unit)
        if size is None or size >= larger or Fraction(number) * size >= larger:
            return None
        value, larger = value + Fraction(number) * size, size
    return value, first._replace(letters=())


def _singular(word: str) -> str:
    return re.sub(r"(?<=[a-z]{2})(?:ies|y|es|s|e)$", "", word)


def named(text: str) -> frozenset[object]:
    """The units and abbreviations that a text names anywhere (`3 cm, 4 cm`): words of the table, and short text.

    Args:
        text: an answer in plain characters.
    """
    found: set[object] = set()
    for word in re.findall(rf"(?<!\\)[A-Za-z]+{_BARE}?", re.sub(r"\\[A-Za-z]+", " ", flat(text))):
        name = _name(unmarked(word))
        if name is not None and (len(name) > 1 or word.endswith(_BARE)) and word != "in":
            found.add(_UNITS[name])
        elif word.endswith(_BARE) and 2 <= len(word) - 1 <= 4 and not re.search("[aeiouAEIOU]", word):
            found.add(word.lower())
    return frozenset(found)
