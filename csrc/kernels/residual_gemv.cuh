// residual_gemv: packed weights x one vector, added to the residual stream: the attention output
// projection and the down projection of a decode step.
#pragma once
#include "device/reduce.cuh"
#include "kernels/gemv.cuh"

namespace livevoice {

/// Attention splits the positions of a head over this many blocks; its reader merges them.
constexpr int kAttentionSplits = 4;

/// Input: the partial attention outputs, merged by their softmax weights.
template <int D>
struct AttentionParts {
    const __half* out;  // float16 [heads, splits, D], each split normalised by its own sum
    const float* lse;   // float32 [heads, splits], log2 of that sum

    template <class Format>
    __device__ void load(typename Format::Activation* x, int columns) const {
        // Several pieces of eight columns a thread; all their loads before the first store.
        constexpr int kPieces = 2;
        for (int first = threadIdx.x; first < columns / 8; first += kPieces * kGemvThreads) {
            uint4 part[kPieces][kAttentionSplits];
            float4 z[kPieces];
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int p = min(first + i * kGemvThreads, columns / 8 - 1);
                const int head = p * 8 / D, d = p * 8 % D;
#pragma unroll
                for (int s = 0; s < kAttentionSplits; ++s)
                    part[i][s] = *reinterpret_cast<const uint4*>(
                        out + (static_cast<size_t>(head) * kAttentionSplits + s) * D + d);
                z[i] = *reinterpret_cast<const float4*>(lse + head * kAttentionSplits);
            }
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int p = first + i * kGemvThreads;
                if (p < columns / 8) merge<Format>(x, columns, p, part[i], z[i]);
            }
        }
    }

    /// The splits of one piece, weighted by their share of the softmax.
    template <class Format>
    static __device__ __forceinline__ void merge(typename Format::Activation* x, int columns, int p,
                                                 const uint4 (&part)[kAttentionSplits], float4 z) {
        const float top = fmaxf(fmaxf(z.x, z.y), fmaxf(z.z, z.w));
        const float share[kAttentionSplits] = {exp2f(z.x - top), exp2f(z.y - top), exp2f(z.z - top),
                                               exp2f(z.w - top)};
        const float total = (share[0] + share[1]) + (share[2] + share[3]);
        float merged[8] = {};
#pragma unroll
        for (int s = 0; s < kAttentionSplits; ++s) {
            const auto* halves = reinterpret_cast<const __half2*>(&part[s]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 v = __half22float2(halves[i]);
                merged[2 * i] += share[s] * v.x;
                merged[2 * i + 1] += share[s] * v.y;
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i += 4)
            Format::store4(x, columns, p * 8 + i,
                           make_float4(merged[i] / total, merged[i + 1] / total,
                                       merged[i + 2] / total, merged[i + 3] / total));
    }
};

/// Input: an activation as StoreSwiglu left it, [kParts, columns].
struct StoredActivation {
    const void* values;

    template <class Format>
    __device__ void load(typename Format::Activation* x, int columns) const {
        const int pieces = Format::kParts * columns / 8;
        for (int p = threadIdx.x; p < pieces; p += kGemvThreads)
            copy_async(reinterpret_cast<uint4*>(x) + p, static_cast<const uint4*>(values) + p,
                       true);
        copy_async_commit();
        copy_async_wait<0>();
    }
};

template <class Format, class Input>
__global__ void __launch_bounds__(kGemvBlockThreads, 2)
    residual_gemv_kernel(PackedMatrix matrix, Input input, float input_scale, int slots,
                         float* delta) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ uint64_t barriers[2 * kMaxSlots];
    auto* x = reinterpret_cast<typename Format::Activation*>(shared + slots * kSlotBytes);
    auto* partials = reinterpret_cast<float*>(x + Format::kParts * matrix.columns);

    allow_next_kernel();
    const WeightRing ring(shared, barriers, slots);
    const Share share = equal_share(matrix.tiles, matrix.blocks_a_tile());
    if (threadIdx.x >= kGemvThreads) {
        RingFiller{ring, kSlotsInFlight}.fill<Format>(matrix, share);
        return;
    }
    float* scales = partials + share.tiles * kPartialsATile;
    load_scales<Format>(matrix, share, scales);
    clear_partials(partials, share.tiles);

    wait_for_previous_kernel();
    input.template load<Format>(x, matrix.columns);
    sync_first_threads<kGemvThreads>();
    RingCursor cursor;
    multiply_share<Format>(ring, cursor, share, x, matrix.columns, partials);
    sync_first_threads<kGemvThreads>();
#pragma unroll 1
    for (int i = threadIdx.x; i < share.tiles * kTileRows; i += kGemvThreads) {
        const int row = share.first_tile * kTileRows + i;
        // At most two addends meet a zero: a + b = b + a, so the order does not matter.
        atomicAdd(delta + row, row_value<Format>(partials, scales, i, input_scale));
    }
}

/// matrix: packed [hidden, columns]; delta: float32 [hidden], zero before; columns a multiple
/// of 32. input_scale undoes a scale that the input was stored with.
template <class Format, class Input>
void residual_gemv(const Launch& on, const PackedMatrix& matrix, const Input& input,
                   float input_scale, float* delta) {
    const int blocks = std::min(on.gemv_blocks, matrix.tiles);
    LIVEVOICE_CHECK(int64_t{matrix.tiles} * matrix.blocks_a_tile() * blocks < int64_t{1} << 31,
                    "residual_gemv: a matrix of ", matrix.tiles, " tiles is too large");
    const GemvShared<Format> shared(on, matrix.columns, ceil_div(matrix.tiles, blocks) + 1, false);
    launch(on, residual_gemv_kernel<Format, Input>, blocks, kGemvBlockThreads, shared.bytes, matrix,
           input, input_scale, shared.slots, delta);
}

}  // namespace livevoice
