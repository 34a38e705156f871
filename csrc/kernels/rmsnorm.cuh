// rmsnorm: y = x / sqrt(mean(x^2) + eps) * weight for each position of a prompt, after adding what
// the last GEMM left in partial sums. Float32 inside; one rounding, to the activation type.
#pragma once
#include "device/formats.cuh"
#include "device/reduce.cuh"
#include "kernels/launch.h"

namespace livevoice {

constexpr int kNormThreads = 512;
constexpr int kNormPieces = 2;  // float4 a thread: hidden sizes up to 4096

/// Sum of the K splits of a GEMM at element i, in a fixed order; at most four.
__device__ __forceinline__ float4 sum_splits(const float* partials, int splits, size_t stride,
                                             size_t i) {
    constexpr int kMaxSplits = 4;
    float4 v[kMaxSplits], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s)
        v[s] = s < splits ? *reinterpret_cast<const float4*>(partials + s * stride + i) : sum;
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s)
        sum = make_float4(sum.x + v[s].x, sum.y + v[s].y, sum.z + v[s].z, sum.w + v[s].w);
    return sum;
}

template <class Format>
__global__ void __launch_bounds__(kNormThreads)
    rmsnorm_kernel(float* residual, const float* partials, int splits, size_t stride,
                   const float* weight, float eps, int hidden, typename Format::Activation* y) {
    __shared__ float scratch[kNormThreads / 32];
    allow_next_kernel();
    float4 w[kNormPieces], v[kNormPieces];
#pragma unroll
    for (int i = 0; i < kNormPieces; ++i) {
        const int p = threadIdx.x + i * kNormThreads;
        if (p < hidden / 4) w[i] = reinterpret_cast<const float4*>(weight)[p];
    }
    wait_for_previous_kernel();
    const size_t offset = static_cast<size_t>(blockIdx.x) * hidden;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kNormPieces; ++i) {
        const int p = threadIdx.x + i * kNormThreads;
        if (p >= hidden / 4) continue;
        auto* at = reinterpret_cast<float4*>(residual + offset) + p;
        const float4 add = sum_splits(partials, splits, stride, offset + 4 * p);
        v[i] = *at;
        v[i] = make_float4(v[i].x + add.x, v[i].y + add.y, v[i].z + add.z, v[i].w + add.w);
        if (splits > 0) *at = v[i];
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    }
    const float scale = rsqrtf(block_sum<kNormThreads>(squares, scratch) / hidden + eps);
#pragma unroll
    for (int i = 0; i < kNormPieces; ++i) {
        const int p = threadIdx.x + i * kNormThreads;
        if (p >= hidden / 4) continue;
        alignas(8) const typename Format::Activation rounded[4] = {
            Format::round(v[i].x * scale * w[i].x), Format::round(v[i].y * scale * w[i].y),
            Format::round(v[i].z * scale * w[i].z), Format::round(v[i].w * scale * w[i].w)};
        const auto* pairs = reinterpret_cast<const uint32_t*>(rounded);
        auto* to = reinterpret_cast<uint32_t*>(y + offset + operand_column(4 * p));
        to[0] = pairs[0];
        to[4] = pairs[1];
    }
}

/// residual: float32 [S, hidden], in place; partials: float32 [splits, stride / hidden, hidden], or
/// splits 0; weight: float32 [hidden]; y: activation [S, hidden].
template <class Format>
void rmsnorm(const Launch& on, float* residual, const float* partials, int splits, size_t stride,
             const float* weight, float eps, int S, int hidden, typename Format::Activation* y) {
    LIVEVOICE_CHECK(hidden % 4 == 0 && hidden <= 4 * kNormPieces * kNormThreads,
                    "rmsnorm: hidden must be a multiple of 4 up to ",
                    4 * kNormPieces * kNormThreads, ", got ", hidden);
    launch(on, rmsnorm_kernel<Format>, S, kNormThreads, 0, residual, partials, splits, stride,
           weight, eps, hidden, y);
}

/// The last position of a prompt becomes the residual of the decode kernels, with an empty delta.
static __global__ void last_position_kernel(const float* residual, const float* partials,
                                            int splits, size_t stride, int S, int hidden,
                                            float* before, float* delta) {
    wait_for_previous_kernel();
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= hidden / 4) return;
    const size_t i = static_cast<size_t>(S - 1) * hidden + 4 * p;
    const float4 add = sum_splits(partials, splits, stride, i);
    const float4 v = *reinterpret_cast<const float4*>(residual + i);
    reinterpret_cast<float4*>(before)[p] =
        make_float4(v.x + add.x, v.y + add.y, v.z + add.z, v.w + add.w);
    reinterpret_cast<float4*>(delta)[p] = make_float4(0, 0, 0, 0);
}

/// before, delta: float32 [hidden].
inline void last_position(const Launch& on, const float* residual, const float* partials,
                          int splits, size_t stride, int S, int hidden, float* before,
                          float* delta) {
    launch(on, last_position_kernel, ceil_div(hidden / 4, 128), 128, 0, residual, partials, splits,
           stride, S, hidden, before, delta);
}

}  // namespace livevoice
