"""Word groups of a comment as 32 numbers, and as the terms that an explanation names.

A word list is weak as a judge and good as an explanation, so it comes beside an example bank and
never instead of it. The lists hold plain words in British and American spelling and were written
without looking at any row of any data set. Counts are damped by length, so that a long comment is
not worse for being long; what stands near what counts more than what merely stands in one text.

    16 groups    log(1 + count) / log(e + words / 20)
     6 products  of two groups' values
     4 pairs     1 if a term of each stands within 40 characters of the other
     6 shape     length, capitals, exclamation, quotation, links, marks of code and lists
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from vedette.judging.text import fold

NEAR = 40  # characters between two terms that belong together
READ = 20_000  # characters of a text that are read

# Regular expressions over folded text: lower case, no accents, Latin letters, single spaces.
_LISTS: Mapping[str, str] = {
    # Names by which people are meant as a group; neutral words, and only telling beside others.
    "group": (
        r"wom[ae]n|girls|men|gays?|lesbians?|trans(?:gender)?(?: people)?|queers?|homosexuals?"
        r"|jew(?:s|ish)?|muslims?|christians?|hindus?|sikhs?|catholics?|blacks?|whites?|asians?"
        r"|arabs?|africans?|mexicans?|chinese|indians?|poles|roma|gyps(?:y|ies)|immigrants?"
        r"|migrants?|refugees?|foreigners?|asylum seekers?|natives?|disabled(?: people)?"
        r"|blind|deaf|autistic|old people|pensioners?|the poor|homeless"
        r"|islanders?|mainlanders?|townies|people from [a-z]+|[a-z]+ (?:people|folk)"
        r"|(?:those|these) people|their (?:kind|sort)"
    ),
    "dehumanising": (
        r"vermin|rats?|cockroach(?:es)?|parasites?|leech(?:es)?|animals?|pigs?|dogs|apes?|monkeys?"
        r"|savages?|subhumans?|filth(?:y)?|scum|trash|garbage|disease|plague"
        r"|infest(?:ed|ing|ation)?"
        r"|breed(?:ing)? like|inferior|plankton|barnacles?|bilge"
    ),
    "removal": (
        r"send (?:them|you|him|her) (?:all )?(?:back|home)|go back (?:to )?where|deport(?:ed)?"
        r"|get rid of"
        r"|wipe(?:d)? out|exterminat(?:e|ed|ion)|eradicat(?:e|ed)|gas (?:them|all)|purge"
        r"|(?:should|must|ought to) (?:all )?(?:be )?(?:gone|banned|removed|shot|die|drown)"
        r"|do(?:n't| not) (?:belong|let (?:them|any))"
        r"|keep (?:them|these people|those people) (?:out|off|away)"
        r"|not (?:welcome|wanted) here|kick (?:them|you|him|her) out"
        r"|nobody wants (?:you|them|him|her)"
    ),
    "insult": (
        r"idiots?|idiotic|morons?|moronic|stupid|imbeciles?|dumb(?:o|ass)?|fools?|foolish|dimwits?"
        r"|half-?wits?|nitwits?|numpt(?:y|ies)|muppets?|twits?|losers?|clowns?|liars?|cretins?"
        r"|whores?|sluts?|cunts?|hoes?|thots?|scumbags?|twats?|tossers?|bollocks|motherfuck\w*"
        r"|pathetic|worthless|useless|disgusting|ugly|creeps?|jerks?|bastards?|bitch(?:es)?"
        r"|arseholes?"
        r"|assholes?|dickheads?|pricks?|wankers?|shithead|crap|shit(?:ty)?|fuck(?:ing|er|ers|ed)?"
        r"|bloody (?:fool|idiot)|donkeys?|buffoons?|blockheads?|brainless|incompetent"
        r"|lazy (?:sod|cow|git)"
        r"|gits?|plonkers?|wazzocks?|bilge ?rats?|sea ?slugs?|barnacle ?brains?|bilge ?brains?"
        r"|fish ?brains?"
    ),
    "second": r"you|your|yours|yourself|yourselves|you're|youre|u|ur",
    "first": r"i|me|my|mine|myself|i'm|im|i'll|i'd|i've|we|us|our",
    "harm": (
        r"kill(?:ed|ing|s)?|murder(?:ed|ing)?|beat(?:en|ing)?|stab(?:bed|bing)?|shoot(?:ing)?"
        r"|shot|punch(?:ed)?"
        r"|hit|hurt(?:ing)?|strangle|choke|burn(?:ed|ing|t)?|smash(?:ed)?|break|drown(?:ed|ing)?"
        r"|sink"
        r"|hang|slap(?:ped)?|kick(?:ed)?|attack(?:ed|ing)?|destroy|rape(?:d)?|torture(?:d)?|bash"
        r"|cut"
    ),
    "threat": (
        r"(?:i|we) (?:will|shall|am going to|are going to|gonna|'ll) (?:find|get|hurt|kill|break"
        r"|burn|sink|smash|come (?:for|after)|make (?:you|him|her|them) (?:pay|sorry|regret))"
        r"|i'll (?:find|get|hurt|kill|break|burn|sink|smash|come (?:for|after))"
        r"|i'll make (?:you|him|her|them) (?:pay|sorry|regret)"
        r"|watch your (?:back|step)|you(?:'re| are) (?:dead|next|finished)"
        r"|you(?:'ll| will) (?:pay|regret|be sorry)"
        r"|(?:i|we) know (?:where|which) (?:you|your|he|she|they|boat)|sleep with one eye open"
        r"|better watch out"
        r"|you(?:'ve| have) been warned|won't see (?:it|me|us) coming"
        r"|see what happens (?:to|when|if)"
        r"|wait (?:till|until) (?:i|we) (?:catch|find|get)"
        r"|before (?:something|anything) happens to|shame if (?:something|it|they)"
        r"|(?:deserves?|ought) to (?:be )?(?:drown|hurt|die|burn|be beaten|hang)"
    ),
    "weapon": (
        r"guns?|knife|knives|bombs?|rifles?|pistols?|axes?|hammers?|petrol|flare ?guns?|harpoons?"
        r"|crowbars?"
        r"|explosives?|machetes?|swords?|bullets?"
    ),
    "gore": (
        r"blood(?:y|ied)?|guts|corpses?|mutilat\w+|behead\w*|dismember\w*|severed|gore|entrails"
        r"|slaughter\w*"
    ),
    "sexual": (
        r"sex(?:ual(?:ly)?|y)?|porn\w*|nudes?|naked|nipples?|breasts?|penis|vagina|genitals?"
        r"|erotic\w*"
        r"|orgasms?|masturbat\w+|horny|blow ?job|cum|underwear|undress\w*"
    ),
    "minor": (
        r"child(?:ren)?|kids?|minors?|teens?|teenage\w*|underage|school ?(?:girls?|boys?)"
        r"|little (?:girls?|boys?)"
        r"|(?:\d|1[0-7]) ?(?:-| )?years? ?old|toddlers?|bab(?:y|ies)"
    ),
    "self_harm": (
        r"kill(?:ing)? myself|suicid(?:e|al)|end (?:it all|my life|everything)|self[- ]harm\w*"
        r"|hurt(?:ing)? myself"
        r"|cut(?:ting)? myself|(?:do not|don't) want to (?:live|be here|wake up)"
        r"|no (?:reason|point) (?:to|in) (?:go(?:ing)? on|liv(?:e|ing))"
        r"|better off without me|not be (?:here|around) (?:any ?more|much longer|tomorrow|next)"
        r"|walk into the (?:sea|water)"
        r"|jump(?:ing)? (?:off|from) (?:the|a) (?:pier|bridge|wall)|want to (?:die|disappear)"
        r"|can(?:'t|not) go on"
        r"|goodbye (?:to you all|everyone|world)|nobody would (?:miss|notice)"
        r"|nobody (?:left )?to talk to"
    ),
    "negation": (
        r"not|no|never|don't|dont|doesn't|didn't|isn't|aren't|wasn't|won't|can't|cannot|without"
        r"|nobody|nothing"
    ),
    "reporting": (
        r"said|says|saying|say|wrote|writes|written|called|calls|calling|call|told|tells|shouted"
        r"|shouts|yelled"
        r"|posted|quoted?|quoting|reported|claims?|claimed|according to|words? like|as in|heard"
        r"|read|tweeted"
    ),
    "fiction": (
        r"novels?|stor(?:y|ies)|films?|movies?|plays?|characters?|chapters?|episodes?|books?"
        r"|lyrics?|songs?"
        r"|games?|scenes?|once upon|pirates?|legends?|museum"
    ),
}  # fmt: skip
GROUPS = tuple(_LISTS)
_PRODUCTS = (
    ("group", "dehumanising"), ("group", "removal"), ("group", "insult"),
    ("second", "insult"), ("second", "harm"), ("first", "self_harm"),
)  # fmt: skip
_PAIRS = (("second", "insult"), ("group", "dehumanising"), ("first", "harm"), ("minor", "sexual"))
_SHAPE = ("length", "capitals", "exclamation", "quotation", "links", "marks")
FEATURES = (
    *GROUPS,
    *(f"{left}*{right}" for left, right in _PRODUCTS),
    *(f"{left}~{right}" for left, right in _PAIRS),
    *_SHAPE,
)

_PATTERNS = {
    group: re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])") for group, words in _LISTS.items()
}
_WORD = re.compile(r"[a-z]+")
_QUOTED = re.compile(r"[\"“”«»]|^[^\S\n]{0,40}>", re.MULTILINE)
_LINK = re.compile(
    r"https?://|www\.|\b[a-z0-9-]{1,63}\.(?:com|net|org|info|biz|example|top|xyz)\b", re.I
)
_MARKS = re.compile(r"[{};=<>|\\]|^[^\S\n]{0,40}(?:[-*•]|\d{1,9}[.)])\s", re.MULTILINE)


class Term(NamedTuple):
    """One term of a word group: its group, its words, and where it stands in the folded text."""

    group: str
    words: str
    start: int
    end: int


def find_terms(folded: str) -> list[Term]:
    """Return the terms of every group in a folded text (`text.fold`), in order of the text."""
    read = folded[:READ]
    found = [
        Term(group, match[0], match.start(), match.end())
        for group, pattern in _PATTERNS.items()
        for match in pattern.finditer(read)
    ]
    return sorted(found, key=lambda term: (term.start, term.end, term.group))


def are_near(terms: list[Term], left: str, right: str, reach: int = NEAR) -> bool:
    """Say whether terms of two word groups stand within `reach` characters of one another."""
    spans = sorted((term.start, term.end) for term in terms if term.group == right)
    starts = [start for start, _ in spans]
    # The greatest end of those that begin at or before: a text may hold thousands of either.
    ends = list(accumulate((end for _, end in spans), max))
    for one in terms:
        if one.group == left:
            number = bisect_right(starts, one.end + reach)
            if number and ends[number - 1] >= one.start - reach:
                return True
    return False


def features(text: str) -> tuple[float, ...]:
    """Return the numbers of word groups (FEATURES) for a text as it was written (not folded)."""
    raw = text[:READ]
    folded = fold(raw)[:READ]  # one character may fold to eighteen
    terms = find_terms(folded)
    words = len(_WORD.findall(folded))
    damp = math.log(math.e + words / 20)
    counts = dict.fromkeys(GROUPS, 0)
    for term in terms:
        counts[term.group] += 1
    value = {group: math.log1p(count) / damp for group, count in counts.items()}
    letters = sum(character.isalpha() for character in raw)
    capitals = sum(character.isupper() for character in raw)
    return (
        *value.values(),
        *(value[left] * value[right] for left, right in _PRODUCTS),
        *(float(are_near(terms, left, right)) for left, right in _PAIRS),
        math.log1p(words) / 5,
        capitals / letters if letters >= 8 else 0.0,
        math.log1p(raw.count("!") + raw.count("?")) / 2,
        float(bool(_QUOTED.search(raw))),
        math.log1p(len(_LINK.findall(folded))),
        math.log1p(len(_MARKS.findall(raw))) / 2,
    )


def vocabulary() -> frozenset[str]:
    """Return every whole word of the lists, for a normaliser: what disguise is meant to hide."""
    found: set[str] = set()
    for words in _LISTS.values():
        for phrase in _expand_pattern(words):
            found.update(_WORD.findall(phrase))
    return frozenset(word for word in found if len(word) > 1 or word in "aiu")


def _expand_pattern(pattern: str) -> set[str]:
    """Return what a pattern of the lists matches: groups, alternatives and `?` spelled out.

    What has no end to it (`\\w*`, a class of letters) is left out with its alternative.
    """
    return set().union(*(_expand_part(part) for part in _split_alternatives(pattern)))


def _split_alternatives(pattern: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, character in enumerate(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append(pattern[start:at])
            start = at + 1
    return [*parts, pattern[start:]]


def _expand_part(part: str) -> set[str]:
    found, at = {""}, 0
    while at < len(part):
        if part[at] in "\\[+*":
            return set()
        end = at + 1
        inner = {part[at]}
        if part.startswith("(?:", at):
            depth, end = 1, at + 3
            while depth:
                depth += (part[end] == "(") - (part[end] == ")")
                end += 1
            inner = _expand_pattern(part[at + 3 : end - 1])
        at = end
        if part[at : at + 1] == "?":
            inner, at = inner | {""}, at + 1
        found = {before + after for before in found for after in inner}
    return found
