// A race between speaking and listening, in numbers: chunks are made at a speed, cross a network
// and are played behind the cushion under test. Time is a variable, nothing waits.

/** SCHEDULE of engine/codec.py: frames of a chunk, and after it. */
const SCHEDULE = [[1, 6], [2, 8], [4, 10], [8, 10], [16, 10], [25, 10]];
const FRAME_S = 0.04;

/** Numbers in 0 ... 1 that are the same in every run. */
function random(seed) {
    let state = seed * 2654435761 + 1;
    return () => {
        state = (Math.imul(state ^ (state >>> 15), 2246822519) + 374761393) | 0;
        return ((state ^ (state >>> 13)) >>> 0) / 2 ** 32;
    };
}

/** Chunks of a speech: when each is sent and arrives, its length, and the speed told with it. */
export function arrivals({ speechS, speed, jitterS = 0, stallAtS = Infinity, stallS = 0, seed = 1 }) {
    const draw = random(seed);
    const nFrames = Math.round(speechS / FRAME_S);
    const madeAtS = (frames) =>
        (frames * FRAME_S) / speed + (frames * FRAME_S > stallAtS ? stallS : 0);
    const chunks = [];
    let [done, nowS] = [0, 0];
    for (let k = 0; done < nFrames; k++) {
        const [size, ahead] = SCHEDULE[Math.min(k, SCHEDULE.length - 1)];
        const n = done + size + ahead <= nFrames ? size : nFrames - done;
        done += n;
        const made = Math.min(nFrames, done + ahead);
        const sentS = madeAtS(made);
        nowS = Math.max(nowS, sentS + 0.005 + jitterS * draw()); // one connection keeps the order
        const recent = Math.max(1, made - Math.ceil((5 * speed) / FRAME_S));
        const measured = ((made - recent) * FRAME_S) / (madeAtS(made) - madeAtS(recent));
        chunks.push({ nowS, sentS, soundS: n * FRAME_S, speed: measured });
    }
    return chunks;
}

/**
 * Listen to a speech.
 * @returns {{waitS: number, pausesS: number[], endS: number}} seconds from the first chunk's
 *     arrival to the first sound, the length of each pause, and when the last sound has been heard.
 */
export function listen(Cushion, speech) {
    const cushion = new Cushion(speech.expectedS ?? 0);
    const chunks = arrivals(speech);
    let [readyS, untilS, silentSinceS, waitS] = [0, null, chunks[0].nowS, null];
    const pausesS = [];
    chunks.forEach((chunk, k) => {
        if (untilS !== null && chunk.nowS > untilS) {
            silentSinceS = untilS;
            untilS = null;
            cushion.ranDry();
        }
        cushion.arrive(chunk.nowS, chunk.sentS, chunk.soundS, chunk.speed);
        if (untilS !== null) {
            untilS += chunk.soundS;
            return;
        }
        readyS += chunk.soundS;
        if (!cushion.isReady(readyS, k === chunks.length - 1)) return;
        const silentS = chunk.nowS - silentSinceS;
        if (waitS === null) waitS = silentS;
        else pausesS.push(silentS);
        untilS = chunk.nowS + readyS;
        readyS = 0;
    });
    return { waitS, pausesS, endS: untilS };
}
