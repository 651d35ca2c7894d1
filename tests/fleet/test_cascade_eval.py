"""What `make eval-cascade` scores, on made-up cases of known accuracy and on the whole line.

The judge is right as often as it says: the half that it is sure of always, the other at 0.6 to 0.7.
"""

from __future__ import annotations

import random

from tools.eval_cascade import BOTH, JUDGE, MOST_OFF, Case, choose_bar, score

ACCURACY = {"ham": 0.97, "spam": 0.91}


def made_up(first: int, count: int) -> list[Case]:
    drawn, found = random.Random(first), []
    for n in range(first, first + count):
        truth = drawn.choice(["ham", "spam"])
        other = "spam" if truth == "ham" else "ham"
        sure = 0.995 if n % 2 else drawn.choice([0.6, 0.7])
        right = n % 2 or drawn.random() < sure
        found.append(Case(f"c{n}", truth, truth if right else other, sure))
    return found


async def test_the_cascade_asks_few_people_and_says_how_sure_it_is() -> None:
    chosen_on, told_of = made_up(0, 400), made_up(1_000, 200)
    bar = choose_bar(chosen_on)
    assert 700 < bar <= 995
    unsure = [one for one in chosen_on if one.confidence < 0.9][:110]
    judge = await score([], told_of, ACCURACY, JUDGE)
    cascade = await score(unsure, told_of, ACCURACY, BOTH, bar)
    assert judge.asked == 100, "below the bar of the policy"
    # Of the hundred that the judge is not sure of, about the audited share goes to people.
    assert (judge.calls, cascade.calls) == (0, 100)
    assert 1 <= cascade.asked <= 20
    assert cascade.right_alone / cascade.alone > 0.94
    assert {one: len(stated) for one, stated in cascade.stated.items()} == {
        "judge": 100, "model": 100,
    }  # fmt: skip
    assert all(error <= MOST_OFF for error in cascade.errors.values()), cascade.errors
