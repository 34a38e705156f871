"""The player's parts that need no ComfyUI: cushion by simulation, events in order, WAV files."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def modules(browser, serve_modules):
    """A page that can import the pack's modules."""
    page = browser.new_page()
    serve_modules(page, "http://modules.test")
    yield page
    page.close()


@pytest.fixture(scope="module")
def listen(modules):
    """Runs one simulated speech; its parameters are those of simulation.mjs."""

    def run(**speech):
        return modules.evaluate(
            """async (speech) => {
                const { Cushion } = await import("/cushion.mjs");
                const { listen } = await import("/simulation.mjs");
                return listen(Cushion, speech);
            }""",
            speech,
        )

    return run


@pytest.mark.parametrize("speed", [5, 30])
def test_a_fast_machine_is_heard_at_its_second_chunk_and_never_pauses(listen, speed):
    for seconds in (1, 5, 60):
        heard = listen(speechS=seconds, speed=speed)
        assert heard["waitS"] < 4 * 0.04 / speed + 0.001, "40 ms of sound bridge nothing"
        assert heard["pausesS"] == []


def test_just_above_real_time_waits_a_moment_and_never_pauses(listen):
    for seconds in (5, 15, 60):
        heard = listen(speechS=seconds, speed=1.05)
        assert heard["waitS"] < 1.4
        assert heard["pausesS"] == []


def test_slower_than_real_time_pauses_rarely(listen):
    heard = listen(speechS=60, speed=0.5, expectedS=50)
    assert len(heard["pausesS"]) <= 3, "sixty seconds, spoken in two minutes"
    assert heard["endS"] < 60 / 0.5 + 20
    assert listen(speechS=5, speed=0.5, expectedS=5)["pausesS"] == []
    assert len(listen(speechS=15, speed=0.5, expectedS=14)["pausesS"]) <= 1


@pytest.mark.parametrize("speed", [1.3, 5, 30])
@pytest.mark.parametrize("jitter_s", [0.05, 0.3, 1.0])
def test_an_uneven_network_is_absorbed(listen, speed, jitter_s):
    runs = [listen(speechS=30, speed=speed, jitterS=jitter_s, seed=seed) for seed in range(20)]
    n_pauses = [len(run["pausesS"]) for run in runs]
    assert max(n_pauses) <= 2, "each pause makes it more patient"
    assert sum(n_pauses) <= 20 * jitter_s, f"pauses in 20 runs: {n_pauses}"


@pytest.mark.parametrize("speed", [1.05, 5, 30])
@pytest.mark.parametrize("stall_s", [0.5, 2, 5])
def test_a_stall_costs_one_pause_at_most(listen, speed, stall_s):
    heard = listen(speechS=60, speed=speed, stallAtS=10, stallS=stall_s)
    assert len(heard["pausesS"]) <= 1
    if speed >= 5:
        assert heard["pausesS"] == [], "what lies ready carries over it"


def test_whatever_happens_it_is_heard_to_the_end(listen):
    for seed in range(60):
        speed = 0.1 * 1.12**seed
        heard = listen(
            speechS=20, speed=speed, jitterS=(seed % 7) / 5, stallAtS=seed % 20, stallS=seed % 4,
            expectedS=(seed % 3) * 12, seed=seed,
        )  # fmt: skip
        assert heard["endS"] is not None
        assert heard["endS"] < 20 / speed + 20 + 15
        assert len(heard["pausesS"]) <= 4


def feed(modules, script):
    return modules.evaluate(
        f"""async () => {{
            const {{ Feed }} = await import("/feed.mjs");
            const got = [], asked = [];
            let lost = 0;
            const event = (seq) => ({{ seq }});
            const make = (fetchMissed) => new Feed(
                async (from) => {{ asked.push(from); return fetchMissed(from); }},
                ({{ seq }}) => got.push(seq),
                () => (lost += 1),
            );
            {script}
            return {{ got, asked, lost }};
        }}"""
    )


def test_events_are_delivered_once_and_in_order(modules):
    result = feed(
        modules, "const it = make(() => []); [0, 1, 1, 2, 0].map(event).map((e) => it.push(e));"
    )
    assert result == {"got": [0, 1, 2], "asked": [], "lost": 0}


def test_what_was_missed_is_asked_for(modules):
    script = """
        const kept = [1, 2, 3, 4, 5].map(event);
        const it = make((from) => kept.filter(({ seq }) => seq >= from).slice(0, 2));
        it.push(event(0)); it.push(event(4)); await it.catchUp();
    """
    assert feed(modules, script) == {"got": [0, 1, 2, 3, 4, 5], "asked": [1, 3, 5, 6], "lost": 0}


def test_what_is_gone_is_passed_over_and_told(modules):
    script = """
        const it = make((from) => [5, 6].filter((seq) => seq >= from).map(event));
        it.push(event(0)); it.push(event(7)); await it.catchUp();
    """
    result = feed(modules, script)
    assert result["got"] == [0, 5, 6, 7]
    assert result["lost"] == 1


def test_a_server_that_does_not_answer_loses_only_what_was_missed(modules):
    script = """
        const it = make(() => { throw new Error("gone"); });
        it.push(event(0)); it.push(event(2)); await it.catchUp(); it.push(event(3));
    """
    assert feed(modules, script)["got"] == [0, 2, 3]


def test_a_wav_file_holds_the_same_floats(modules):
    same = modules.evaluate(
        """async () => {
            const { toWav, fromWav } = await import("/wav.mjs");
            const sound = Float32Array.of(0, 1e-30, -0.1, 1.5, 0.3);
            const file = toWav([sound.subarray(0, 2), sound.subarray(2)], 24000);
            const { samples, sampleRate } = fromWav(await file.arrayBuffer());
            const isSame = samples.every((it, i) => Object.is(it, sound[i]));
            return isSame && sampleRate === 24000 && samples.length;
        }"""
    )
    assert same == 5
