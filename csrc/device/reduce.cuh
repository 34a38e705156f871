// Sums and maxima over a warp or a block. Orders are fixed, so results repeat to the bit.
#pragma once
#include "device/ptx.cuh"

namespace livevoice {

/// Sum over lanes that differ in the bits of `kLanes - 1`; every lane gets it.
template <int kLanes = 32>
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int lane = 1; lane < kLanes; lane <<= 1) v += __shfl_xor_sync(~0u, v, lane);
    return v;
}

/// Sum over the first kThreads threads of the block; each of them gets it. One barrier inside, and
/// `scratch` (float [kThreads / 32]) must not be reused before the next one.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    sync_first_threads<kThreads>();
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) total += scratch[warp];
    return total;
}

}  // namespace livevoice
