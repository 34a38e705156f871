// Sound as bytes: base64 from the websocket, and WAV files of mono 32-bit floats.
//
// Floats all the way, so that what is heard and downloaded equals the node's AUDIO bit by bit.

const FLOAT_FORMAT = 3; // WAVE_FORMAT_IEEE_FLOAT
const HEADER_BYTES = 44;

/**
 * @param {string} text base64 of little-endian float32.
 * @returns {Float32Array} the samples.
 */
export function fromBase64(text) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return new Float32Array(bytes.buffer);
}

/**
 * @param {Float32Array[]} chunks samples, in order.
 * @param {number} sampleRate in Hz.
 * @returns {Blob} a WAV file.
 */
export function toWav(chunks, sampleRate) {
    const dataBytes = 4 * chunks.reduce((sum, chunk) => sum + chunk.length, 0);
    const header = new DataView(new ArrayBuffer(HEADER_BYTES));
    const word = (at, text) => [...text].forEach((c, i) => header.setUint8(at + i, c.charCodeAt(0)));
    word(0, "RIFF");
    header.setUint32(4, HEADER_BYTES - 8 + dataBytes, true);
    word(8, "WAVEfmt ");
    header.setUint32(16, 16, true);
    header.setUint16(20, FLOAT_FORMAT, true);
    header.setUint16(22, 1, true);
    header.setUint32(24, sampleRate, true);
    header.setUint32(28, 4 * sampleRate, true);
    header.setUint16(32, 4, true);
    header.setUint16(34, 32, true);
    word(36, "data");
    header.setUint32(40, dataBytes, true);
    return new Blob([header, ...chunks], { type: "audio/wav" });
}

/**
 * @param {ArrayBuffer} file a WAV file as this pack writes it.
 * @returns {{samples: Float32Array, sampleRate: number}}
 */
export function fromWav(file) {
    const view = new DataView(file);
    const word = (at) => String.fromCharCode(...new Uint8Array(file, at, 4));
    if (file.byteLength < HEADER_BYTES || word(0) !== "RIFF" || word(36) !== "data") {
        throw new Error("not a WAV file of this pack");
    }
    if (view.getUint16(20, true) !== FLOAT_FORMAT || view.getUint16(22, true) !== 1) {
        throw new Error("WAV: mono 32-bit floats are expected");
    }
    const n = Math.floor(Math.min(view.getUint32(40, true), file.byteLength - HEADER_BYTES) / 4);
    return { samples: new Float32Array(file, HEADER_BYTES, n), sampleRate: view.getUint32(24, true) };
}
