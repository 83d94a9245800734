from guerdon.tasks.rounding import Rounding, rounding_of
from tables import cases


@cases(
    ("question", "rounding"),
    [
        ("Find the length to two decimal places.", Rounding(places=2)),
        ("Give your answer to 3 decimal places.", Rounding(places=3)),
        ("Round to one decimal place.", Rounding(places=1)),
        ("Answer correct to 4 d.p.", Rounding(places=4)),
        ("Give it correct to 3 significant figures.", Rounding(figures=3)),
        ("to 2 sf", Rounding(figures=2)),
        ("Express it to four significant digits.", Rounding(figures=4)),
        ("to the nearest tenth", Rounding(places=1)),
        ("Round to the nearest hundredth of a metre.", Rounding(places=2)),
        ("to the nearest integer", Rounding(places=0)),
        ("to the nearest whole number", Rounding(places=0)),
        ("to the nearest dollar", Rounding(places=0)),
        ("to the nearest cent", Rounding(places=2)),
        ("to the nearest hundred", Rounding(places=-2)),
        ("to the nearest 0.01", Rounding(places=2)),
        ("to the nearest 10", Rounding(places=-1)),
        ("What is the approximate area?", Rounding()),
        ("Estimate the mass.", Rounding()),
        ("Express your answer as a decimal.", Rounding()),
        ("Round your answer.", Rounding()),
        ("What is the length of the diagonal?", None),
        ("Six people sit at a round table.", None),
        ("How long is the round trip?", None),
        ("Find the area surrounded by the curve.", None),
        ("What is the 100th digit after the decimal point of 1/7?", None),
        ("Which vertex is nearest to the origin?", None),
        ("What is the integer closest to x? Give the closest integer.", Rounding(places=0)),
        ("Simplify the radical expression.", None),
        ("", None),
    ],
)
def test_what_a_question_allows(question, rounding):
    assert rounding_of(question) == rounding
