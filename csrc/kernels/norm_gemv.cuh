// norm_gemv: RMSNorm of the residual stream, then packed weights x that vector. Three of the five
// kernels of a decode step: qkv, gate|up with SwiGLU, and the audio head.
#pragma once
#include "device/reduce.cuh"
#include "kernels/gemv.cuh"
#include "kernels/swiglu.cuh"

namespace livevoice {

/// The residual stream of one position: what it was, and what the last residual_gemv added to it.
/// Buffers alternate, so that no block reads what another one writes in the same kernel.
struct Residual {
    const float* before;  // float32 [hidden]
    const float* delta;   // float32 [hidden]
    float* after;         // float32 [hidden], before + delta; null: not needed any more
    float* cleared;       // float32 [hidden], the other delta, zeroed for the next residual_gemv
};

/// Rows to float32 [rows], scaled.
struct StoreRows {
    float* out;
    int rows;
    template <class Format>
    __device__ void finish(const float* partials, const float* scales, const Share& share) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < share.tiles * kTileRows; i += kGemvThreads) {
            const int row = share.first_tile * kTileRows + i;
            if (row >= rows) continue;
            const float sum = collect(partials, i / kTileRows, i % kTileRows);
            out[row] = Format::kScaled ? sum * scales[i] : sum;
        }
    }
};

/// Tiles of eight gate rows and their eight up rows to silu(gate) * up, activation [kParts, ffn].
struct StoreSwiglu {
    void* out;
    int ffn;
    template <class Format>
    __device__ void finish(const float* partials, const float* scales, const Share& share) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < share.tiles * 8; i += kGemvThreads) {
            const int tile = i / 8, row = i % 8;
            float gate = collect(partials, tile, row), up = collect(partials, tile, row + 8);
            if (Format::kScaled) {
                gate *= scales[tile * kTileRows + row];
                up *= scales[tile * kTileRows + row + 8];
            }
            Format::store(static_cast<typename Format::Activation*>(out), ffn,
                          (share.first_tile + tile) * 8 + row,
                          swiglu(gate, up) * Format::kSwigluScale);
        }
    }
};

constexpr int kMaxHiddenPieces = 4;  // float4 a thread: hidden sizes up to 4096

/// Normalises `residual` into shared memory, x: activation [kParts, hidden].
template <class Format>
__device__ void load_normalised(const Residual& residual, const float4 (&weight)[kMaxHiddenPieces],
                                int hidden, float eps, typename Format::Activation* x,
                                float* scratch) {
    // All loads first: behind a store the compiler would make each one wait for the one before.
    float4 h[kMaxHiddenPieces], added[kMaxHiddenPieces];
    const int pieces = hidden / 4;
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) {
        const int p = min(static_cast<int>(threadIdx.x) + i * kGemvThreads, pieces - 1);
        h[i] = reinterpret_cast<const float4*>(residual.before)[p];
        added[i] = reinterpret_cast<const float4*>(residual.delta)[p];
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) {
        const int p = threadIdx.x + i * kGemvThreads;
        h[i] = make_float4(h[i].x + added[i].x, h[i].y + added[i].y, h[i].z + added[i].z,
                           h[i].w + added[i].w);
        if (p < pieces)
            squares += h[i].x * h[i].x + h[i].y * h[i].y + h[i].z * h[i].z + h[i].w * h[i].w;
    }
    const float scale = rsqrtf(block_sum<kGemvThreads>(squares, scratch) / hidden + eps);
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) {
        const int p = threadIdx.x + i * kGemvThreads;
        if (p < pieces) {
            const float4 w = weight[i];
            Format::store4(x, hidden, 4 * p,
                           make_float4(h[i].x * scale * w.x, h[i].y * scale * w.y,
                                       h[i].z * scale * w.z, h[i].w * scale * w.w));
        }
    }
    sync_first_threads<kGemvThreads>();
}

/// The new residual stream, and zeros for the next sum; each block writes its part. One warp.
static __device__ __forceinline__ void hand_on(const Residual& residual, int hidden) {
    const int pieces = hidden / 4, mine = ceil_div(pieces, gridDim.x), first = mine * blockIdx.x;
    for (int p = first + lane_id(); p < min(first + mine, pieces); p += 32) {
        const float4 a = reinterpret_cast<const float4*>(residual.before)[p];
        const float4 b = reinterpret_cast<const float4*>(residual.delta)[p];
        if (residual.after)
            reinterpret_cast<float4*>(residual.after)[p] =
                make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        reinterpret_cast<float4*>(residual.cleared)[p] = make_float4(0, 0, 0, 0);
    }
}

/// `first_of_frame`: the next kernels of the frame read the decode state before they wait; it is
/// final only once this kernel's own wait has returned.
template <class Format, class Epilogue>
__global__ void __launch_bounds__(kGemvBlockThreads, 2)
    norm_gemv_kernel(PackedMatrix matrix, Residual residual, const float* norm_weight, float eps,
                     bool first_of_frame, int slots, Epilogue epilogue) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ uint64_t barriers[2 * kMaxSlots];
    __shared__ float scratch[kGemvWarps];
    auto* x = reinterpret_cast<typename Format::Activation*>(shared + slots * kSlotBytes);
    auto* partials = reinterpret_cast<float*>(x + Format::kParts * matrix.columns);

    if (!first_of_frame) allow_next_kernel();
    const WeightRing<Format> ring(shared, barriers, slots);
    const Share share = whole_tiles(matrix.tiles, matrix.blocks_a_tile());
    if (threadIdx.x >= kGemvThreads) {
        ring.fill(matrix, share);
        wait_for_previous_kernel();
        hand_on(residual, matrix.columns);
        return;
    }
    float4 weight[kMaxHiddenPieces];
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) {
        const int p = threadIdx.x + i * kGemvThreads;
        if (p < matrix.columns / 4) weight[i] = reinterpret_cast<const float4*>(norm_weight)[p];
    }
    float* scales = partials + share.tiles * kPartialsATile;
    load_scales<Format>(matrix, share, scales);
    clear_partials(partials, share.tiles);

    wait_for_previous_kernel();
    if (first_of_frame) allow_next_kernel();
    load_normalised<Format>(residual, weight, matrix.columns, eps, x, scratch);
    multiply_share<Format>(ring, share, x, matrix.columns, partials);
    sync_first_threads<kGemvThreads>();
    epilogue.template finish<Format>(partials, scales, share);
}

/// matrix: packed [rows, hidden]; norm_weight: float32 [hidden]; hidden a multiple of 32, <= 4096.
template <class Format, class Epilogue>
void norm_gemv(const Launch& on, const PackedMatrix& matrix, const Residual& residual,
               const float* norm_weight, float eps, bool first_of_frame, const Epilogue& epilogue) {
    LIVEVOICE_CHECK(matrix.columns <= 4 * kMaxHiddenPieces * kGemvThreads,
                    "norm_gemv: hidden size must be at most ", 4 * kMaxHiddenPieces * kGemvThreads,
                    ", got ", matrix.columns);
    const int blocks = std::min(on.multiprocessors, matrix.tiles);
    const GemvShared<Format> shared(on, matrix.columns, ceil_div(matrix.tiles, blocks), true);
    launch(on, norm_gemv_kernel<Format, Epilogue>, blocks, kGemvBlockThreads, shared.bytes, matrix,
           residual, norm_weight, eps, first_of_frame, shared.slots, epilogue);
}

}  // namespace livevoice
