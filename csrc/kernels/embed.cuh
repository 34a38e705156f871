// embed: table rows to input vectors. A code row is the sum of its N rows of the audio table, which
// lies packed, because it is the audio head as well.
#pragma once
#include "device/formats.cuh"
#include "kernels/launch.h"
#include "kernels/state.h"

namespace livevoice {

/// The audio table: packed bf16 [codebooks * vocab, hidden]; row n * vocab + code.
struct AudioTable {
    const uint8_t* packed;
    int codebooks, vocab, hidden;

    /// Columns 8p .. 8p+7 of the sum over codebooks, in float32, codebook 0 first.
    __device__ __forceinline__ void sum(float (&out)[8], const int* codes, int p) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i] = 0.0f;
        for (int n = 0; n < codebooks; ++n) {
            const size_t piece = packed_bf16_piece(n * vocab + codes[n], p, hidden / kBlockColumns);
            float v[8];
            unpack_bf16(v, reinterpret_cast<const uint4*>(packed)[piece]);
#pragma unroll
            for (int i = 0; i < 8; ++i) out[i] += v[i];
        }
    }
    /// Columns 4p .. 4p+3 of the same.
    __device__ __forceinline__ float4 sum4(const int* codes, int p) const {
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int n = 0; n < codebooks; ++n) {
            const size_t piece =
                packed_bf16_piece(n * vocab + codes[n], p / 2, hidden / kBlockColumns);
            const uint2 v = reinterpret_cast<const uint2*>(packed)[2 * piece + p % 2];
            out.x += __uint_as_float(v.x << 16), out.y += __uint_as_float(v.x & 0xffff0000u);
            out.z += __uint_as_float(v.y << 16), out.w += __uint_as_float(v.y & 0xffff0000u);
        }
        return out;
    }
};

__device__ __forceinline__ void store8(float* to, const float (&v)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/// The state after `row` was sampled: which row and position come next, and whether speech ended.
/// After the ramp-in of N rows, EOC in codebook 0 leaves N - 2 more rows (engine/delay.py).
__device__ inline void advance(DecodeState* state, int codebooks, int vocab, int capacity) {
    const int eoc = vocab - 1;
    if (state->rows_to_eoc >= 0)
        --state->rows_to_eoc;
    else if (state->row >= codebooks && state->codes[0] == eoc)
        state->rows_to_eoc = codebooks - 2;
    ++state->row;
    if (state->rows_to_eoc == 0 || state->row >= state->max_rows) state->is_done = 1;
    // The last row of a full context is sampled but never computed: nothing reads its position.
    state->position = min(state->next_position, capacity - 1);
    ++state->next_position;
}

constexpr int kEmbedThreads = 512;

/// Decode: the newest row, then the state after it. Also clears the delta that the first norm_gemv
/// adds. One block, so that nothing reads the state after it was advanced.
static __global__ void embed_row_kernel(AudioTable table, DecodeState* state, int capacity,
                                        bool is_forced, float* residual, float* delta) {
    allow_next_kernel();
    wait_for_previous_kernel();
    if (state->is_done && !is_forced) return;  // nothing reads what the frames ahead compute
    for (int p = threadIdx.x; p < table.hidden / 8; p += kEmbedThreads) {
        float sum[8];
        const float zeros[8] = {};
        table.sum(sum, state->codes, p);
        store8(residual + 8 * p, sum);
        store8(delta + 8 * p, zeros);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    advance(state, table.codebooks, table.vocab, capacity);
    if (is_forced) state->is_done = 0;
}

/// state->codes: the row; residual, delta: float32 [hidden]. The position of the step is final when
/// this has finished.
inline void embed_row(const Launch& on, const AudioTable& table, DecodeState* state, int capacity,
                      bool is_forced, float* residual, float* delta) {
    launch(on, embed_row_kernel, 1, kEmbedThreads, 0, table, state, capacity, is_forced, residual,
           delta);
}

/// Prefill: text rows come from the host, code rows (codes[s][0] >= 0) from the table.
static __global__ void embed_prompt_kernel(AudioTable table, const uint4* text, const int* codes,
                                           float* residual) {
    wait_for_previous_kernel();
    const int s = blockIdx.x, pieces = table.hidden / 8;
    const int* row = codes + static_cast<size_t>(s) * table.codebooks;
    for (int p = threadIdx.x; p < pieces; p += blockDim.x) {
        float v[8];
        if (row[0] >= 0)
            table.sum(v, row, p);
        else
            unpack_bf16(v, text[static_cast<size_t>(s) * pieces + p]);
        store8(residual + (static_cast<size_t>(s) * pieces + p) * 8, v);
    }
}

/// text: bf16 [S, hidden]; codes: int32 [S, codebooks], -1 where the text row counts; residual:
/// float32 [S, hidden].
inline void embed_prompt(const Launch& on, const AudioTable& table, const void* text,
                         const int* codes, int S, float* residual) {
    launch(on, embed_prompt_kernel, S, 128, 0, table, static_cast<const uint4*>(text), codes,
           residual);
}

}  // namespace livevoice
