"""English: what is written in figures and signs, and how it is said.

Owns one table of rules, in the order in which they apply: what is longer and surer comes first.
Acronyms and abbreviations are left alone: expanding them does more harm than good.
"""

# ruff: noqa: RUF001, SIM905  (tables of signs and words of many scripts)
from __future__ import annotations

from collections.abc import Callable

import regex

from .numerals import number, ordinal, plural, spelled, year

_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
_TLD = "com|org|net|io|dev|gov|edu|co|uk|de|fr|es|eu|ai|app|info|tv|ch|nl|ru|jp|cn"
_ADDRESS_SIGNS = {
    ".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon",
    "+": "plus", "~": "tilde", "=": "equals", "&": "and", "%": "percent", "?": "question mark",
}  # fmt: skip
_CURRENCIES = {
    "$": ("dollar", "cent"), "US$": ("dollar", "cent"), "USD": ("dollar", "cent"),
    "€": ("euro", "cent"), "EUR": ("euro", "cent"), "£": ("pound", "penny"),
    "GBP": ("pound", "penny"), "¥": ("yen", ""), "JPY": ("yen", ""), "₹": ("rupee", "paisa"),
    "CHF": ("franc", "centime"), "CAD": ("dollar", "cent"), "AUD": ("dollar", "cent"),
}  # fmt: skip
_SCALES = {"k": "thousand", "m": "million", "mn": "million", "bn": "billion", "b": "billion"}
_UNITS = {
    "km/h": "kilometer per hour", "mph": "mile per hour", "m/s": "meter per second",
    "km²": "square kilometer", "m²": "square meter", "m³": "cubic meter", "km": "kilometer",
    "cm": "centimeter", "mm": "millimeter", "m": "meter", "mi": "mile", "ft": "foot",
    "kg": "kilogram", "mg": "milligram", "g": "gram", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "ml": "milliliter", "mL": "milliliter", "l": "liter",
    "L": "liter", "kWh": "kilowatt hour", "kW": "kilowatt",
    "MW": "megawatt", "W": "watt", "V": "volt", "Hz": "hertz", "kHz": "kilohertz",
    "MHz": "megahertz", "GHz": "gigahertz", "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte",
    "GB": "gigabyte", "TB": "terabyte", "Mbps": "megabit per second", "dB": "decibel",
    "ms": "millisecond", "s": "second", "min": "minute", "h": "hour", "hrs": "hour",
    "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree", "%": "percent",
    "‰": "per mille",
}  # fmt: skip
_SIGNS = {
    "#": "hashtag ", "+": "plus", "=": "equals", "×": " times ", "÷": " divided by ",
    "≈": " about ",
}  # fmt: skip
_UNCHANGED = frozenset("hertz kilohertz megahertz gigahertz percent yen".split())
_FRACTIONS = {
    "½": "one half", "⅓": "one third", "⅔": "two thirds", "¼": "one quarter",
    "¾": "three quarters", "⅛": "one eighth", "1/2": "one half", "1/3": "one third",
    "2/3": "two thirds", "1/4": "one quarter", "3/4": "three quarters",
}  # fmt: skip


def _apart(match: regex.Match, words: str) -> str:
    """``words`` with a space where a letter or figure stands right beside the match."""
    before = match.string[: match.start()][-1:]
    after = match.string[match.end() : match.end() + 1]
    return f"{' ' * before.isalnum()}{words}{' ' * after.isalnum()}"


def _plain(figures: str) -> str:
    return figures.replace(",", "").replace("−", "-")


def _address(match: regex.Match) -> str:
    address = regex.sub(r"^https?://", "", match.group())
    address = regex.sub(r"[?#].*", "", address).rstrip("/")  # what machines tell each other
    words = regex.sub(
        r"[^\p{L}\p{M}\p{N}]", lambda sign: f" {_ADDRESS_SIGNS.get(sign.group(), '')} ", address
    )
    return " ".join(words.split())


def _money(match: regex.Match) -> str:
    unit, part = _CURRENCIES[match["currency"]]
    figures = _plain(match["n"])
    whole, _, decimals = figures.partition(".")
    minus = "minus " if match["sign"] else ""
    if scale := match["scale"]:
        scale = _SCALES.get(scale.lower(), scale.lower())
        return _apart(match, f"{minus}{number(figures)} {scale} {_plural_unit(unit)}")
    if part and len(decimals) == 2:
        words = f"{number(whole)} {unit if int(whole) == 1 else _plural_unit(unit)}"
        n_parts = int(decimals)
        if n_parts:
            words += f" and {number(str(n_parts))} {part if n_parts == 1 else _plural_unit(part)}"
        return _apart(match, minus + words)
    return _apart(
        match, f"{minus}{number(figures)} {unit if figures == '1' else _plural_unit(unit)}"
    )


def _plural_unit(unit: str) -> str:
    if unit in _UNCHANGED:
        return unit
    first, per, rest = unit.partition(" per ")
    if first.startswith("degree"):
        return f"degrees{first[6:]}"
    special = {"foot": "feet", "penny": "pence", "paisa": "paise"}
    return special.get(first, f"{first}s") + per + rest


def _measure(match: regex.Match) -> str:
    figures = _plain(match["n"])
    unit = _UNITS[match["unit"]]
    return _apart(match, f"{number(figures)} {unit if figures == '1' else _plural_unit(unit)}")


def _date(match: regex.Match) -> str | None:
    found = match.groupdict()
    month = found["month"]
    if month.isdigit():
        month_number, day = int(month), int(found["day"])
        if month_number > 12 >= day:
            month_number, day = day, month_number
        if not (1 <= month_number <= 12 and 1 <= day <= 31):
            return None
    else:
        day = int(found["day"])
        month_number = next(i for i, name in enumerate(_MONTHS, 1) if name.startswith(month[:3]))
        if not 1 <= day <= 31:
            return None
    words = f"{_MONTHS[month_number - 1]} {ordinal(day)}"
    if written := found.get("year"):
        n = int(written)
        words += f" {year(n + (2000 if n < 50 else 1900) if len(written) == 2 else n)}"
    return _apart(match, words)


def _time(match: regex.Match) -> str:
    hour, minute = int(match["hour"]), match["minute"]
    words = number(str(hour))
    if minute and int(minute):
        words += f" oh {number(minute[1])}" if minute[0] == "0" else f" {number(minute)}"
    elif not match["half"]:
        words += " o'clock" if 0 < hour <= 12 else " hundred hours"
    if second := match["second"]:
        words += f" and {number(str(int(second)))} seconds"
    if half := match["half"]:
        words += f" {half[0].upper()} M"
        after = match.string[match.end() :]
        if half.endswith(".") and regex.match(r"\s+\p{Lu}|\s*$", after):
            words += "."  # the abbreviation's point is the sentence's too
    return _apart(match, words)


def _digit_by_digit(match: regex.Match) -> str:
    groups = regex.findall(r"[0-9]+", match.group())
    plus = "plus " if match.group().startswith("+") else ""
    return _apart(match, plus + " ".join(spelled(group) for group in groups))


def _version(match: regex.Match) -> str:
    words = " point ".join(number(group) for group in match["n"].split("."))
    return _apart(match, f"version {words}" if match["v"] else words)


def _decade(match: regex.Match) -> str:
    century = f"{number(match['century'])} " if match["century"] else ""
    return _apart(match, century + plural(number(f"{match['ten']}0")))


def _cardinal(match: regex.Match) -> str:
    return _apart(match, number(_plain(match.group())))


def _fraction(match: regex.Match) -> str:
    words = _FRACTIONS[match.group()]
    if match.string[: match.start()][-1:].isdigit():
        words = f"and {words}"
    return _apart(match, words)


def _rule(reason: str, pattern: str, replace: Callable[[regex.Match], str | None] | str):
    return reason, regex.compile(pattern, regex.M), replace


_HALF = r"(?P<half>[AaPp](?:\.\s?[Mm]\.|[Mm](?!\w)))"
_UNIT = "|".join(regex.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_CURRENCY = "|".join(regex.escape(sign) for sign in sorted(_CURRENCIES, key=len, reverse=True))
_SCALE = r"(?P<scale>thousand|million|billion|trillion|bn|mn|[kKmMB])"
_MINUS = r"(?P<sign>(?<![\w)])[-−])?"
_DAY = r"(?P<day>[0-3]?[0-9])"
_YEAR = r"(?P<year>[12][0-9]{3})"
_ORDINAL_END = r"(?:st|nd|rd|th)"

RULES = (
    # Addresses first: their dots and figures are no one else's.
    _rule("address", r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", _address),
    _rule("address", r"(?:https?://|www\.)[^\s<>\"']*[\w/=&%#]", _address),
    _rule(
        "address",
        rf"(?<![\w.@])(?:[\w-]+\.)+(?:{_TLD})(?:/[^\s<>\"']*[\w/])?(?![\w-])",
        _address,
    ),
    _rule(
        "missing space",
        r"(?<=\p{Ll}{2}|[0-9])[.!?](?=\p{Lu}\p{Ll})",
        lambda match: f"{match.group()} ",
    ),
    _rule("sign", r"#(?=[0-9])", "number "),
    _rule(
        "money",
        rf"{_MINUS}(?P<currency>{_CURRENCY})\s?(?P<n>{_NUMBER})(?:\s?{_SCALE}(?!\w))?",
        _money,
    ),
    _rule(
        "money",
        rf"{_MINUS}(?P<n>(?<![\w.,]){_NUMBER})\s?(?:{_SCALE}\s)?(?P<currency>{_CURRENCY})(?!\w)",
        _money,
    ),
    _rule("date", rf"(?<![\w-]){_YEAR}-(?P<month>[01]?[0-9])-{_DAY}(?![\w-])", _date),
    _rule(
        "date",
        rf"(?<![\w/])(?P<month>[0-3]?[0-9])/{_DAY}/(?P<year>[12][0-9]{{3}}|[0-9]{{2}})(?![\w/])",
        _date,
    ),
    _rule(
        "date",
        rf"(?<!\w){_MONTH}\s+{_DAY}{_ORDINAL_END}?(?:,?\s+{_YEAR})?(?![\w:%]|[.,][0-9])",
        _date,
    ),
    _rule(
        "date",
        rf"(?<![\w.,]){_DAY}{_ORDINAL_END}?\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?(?!\w)",
        _date,
    ),
    _rule(
        "time",
        r"(?<![\w:.])(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])"
        rf"(?::(?P<second>[0-5][0-9]))?(?:\s?{_HALF})?(?![\w:])",
        _time,
    ),
    _rule(
        "time",
        rf"(?<![\w:.])(?P<hour>1[0-2]|[1-9])(?P<minute>)(?P<second>)\s?{_HALF}",
        _time,
    ),
    _rule(
        "phone number",
        r"(?<![\w.])(?:\+[0-9]{1,3}[\s.-]?)?"
        r"(?:\([0-9]{2,4}\)[\s.-]?[0-9]{3,4}|[0-9]{3}[.-][0-9]{3}|(?<=\+[0-9]{1,3}[\s.-]?)[0-9]{2,4})"
        r"(?:[\s.-][0-9]{2,4}){1,4}(?!\w)",
        _digit_by_digit,
    ),
    _rule("phone number", r"(?<![\w.-])[0-9]{3}-[0-9]{4}(?![\w-])", _digit_by_digit),
    _rule("version", r"(?<![\w.])(?P<v>[vV])?(?P<n>[0-9]+(?:\.[0-9]+){2,})(?!\w)", _version),
    _rule("version", r"(?<![\w.])(?P<v>[vV])(?P<n>[0-9]+(?:\.[0-9]+)*)(?!\w)", _version),
    _rule(
        "ordinal",
        rf"(?<![\w.,])([0-9]{{1,9}}){_ORDINAL_END}(?!\w)",
        lambda match: ordinal(int(match[1])),
    ),
    _rule("decade", r"(?<!\w)(?P<century>1[0-9]|20)(?P<ten>[1-9])0['’]?s(?!\w)", _decade),
    _rule("decade", r"(?<!\w)['’]?(?P<century>)(?P<ten>[2-9])0['’]?s(?!\w)", _decade),
    _rule("range", r"(?<=[0-9])(?:[–—-]|\s[–—]\s)(?=[0-9])", " to "),
    _rule(
        "unit",
        rf"(?<![\w.,])(?P<n>(?:(?<!\S)[-−])?{_NUMBER})[\s-]?(?P<unit>{_UNIT})(?![\w/²³])",
        _measure,
    ),
    _rule("fraction", r"(?<![\w/.])(?:1/2|1/3|2/3|1/4|3/4)(?![\w/])|[½⅓⅔¼¾⅛]", _fraction),
    _rule("number", r"(?<=[0-9])/(?=[0-9])", " slash "),
    _rule(
        "year",
        r"(?<![\w.,])(?:1[1-9][0-9]{2}|20[0-9]{2})(?!\w|[.,][0-9])",
        lambda match: year(int(match.group())),
    ),
    _rule("number", rf"(?:(?<!\S)[-−](?=[0-9]))?{_NUMBER}|(?<!\S)\.[0-9]+", _cardinal),
    _rule("sign", r"\s*&\s*", " and "),
    _rule(
        "sign",
        r"#(?=\p{L})|(?<=\s)\+(?=\s)|(?<=\s)=(?=\s)|[×÷≈]",
        lambda match: _SIGNS[match.group()],
    ),
    _rule("sign", r"(?<!\S)@(?=\w)", "at "),
    _rule("typography", r"[‘’‛ʼ]", "'"),
    _rule("typography", r"[“”„‟«»]", '"'),
    _rule(
        "typography",
        r"(?<=[\p{L}\p{N},;])\s*(?:[—–]+|\s--?\s|(?<=\p{L})--+(?=\p{L}))\s*(?=[\p{L}\p{N}])",
        ", ",
    ),
)
"""(reason, what is written, what is said), in the order in which they apply."""
