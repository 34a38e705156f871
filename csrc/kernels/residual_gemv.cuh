// residual_gemv: packed weights x one vector, added to the residual stream: the attention output
// projection and the down projection of a decode step.
#pragma once
#include "device/reduce.cuh"
#include "kernels/gemv.cuh"

namespace livevoice {

/// Attention splits the positions of a head over this many blocks; its reader merges them.
constexpr int kAttentionSplits = 4;

/// Input: the partial attention outputs, merged by their softmax weights.
struct AttentionParts {
    const __half* out;  // float16 [heads, splits, D], each split normalised by its own sum
    const float* lse;   // float32 [heads, splits], log2 of that sum
    int head_dim;

    template <class Format>
    __device__ void load(typename Format::Activation* x, int columns) const {
        for (int p = threadIdx.x; p < columns / 8; p += kGemvThreads) {
            const int head = p * 8 / head_dim, d = p * 8 % head_dim;
            uint4 part[kAttentionSplits];
#pragma unroll
            for (int s = 0; s < kAttentionSplits; ++s)
                part[s] = *reinterpret_cast<const uint4*>(
                    out + (static_cast<size_t>(head) * kAttentionSplits + s) * head_dim + d);
            const float4 z = *reinterpret_cast<const float4*>(lse + head * kAttentionSplits);
            const float top = fmaxf(fmaxf(z.x, z.y), fmaxf(z.z, z.w));
            float share[kAttentionSplits] = {exp2f(z.x - top), exp2f(z.y - top), exp2f(z.z - top),
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
            for (int i = 0; i < 8; ++i) Format::store(x, columns, p * 8 + i, merged[i] / total);
        }
    }
};

/// Input: an activation as StoreSwiglu left it, [kParts, columns].
struct StoredActivation {
    const void* values;

    template <class Format>
    __device__ void load(typename Format::Activation* x, int columns) const {
        const int pieces = Format::kParts * columns / 8;
        for (int p = threadIdx.x; p < pieces; p += kGemvThreads)
            reinterpret_cast<uint4*>(x)[p] = static_cast<const uint4*>(values)[p];
    }
};

template <class Format, class Input>
__global__ void __launch_bounds__(kGemvThreads, 2)
    residual_gemv_kernel(PackedMatrix matrix, Input input, float input_scale, float* delta) {
    extern __shared__ __align__(16) uint8_t shared[];
    auto* x = reinterpret_cast<typename Format::Activation*>(shared + kGemvWarps * kRingBytes);
    auto* partials = reinterpret_cast<float*>(x + Format::kParts * matrix.columns);

    allow_next_kernel();
    const int blocks_a_tile = matrix.blocks_a_tile();
    const TileWalk walk = equal_shares(matrix.tiles, blocks_a_tile, WeightStream<Format>::kBatch);
    WeightStream<Format> stream(matrix.weights, walk, blocks_a_tile, shared);
    float* scales = partials + walk.tiles * kPartialsATile;
    load_scales<Format>(matrix, walk, scales);
    clear_partials(partials, walk.tiles);

    wait_for_previous_kernel();
    input.template load<Format>(x, matrix.columns);
    __syncthreads();
    multiply_stream<Format>(stream, x, matrix.columns, partials);
    __syncthreads();
    for (int i = threadIdx.x; i < walk.tiles * kTileRows; i += kGemvThreads) {
        const int row = walk.tile(0) * kTileRows + i;  // neighbouring tiles
        const float sum = collect(partials, i / kTileRows, i % kTileRows) * input_scale;
        // At most two addends meet a zero: a + b = b + a, so the order does not matter.
        atomicAdd(delta + row, Format::kScaled ? sum * scales[i] : sum);
    }
}

/// matrix: packed [hidden, columns]; delta: float32 [hidden], zero before; columns a multiple
/// of 64. input_scale undoes a scale that the input was stored with.
template <class Format, class Input>
void residual_gemv(const Launch& on, const PackedMatrix& matrix, const Input& input,
                   float input_scale, float* delta) {
    const int blocks = std::min(on.multiprocessors, matrix.tiles);
    const int tiles_touched = ceil_div(matrix.tiles, blocks) + 1;
    launch(on, residual_gemv_kernel<Format, Input>, blocks, kGemvThreads,
           gemv_shared_bytes<Format>(on, matrix.columns, tiles_touched), matrix, input, input_scale,
           delta);
}

}  // namespace livevoice
