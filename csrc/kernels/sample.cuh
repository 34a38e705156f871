// sample: logits -> one delayed row. Temperature, top-k, top-p and a Gumbel-max draw exactly as
// engine/sampling.py, then the BOC ramp. One block per codebook.
#pragma once
#include "device/reduce.cuh"
#include "device/rng.cuh"
#include "kernels/launch.h"
#include "kernels/state.h"

namespace livevoice {

constexpr int kSampleThreads = 1024;
constexpr int kMaxCodebookVocab = 2048;

/// Floats as integers of the same order.
__device__ __forceinline__ uint32_t order_key(float v) {
    const uint32_t bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// Shared memory of a block that draws a code.
struct SampleScratch {
    float values[32];
    int codes[32], counts[2][32];
};

/// The codes of one codebook over the first kThreads threads of a block: thread i holds codes i,
/// i + kThreads ... Sums are added in the same order for any number of threads.
template <int kThreads>
struct Candidates {
    static constexpr int kCodesAThread = kMaxCodebookVocab / kThreads, kWarps = kThreads / 32;
    SampleScratch& scratch;
    float logit[kCodesAThread];  // divided by the temperature
    uint32_t key[kCodesAThread];
    bool is_kept[kCodesAThread];

    __device__ Candidates(SampleScratch& scratch, const float* logits, int vocab,
                          const Sampling& sampling)
        : scratch(scratch) {
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) {
            const int code = threadIdx.x + i * kThreads;
            is_kept[i] = code < vocab;
            const float v = is_kept[i] ? logits[code] : 0.0f;
            logit[i] = sampling.is_greedy ? v : __fdiv_rn(v, sampling.temperature);
            key[i] = is_kept[i] ? order_key(logit[i]) : 0u;
        }
    }
    __device__ void keep_from(uint32_t threshold) {
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) is_kept[i] = is_kept[i] && key[i] >= threshold;
    }
    /// Codes whose key is at least `threshold`, counted over the block. Neighbouring calls have
    /// another `turn`, so that one barrier is enough.
    __device__ int count_from(uint32_t threshold, int turn) const {
        int count = 0;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i)
            count += __popc(__ballot_sync(~0u, is_kept[i] && key[i] >= threshold));
        if (threadIdx.x % 32 == 0) scratch.counts[turn][threadIdx.x / 32] = count;
        sync_first_threads<kThreads>();
        const int warp = threadIdx.x % 32;
        return __reduce_add_sync(~0u, warp < kWarps ? scratch.counts[turn][warp] : 0);
    }
    /// Top-k: keeps what is at least the k-th largest logit; equal ones stay.
    __device__ void keep_top_k(int k) {
        uint32_t threshold = 0;  // largest key that at least k codes reach, bit by bit
        int turn = 0;
        for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1, turn ^= 1) {
            const int count = count_from(threshold | bit, turn);
            if (count >= k) threshold |= bit;
            if (count == k) break;
        }
        keep_from(threshold);
    }
    /// Top-p: keeps a code when the probability of all larger ones is at most p. Equal logits stand
    /// or fall together; the reference, which sorts, may part them.
    __device__ void keep_top_p(float p) {
        const float top = largest();
        float weight[kCodesAThread], above[kCodesAThread];
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i)
            weight[i] = is_kept[i] ? expf(logit[i] - top) : 0.0f;
        const float limit = p * sum(weight);
        uint32_t dropped = 0;  // largest key such that codes above it weigh more than the limit
        for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
#pragma unroll
            for (int i = 0; i < kCodesAThread; ++i)
                above[i] = key[i] > (dropped | bit) ? weight[i] : 0.0f;
            if (sum(above) > limit) dropped |= bit;
        }
        keep_from(dropped + 1);
    }
    /// Index of the largest logit plus noise; of equal ones the lowest.
    __device__ int draw(const Sampling& sampling, int row, int codebook) const {
        float best = -INFINITY;
        int best_code = kMaxCodebookVocab;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) {
            if (!is_kept[i]) continue;
            const int code = threadIdx.x + i * kThreads;
            const uint2 seed = make_uint2(sampling.seed_low, sampling.seed_high);
            const float noise =
                sampling.is_greedy ? 0.0f : gumbel(seed, sampling.stream, row, codebook, code);
            const float v = logit[i] + noise;
            if (v > best || best_code == kMaxCodebookVocab) {
                best = v;
                best_code = code;
            }
        }
        return argmax(best, best_code);
    }

  private:
    /// As by 1,024 threads with two codes each: their pairs, their warps, then one warp's sum after
    /// the other.
    __device__ float sum(const float (&v)[kCodesAThread]) const {
        constexpr int kRounds = kCodesAThread / 2;
#pragma unroll
        for (int i = 0; i < kRounds; ++i) {
            const float in_warp = warp_sum(v[i] + v[i + kRounds]);
            if (threadIdx.x % 32 == 0) scratch.values[i * kWarps + threadIdx.x / 32] = in_warp;
        }
        sync_first_threads<kThreads>();
        float total = 0.0f;
#pragma unroll
        for (int warp = 0; warp < 32; ++warp) total += scratch.values[warp];
        sync_first_threads<kThreads>();
        return total;
    }
    __device__ float largest() const {
        float v = -INFINITY;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) v = is_kept[i] ? fmaxf(v, logit[i]) : v;
        for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, lane));
        if (threadIdx.x % 32 == 0) scratch.values[threadIdx.x / 32] = v;
        sync_first_threads<kThreads>();
        for (int warp = 0; warp < kWarps; ++warp) v = fmaxf(v, scratch.values[warp]);
        sync_first_threads<kThreads>();
        return v;
    }
    __device__ int argmax(float v, int code) const {
        const auto take_better = [&](float other, int other_code) {
            if (other > v || (other == v && other_code < code)) {
                v = other;
                code = other_code;
            }
        };
        for (int lane = 16; lane > 0; lane /= 2)
            take_better(__shfl_xor_sync(~0u, v, lane), __shfl_xor_sync(~0u, code, lane));
        if (threadIdx.x % 32 == 0) {
            scratch.values[threadIdx.x / 32] = v;
            scratch.codes[threadIdx.x / 32] = code;
        }
        sync_first_threads<kThreads>();
        for (int warp = 0; warp < kWarps; ++warp)
            take_better(scratch.values[warp], scratch.codes[warp]);
        return code;
    }
};

/// The code of `codebook` in row state.row, ramp applied; logits: those of all codebooks. By the
/// first kThreads threads of a block, every one of which gets it.
template <int kThreads>
__device__ int sample_code(SampleScratch& scratch, const float* logits, int vocab,
                           const DecodeState& state, int codebook) {
    const Sampling& sampling = state.sampling;
    Candidates<kThreads> candidates(scratch, logits + static_cast<size_t>(codebook) * vocab, vocab,
                                    sampling);
    if (!sampling.is_greedy) {
        if (sampling.top_k > 0 && sampling.top_k < vocab) candidates.keep_top_k(sampling.top_k);
        if (sampling.top_p < 1.0f) candidates.keep_top_p(sampling.top_p);
    }
    const int code = candidates.draw(sampling, state.row, codebook), boc = vocab - 2;
    return codebook > state.row ? boc : code;  // ramp-in: codebook c starts at row c
}

/// Host memory; the host knows that a code is there when it is not negative any more.
__device__ __forceinline__ void tell_host(int* rows, int row, int codebooks, int codebook,
                                          int code) {
    *reinterpret_cast<volatile int*>(rows + static_cast<size_t>(row) * codebooks + codebook) = code;
}

static __global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const float* logits, int vocab, DecodeState* state, int* rows) {
    __shared__ SampleScratch scratch;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (state->is_done) return;
    const int codebook = blockIdx.x;
    const int code = sample_code<kSampleThreads>(scratch, logits, vocab, *state, codebook);
    if (threadIdx.x != 0) return;
    state->codes[codebook] = code;
    tell_host(rows, state->row, gridDim.x, codebook, code);
}

/// logits: float32 [codebooks, vocab]; rows: int32 [max_rows, codebooks], the newest is written.
inline void sample(const Launch& on, const float* logits, int codebooks, int vocab,
                   DecodeState* state, int* rows) {
    LIVEVOICE_CHECK(vocab <= kMaxCodebookVocab, "sample: at most ", kMaxCodebookVocab,
                    " codes a codebook, got ", vocab);
    launch(on, sample_kernel, codebooks, kSampleThreads, 0, logits, vocab, state, rows);
}

}  // namespace livevoice
