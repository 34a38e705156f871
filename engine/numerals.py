"""Numbers in words. English in full; whole numbers and decimals in the languages of num2words."""

from __future__ import annotations

from decimal import Decimal

from .requirement import required

MAX_DIGITS = 15
"""Longer numbers are read digit by digit, in any language."""

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def languages() -> frozenset[str]:
    """ISO 639-1 codes that numbers can be spoken in."""
    return frozenset(code for code in required("num2words").CONVERTER_CLASSES if len(code) == 2)


def number(digits: str, language: str = "en", *, is_year: bool = False) -> str:
    """Words of a number in plain notation: "1234", "-3.50", "007".

    Args:
        digits: the number.
        language: ISO 639-1 code that num2words knows.
        is_year: whether it may be one; German says those otherwise.
    """
    num2words = required("num2words").num2words
    sign, digits = ("-", digits[1:]) if digits[:1] == "-" else ("", digits)
    whole, point, decimals = digits.partition(".")
    if language != "en":
        if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
            words = " ".join(num2words(int(each), lang=language) for each in whole + decimals)
        elif is_year and language == "de":
            words = num2words(int(whole), lang="de", to="year")
        else:
            words = num2words(Decimal(digits) if point else int(whole), lang=language)
        return _plain(words)
    if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = spelled(whole)
    else:
        words = _plain(num2words(int(whole or 0)))
    words += f" point {spelled(decimals)}" if decimals else ""
    return f"minus {words}" if sign else words


def spelled(digits: str) -> str:
    """English, digit by digit."""
    return " ".join(_DIGITS[int(each)] for each in digits)


def ordinal(n: int) -> str:
    """English: "twenty-first"."""
    num2words = required("num2words").num2words
    return _plain(num2words(n, to="ordinal"))


def year(n: int) -> str:
    """English: "nineteen eighty-four", "two thousand and nine"."""
    num2words = required("num2words").num2words
    if 2000 <= n < 2010 or n % 1000 == 0:
        return number(str(n))
    return _plain(num2words(n, to="year"))


def plural(words: str) -> str:
    """English plural of a number's last word: "nineties", "twenties", "sixes"."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}es" if words.endswith(("x", "ss")) else f"{words}s"


def _plain(words: str) -> str:
    return words.replace(",", "")
