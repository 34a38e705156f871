// The page's one audio context, and whose turn it is to sound: several players, one pair of ears.

const contexts = new Map(); // sample rate in Hz -> AudioContext

/**
 * The page's context of a sample rate. At the sound's own rate the graph resamples nothing, so
 * chunks meet exactly; the browser converts at its output.
 * @param {number} sampleRate in Hz.
 * @returns {AudioContext}
 */
export function contextOf(sampleRate) {
    if (!contexts.has(sampleRate)) {
        contexts.set(sampleRate, new AudioContext({ sampleRate, latencyHint: "interactive" }));
    }
    return contexts.get(sampleRate);
}

let holder = null;
const waiting = [];

/** Ask to sound when those before have ended; `player.onTurn()` is called, perhaps at once. */
export function awaitTurn(player) {
    if (holder === player) return;
    if (!waiting.includes(player)) waiting.push(player);
    next();
}

/** Sound at once: whoever sounds is paused. */
export function takeTurn(player) {
    remove(player);
    const before = holder;
    holder = player;
    if (before && before !== player) before.pause();
}

/** Sound no longer, or no longer wait for it. */
export function leaveTurn(player) {
    remove(player);
    if (holder === player) holder = null;
    next();
}

/** Whether another player has the turn. */
export function isWaiting(player) {
    return holder !== player && waiting.includes(player);
}

function remove(player) {
    const at = waiting.indexOf(player);
    if (at >= 0) waiting.splice(at, 1);
}

function next() {
    if (holder || !waiting.length) return;
    holder = waiting.shift();
    holder.onTurn();
}
