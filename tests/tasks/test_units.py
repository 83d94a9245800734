"""Units: a table of verdicts that both verifiers keep to, and the sizes against scipy's."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import constants

from guerdon.tasks.prompts import Prompt
from guerdon.tasks.quantities import numbers_of, pair, same_number, variables
from guerdon.tasks.units import flat, mixed_number, ratio, split_unit
from guerdon.tasks.verifier import Verifier, check_numeric
from tables import cases

QUESTION = "How many apples and berries, and how much flour? Find it."
VERDICT = {"equal": "=", "different": "!", "answer_unparsable": "?", "gold_unparsable": "?"}

# true answer, stated answer: = equal, ! different, ? no verdict
TABLE = [
    ("7 miles", "7 km", "?"), ("20 m", "20 m^2", "?"), ("20 m", "20\\text{ m}^2", "?"), ("15 dollars", "15%", "?"),
    ("15%", "\\$15", "?"), ("25 cm", "250 mm", "="), ("25 cm", "250\\text{ mm}", "="), ("25 cm", "251 mm", "!"),
    ("1.5 h", "90 min", "="), ("90 minutes", "1.5 hours", "="), ("1 m^2", "10000 cm^2", "="),
    ("1 m²", "10 000 cm²", "="), ("1 \\text{ m}^3", "1000 \\text{ L}", "="), ("2 L", "2000 cm^3", "="),
    ("36 km/h", "10 m/s", "="), ("36 \\text{ km/h}", "10 \\text{ m/s}", "="), ("36 km/h", "10 \\mathrm{m/s}", "="),
    ("60 mph", "88 ft/s", "="), ("60 miles per hour", "88 feet per second", "="), ("5 m", "5 meters", "="),
    ("5 metres", "5\\,\\mathrm{m}", "="), ("5 m", "5\\text{ m}", "="), ("5 m", "5~\\text{m}", "="),
    ("40^\\circ", "40 degrees", "="), ("40 degrees", "40°", "="), ("40^\\circ", "40^{\\circ}", "="),
    ("40^\\circ", "40\\degree", "="), ("20 square feet", "20 ft^2", "="), ("20 sq. ft.", "20 square feet", "="),
    ("20 sq ft", "20\\text{ ft}^2", "="), ("20 ft²", "20 sq. feet", "="), ("20 ft^2", "2880 in^2", "="),
    ("68 degrees Fahrenheit", "20 degrees Celsius", "?"), ("20^\\circ C", "20°C", "="),
    ("20^\\circ\\text{C}", "68^\\circ\\text{F}", "?"), ("5 dollars", "5 euros", "?"), ("5 dollars", "500 cents", "?"),
    ("\\$5", "5 USD", "="), ("£5", "5 pounds", "="), ("£5", "5 lb", "?"), ("5 lb", "5 pounds", "="),
    ("16 oz", "1 lb", "="), ("16 oz", "1 pound", "="), ("8 oz", "1 cup", "?"), ("2 pints", "1 quart", "="),
    ("1 gallon", "3.785 L", "?"), ("3 apples", "3 berries", "?"), ("12 apples", "1 dozen apples", "?"),
    ("2 weeks", "14 days", "="), ("2 years", "24 months", "="), ("1 year", "365 days", "?"), ("4.25 h", "4h15", "="),
    ("4.25", "4h15", "="), ("4.25", "4 h 15 min", "="), ("4.25 h", "4:15 h", "="),
    ("4.25 hours", "4 hours 15 minutes", "="), ("4.25 hours", "4 hours and 15 minutes", "="),
    ("255 min", "4h15", "="), ("255", "4h15", "?"), ("4.5 h", "4h15", "!"), ("4h15", "4.25 hours", "="),
    ("4h15", "4 h 15 min", "="), ("5.25 ft", "5 feet 3 inches", "="),
    ("2\\pi \\text{ cm}", "20\\pi \\text{ mm}", "="), ("2\\pi cm", "2\\pi", "="), ("2\\pi cm", "2\\pi km", "!"),
    ("2\\pi cm", "2\\pi kg", "?"), ("\\sqrt{2} m", "\\sqrt{2}\\text{ metres}", "="),
    ("\\sqrt{2} m", "100\\sqrt{2} cm", "="), ("\\sqrt{2} m^2", "\\sqrt{2} m", "?"),
    ("\\frac{\\pi}{3} \\text{ m}^2", "\\frac{\\pi}{3}", "="), ("x = 5 cm", "50 mm", "="),
    ("5 cm", "x = 50 \\text{ mm}", "="), ("3 cm, 4 cm", "3 m, 4 m", "?"), ("\\sin 30^\\circ", "\\frac{1}{2}", "="),
    ("90^\\circ", "\\frac{\\pi}{2}", "?"), ("\\frac{\\pi}{2}", "\\frac{\\pi}{2} \\text{ radians}", "="),
    ("5 kg", "5000 g", "="), ("5 kg", "5000 \\text{ grams}", "="), ("5", "5 kg", "="), ("5 kg", "5", "="),
    ("5 minutes", "5 hours", "!"), ("100 J", "0.1 kJ", "="), ("1 kWh", "3600 kJ", "="),
    ("1 kilowatt hour", "3.6e6 J", "="), ("5 N m", "5 J", "="), ("1 acre", "43560 ft^2", "="),
    ("1 ha", "10000 m^2", "="), ("5 dollars per hour", "\\$5 per hour", "="),
    ("5 dollars per hour", "5 dollars", "?"), ("5 miles", "5 miles per hour", "?"),
    ("3 cups of flour", "3 cups", "="), ("12 in", "1 foot", "="), ("12 inches", "1 ft", "="), ("5 GB", "5 MB", "?"),
    ("5 \\text{ GB}", "5 \\text{ MB}", "?"), ("20 square units", "20", "="), ("20 square units", "20 units", "?"),
    ("20 cm^2", "20 cm", "?"), ("5", "5k", "?"), ("5", "5 M", "?"), ("5", "5 m", "?"),
    ("5 cm squared", "5 cm^2", "="), ("12.5 cm", "12,5 cm", "?"), ("0.5", "50%", "="), ("100 km/h", "100 kmh", "="),
    ("9.8 m/s^2", "9.8 \\text{ m/s}^2", "="), ("9.8 m/s^2", "9.8 \\frac{m}{s^2}", "="),
    ("9.8 \\text{ m s}^{-2}", "9.8 m/s^2", "="), ("5 \\text{ ft}", "60 \\text{ inches}", "="),
    ("5000", "5 thousand dollars", "?"), ("$9$ dollars", "9", "="), ("9", "$9$ dollars", "="),
    ("20 kg", "0.02 t", "="), ("3 t", "2000 kg", "!"), ("3t", "3", "?"), ("3", "3t", "?"), ("20 C", "68 F", "?"),
    ("5 kWh", "18 MJ", "="), ("4:15", "4.25 h", "?"), ("7 hours", "7:00", "?"),
    ("1,000 kg", "1 tonne", "="), ("1 ton", "2000 pounds", "?"), ("60^\\circ", "60", "="),
    ("1 nautical mile", "1852 m", "="), ("30 fluid ounces", "30 ounces", "="), ("3 \\text{ people}", "3", "="),
    ("3 \\text{ m/s}", "3\\,\\mathrm{m\\,s^{-1}}", "="), ("3 \\text{ units}", "3 \\text{ units}^2", "?"),
    ("2.5 hours", "2:30", "?"),
    ("7 km", "7 miles", "?"), ("3 cm, 4 cm", "3, 4", "="), ("3 cm, 4 cm", "4, 5", "!"),
    ("1 inch", "2.54 cm", "="), ("1 mile", "1.6 km", "?"), ("5 kg", "6000 g", "!"), ("2 m", "2 s", "?"),
    ("90 km/h", "25 m/s", "="), ("90 km/h", "26 m/s", "!"), ("3\\sqrt{2} \\text{ cm}", "30\\sqrt{2} \\text{ mm}", "="),
    ("3\\sqrt{2} \\text{ cm}", "3\\sqrt{2} \\text{ mm}", "!"), ("2\\pi \\text{ km}", "2\\pi \\text{ miles}", "?"),
    ("8 \\text{ pts}", "8 \\text{ rds}", "?"),
]  # fmt: skip


def asked(gold, question=QUESTION):
    return Prompt(id="0", messages=({"role": "user", "content": question},), ground_truth=gold, data_source="test")


@pytest.fixture(scope="module")
def verdicts():
    pytest.importorskip("math_verify")
    with Verifier("math", timeout=60, workers=2) as verifier:
        return verifier.check_batch([f"\\boxed{{{a}}}" for _, a, _ in TABLE], [asked(g) for g, _, _ in TABLE])


def test_math(verdicts):
    wrong = [
        (*row, r.verdict, r.detail) for row, r in zip(TABLE, verdicts, strict=True) if VERDICT[r.verdict] != row[2]
    ]
    assert wrong == []


def test_numeric_has_the_same_verdict_or_none():
    for gold, answer, expected in TABLE:
        found = VERDICT[check_numeric(f"\\boxed{{{answer}}}", gold, question=QUESTION).verdict]
        assert found in (expected, "?"), (gold, answer, found)


@cases(
    ("word", "size"),
    [
        ("inch", constants.inch), ("ft", constants.foot), ("yards", constants.yard), ("miles", constants.mile),
        ("nautical miles", constants.nautical_mile), ("acres", constants.acre), ("ha", constants.hectare),
        ("L", constants.liter), ("lb", constants.lb), ("oz", constants.oz), ("tonnes", constants.metric_ton),
        ("hours", constants.hour), ("weeks", constants.week), ("mph", constants.mph), ("km/h", constants.kmh),
        ("knots", constants.knot), ("kWh", 3.6e6), ("mm", constants.milli), ("grams", 1e-3), ("days", constants.day),
    ],
)  # fmt: skip
def test_sizes_are_those_of_scipy(word, size):
    _, unit = split_unit(f"1 {word}", "")
    assert float(unit.meanings[0].size) == pytest.approx(size, rel=1e-12)


LENGTHS = ("mm", "cm", "metres", "km")


@given(
    st.fractions(0, 10**6, max_denominator=100), st.sampled_from(LENGTHS), st.sampled_from(LENGTHS), st.integers(1, 3)
)
def test_a_converted_value_is_the_same_and_no_other(value, one, other, power):
    first, second = (split_unit(f"1 {name}^{power}", "")[1] for name in (one, other))
    there = value * ratio(second, first)
    assert ratio(first, second) * ratio(second, first) == 1
    assert same_number(f"{value} {one}^{power}", f"{there} {other}^{power}") is True
    assert same_number(f"{value} {one}^{power}", f"{there + 1} {other}^{power}") is False


@cases(
    ("text", "value"),
    [
        ("4h15", Fraction(17, 4)), ("4 h 15 min", Fraction(17, 4)), ("4:15 h", Fraction(17, 4)),
        ("4h15m", Fraction(17, 4)),
        ("1 hour, 30 minutes and 36 seconds", Fraction(151, 100)), ("2 min 30 s", Fraction(5, 2)),
        ("5 feet 3 inches", Fraction(21, 4)), ("2 kg 300 g", Fraction(23, 10)), ("1 year 6 months", Fraction(3, 2)),
        ("4:15", None), ("4 h 75 min", None), ("4 h 15 kg", None), ("4.5 h 15 min", None), ("15 min 4 h", None),
        ("4 apples 15", None), ("4x15", None),
    ],
)  # fmt: skip
def test_values_in_two_units(text, value):
    found = mixed_number(flat(text))
    assert (found and found[0]) == value


def test_a_letter_is_a_unit_unless_the_question_uses_it():
    assert variables("A box of 20 m has side $h$ and $2m + 3$; let x = 5.") == {"h", "m", "x"}
    assert variables("A road of $20 \\text{ m}$, or $20\\,m$, and 5 h.") == frozenset()
    assert pair("5", "5 h", "How long?").same_number() is True
    assert pair("5", "5 h", "Find the height $h$.").same_number() is None
    assert pair("5", "5 m", "How long?").same_number() is None  # millions?
    assert pair("5", "5 m", "How many metres?").same_number() is True
    assert pair("5 km", "5000 m", "How long?").same_number() is True


def test_money_and_percentages():
    assert numbers_of("-$5") == numbers_of("$-5") == (-5,)
    assert numbers_of("5€") == (5,)
    assert numbers_of("$5mm") == ()
    assert same_number("$5", "€5") is None
    assert same_number("15 apples", "15%", 0.0, "How many apples?") is None
    assert same_number("15%", "0.15") is True


@cases("text", ["5 m^n", "5 cm^a", "5 m^", "5 m^²", "5 s^-x"])
def test_a_power_that_is_no_number_is_no_unit(text):
    assert same_number("5", text) is None
