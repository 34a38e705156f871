// sample: logits -> one delayed row. Temperature, top-k, top-p and a Gumbel-max draw exactly as
// engine/sampling.py, then the BOC ramp. One block per codebook.
#pragma once
#include "device/reduce.cuh"
#include "device/rng.cuh"
#include "kernels/launch.h"
#include "kernels/state.h"

namespace livevoice {

constexpr int kSampleThreads = 1024;
constexpr int kCodesAThread = 2;  // codebooks of up to 2048 entries
constexpr int kMaxCodebookVocab = kSampleThreads * kCodesAThread;

/// Floats as integers of the same order.
__device__ __forceinline__ uint32_t order_key(float v) {
    const uint32_t bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// The codes of one codebook: thread i holds codes i and i + 1024.
struct Candidates {
    float logit[kCodesAThread];  // divided by the temperature
    uint32_t key[kCodesAThread];
    bool is_kept[kCodesAThread];

    __device__ void load(const float* logits, int vocab, const Sampling& sampling) {
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) {
            const int code = threadIdx.x + i * kSampleThreads;
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
    /// Codes whose key is at least `threshold`, counted over the block.
    __device__ int count_from(uint32_t threshold) const {
        int count = 0;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i)
            count += __syncthreads_count(is_kept[i] && key[i] >= threshold);
        return count;
    }
    /// Top-k: keeps what is at least the k-th largest logit; equal ones stay.
    __device__ void keep_top_k(int k) {
        uint32_t threshold = 0;  // largest key that at least k codes reach, bit by bit
        for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
            const int count = count_from(threshold | bit);
            if (count >= k) threshold |= bit;
            if (count == k) break;
        }
        keep_from(threshold);
    }
    /// Top-p: keeps a code when the probability of all larger ones is at most p. Equal logits stand
    /// or fall together; the reference, which sorts, may part them.
    __device__ void keep_top_p(float p, float* scratch) {
        const float top = largest(scratch);
        float weight[kCodesAThread], mine = 0.0f;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) {
            weight[i] = is_kept[i] ? expf(logit[i] - top) : 0.0f;
            mine += weight[i];
        }
        const float limit = p * sum(mine, scratch);
        uint32_t dropped = 0;  // largest key such that codes above it weigh more than the limit
        for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
            float above = 0.0f;
#pragma unroll
            for (int i = 0; i < kCodesAThread; ++i)
                above += key[i] > (dropped | bit) ? weight[i] : 0.0f;
            if (sum(above, scratch) > limit) dropped |= bit;
        }
        keep_from(dropped + 1);
    }
    /// Index of the largest logit plus noise; of equal ones the lowest.
    __device__ int draw(const Sampling& sampling, int row, int codebook, float* scratch) const {
        float best = -INFINITY;
        int best_code = kMaxCodebookVocab;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) {
            if (!is_kept[i]) continue;
            const int code = threadIdx.x + i * kSampleThreads;
            const uint2 seed = make_uint2(sampling.seed_low, sampling.seed_high);
            const float noise =
                sampling.is_greedy ? 0.0f : gumbel(seed, sampling.stream, row, codebook, code);
            const float v = logit[i] + noise;
            if (v > best || best_code == kMaxCodebookVocab) {
                best = v;
                best_code = code;
            }
        }
        return argmax(best, best_code, scratch);
    }

  private:
    static __device__ float sum(float v, float* scratch) {
        const float total = block_sum<kSampleThreads>(v, scratch);
        __syncthreads();
        return total;
    }
    __device__ float largest(float* scratch) const {
        float v = -INFINITY;
#pragma unroll
        for (int i = 0; i < kCodesAThread; ++i) v = is_kept[i] ? fmaxf(v, logit[i]) : v;
        for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, lane));
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
        __syncthreads();
        for (int warp = 0; warp < kSampleThreads / 32; ++warp) v = fmaxf(v, scratch[warp]);
        __syncthreads();
        return v;
    }
    static __device__ int argmax(float v, int code, float* scratch) {
        __shared__ int codes[kSampleThreads / 32];
        const auto take_better = [&](float other, int other_code) {
            if (other > v || (other == v && other_code < code)) {
                v = other;
                code = other_code;
            }
        };
        for (int lane = 16; lane > 0; lane /= 2)
            take_better(__shfl_xor_sync(~0u, v, lane), __shfl_xor_sync(~0u, code, lane));
        if (threadIdx.x % 32 == 0) {
            scratch[threadIdx.x / 32] = v;
            codes[threadIdx.x / 32] = code;
        }
        __syncthreads();
        for (int warp = 0; warp < kSampleThreads / 32; ++warp)
            take_better(scratch[warp], codes[warp]);
        return code;
    }
};

static __global__ void __launch_bounds__(kSampleThreads)
    sample_kernel(const float* logits, int vocab, DecodeState* state, int* rows) {
    __shared__ float scratch[kSampleThreads / 32];
    allow_next_kernel();
    wait_for_previous_kernel();
    const int codebook = blockIdx.x, row = state->row;
    if (state->is_done) return;
    const Sampling sampling = state->sampling;
    Candidates candidates;
    candidates.load(logits + static_cast<size_t>(codebook) * vocab, vocab, sampling);
    if (!sampling.is_greedy) {
        if (sampling.top_k > 0 && sampling.top_k < vocab) candidates.keep_top_k(sampling.top_k);
        if (sampling.top_p < 1.0f) candidates.keep_top_p(sampling.top_p, scratch);
    }
    int code = candidates.draw(sampling, row, codebook, scratch);
    if (threadIdx.x != 0) return;
    const int boc = vocab - 2;
    if (codebook > row) code = boc;  // ramp-in: codebook c starts at row c
    state->codes[codebook] = code;
    // Host memory; the host knows that a code is there when it is not negative any more.
    *reinterpret_cast<volatile int*>(rows + static_cast<size_t>(row) * gridDim.x + codebook) = code;
}

/// logits: float32 [codebooks, vocab]; rows: int32 [max_rows, codebooks], the newest is written.
inline void sample(const Launch& on, const float* logits, int codebooks, int vocab,
                   DecodeState* state, int* rows) {
    LIVEVOICE_CHECK(vocab <= kMaxCodebookVocab, "sample: at most ", kMaxCodebookVocab,
                    " codes a codebook, got ", vocab);
    launch(on, sample_kernel, codebooks, kSampleThreads, 0, logits, vocab, state, rows);
}

}  // namespace livevoice
