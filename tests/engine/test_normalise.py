# ruff: noqa: E501, RUF001  (tables of what is written and what is said)
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from livevoice.engine.normalise import guess, normalise
from livevoice.engine.traced import Traced

SIGNS = st.sampled_from(
    ["$", "€", "5", "12", "1,000", "3.5", ".5", "-", "–", "—", "/", ":", "%", " ", "\n", "k", "m",
     "km/h", "°C", "PM", "p.m.", "May ", "16", "2026", "st", "th", "s", "'", "’", "v", "+1 ", "(",
     ")", "@", "#", "&", "=", "*", "**", "_", "`", "~~", "|", "- ", "> ", "[a](b)", ".com", "http://",
     "a", "The", ".", ",", "½", "😀", ":)", "<3", "\U000f0000", "\\n", "٣", "५"]
)  # fmt: skip
WRITTEN = st.one_of(st.text(max_size=100), st.lists(SIGNS, max_size=30).map("".join))
LANGUAGES = st.sampled_from(["auto", "en", "de", "fr", "ru", "ar", "ja", "hi"])


def spoken(text: str, language: str = "auto") -> str:
    return normalise(Traced.of(text), language).text


@given(WRITTEN, LANGUAGES)
@settings(max_examples=400, deadline=None)
@example("**_`a`_**", "en")
def test_twice_is_once(text: str, language: str):
    # What "auto" guesses may change with the text, so it is guessed once.
    language = guess(text) if language == "auto" else language
    once = spoken(text, language)
    assert spoken(once, language) == once


@given(st.text("abcdefghijklmnopqrstuvwxyzäöüßéñ ,?!'\n", max_size=100))
def test_words_are_left_alone(text: str):
    assert spoken(text, "en") == text


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("I paid $5.99 and £1.01.", "I paid five dollars and ninety-nine cents and one pound and one penny."),
        ("It made $3.5 million, a $2bn firm, 5 € each.", "It made three point five million dollars, a two billion dollars firm, five euros each."),
        ("On May 16, 2026 we met.", "On May sixteenth twenty twenty-six we met."),
        ("On 16 May 2026 and 2026-05-16.", "On May sixteenth twenty twenty-six and May sixteenth twenty twenty-six."),
        ("Due 5/16/2026.", "Due May sixteenth twenty twenty-six."),
        ("At 9:30 PM, 9:05 a.m. or 14:00.", "At nine thirty P M, nine oh five A M or fourteen hundred hours."),
        ("We left at 9 p.m. Then we slept.", "We left at nine P M. Then we slept."),
        ("Read ticket A17, version 2.4.1.", "Read ticket A seventeen, version two point four point one."),
        ("5 km/h, 1 kg, 20 °C and 12.5%", "five kilometers per hour, one kilogram, twenty degrees Celsius and twelve point five percent"),
        ("1,234 cats, 007, -5 and 3.14", "one thousand two hundred and thirty-four cats, zero zero seven, minus five and three point one four"),
        ("The 1990s, the '80s, 1914–1918", "The nineteen nineties, the eighties, nineteen fourteen to nineteen eighteen"),
        ("the 1st, 22nd and 3rd", "the first, twenty-second and third"),
        ("Call +1 (555) 123-4567.", "Call plus one five five five one two three four five six seven."),
        ("Mail a.b@c-d.com.", "Mail a dot b at c dash d dot com."),
        ("See https://www.example.com/a?b=1#c.", "See www dot example dot com slash a."),
        ("½ cup, 3/4 mile", "one half cup, three quarters mile"),
        ("It was 51.7.The humidity fell.", "It was fifty-one point seven. The humidity fell."),
        ("R&D #1, a = b", "R and D number one, a equals b"),
        ("#1 of #comfyui", "number one of hashtag comfyui"),
        ("Hi 😀! Bye 👩‍💻 now 🇩🇪", "Hi! Bye   now"),
        ("“Don’t” — she said", "\"Don't\" — she said"),
        ("Well — yes", "Well, yes"),
        ("NASA, the FBI and Dr. No", "NASA, the FBI and Dr. No"),
    ],
)  # fmt: skip
def test_english(written: str, said: str):
    assert spoken(written, "en") == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("# Title\nSome **bold** and *slanted* `code`.", "Title.\nSome bold and slanted code."),
        ("- one\n- [x] two\n", "one.\ntwo.\n"),
        ("[the page](https://a.com/(b)) ![pic](c.png)", "the page pic"),
        ("> quoted\n\n---\n\n```python\nx\n```", "quoted\n\n\n\n\nx\n"),
        ("| a | b |\n|---|---|\n| c | d |", "a, b\n\nc, d"),
        ("2*3 and snake_case_name", "two*three and snake_case_name"),
        ("~~old~~ new\\n\\nNext", "old new\n\nNext"),
    ],
)
def test_markdown(written: str, said: str):
    assert spoken(written, "en") == said


@pytest.mark.parametrize(
    ("written", "language", "said"),
    [
        ("Ich habe 25 Bücher und 3,5 Liter.", "de", "Ich habe fünfundzwanzig Bücher und drei Komma fünf Liter."),
        ("Il y a 1 000 ans.", "fr", "Il y a mille ans."),
        ("Tengo 21 años y el pan.", "es", "Tengo veintiuno años y el pan."),
        ("В доме 12 комнат.", "ru", "В доме двенадцать комнат."),
        ("私は25歳です。", "ja", "私は二十五歳です。"),
        ("В доме 12 комнат.", "auto", "В доме 12 комнат."),
        ("Im Jahr 1984 war das nicht so.", "auto", "Im Jahr neunzehnhundertvierundachtzig war das nicht so."),
        ("今天25度。", "zh", "今天25度。"),
        ("मेरे पास 5 किताबें हैं।", "hi", "मेरे पास 5 किताबें हैं।"),
    ],
)  # fmt: skip
def test_other_languages(written: str, language: str, said: str):
    assert spoken(written, language) == said


def test_language_is_guessed():
    for text, language in [
        ("Hello 5", "en"), ("", "en"), ("No.", "en"), ("Das ist nicht gut und teuer.", "de"),
        ("Je suis dans la maison avec vous.", "fr"), ("Привет 5", "ru"), ("你好", "zh"),
        ("こんにちは", "ja"), ("שלום", "he"), ("مرحبا", "ar"), ("สวัสดี", "th"), ("안녕", "ko"),
    ]:  # fmt: skip
        assert guess(text) == language, text
