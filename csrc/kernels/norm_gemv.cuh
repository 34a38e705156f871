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
            out[row] = without_flag(row_value<Format>(partials, scales, i), row);
        }
    }
};

/// Value i of a share whose tiles are eight gate rows and their eight up rows: silu(gate) * up.
template <class Format>
__device__ __forceinline__ float swiglu_value(const float* partials, const float* scales, int i) {
    const int row = i / 8 * kTileRows + i % 8;
    const float gate = row_value<Format>(partials, scales, row);
    const float up = row_value<Format>(partials, scales, row + 8);
    return swiglu(gate, up) * Format::kSwigluScale;
}

/// silu(gate) * up as activation [kParts, ffn].
struct StoreSwiglu {
    void* out;
    int ffn;
    template <class Format>
    __device__ void finish(const float* partials, const float* scales, const Share& share) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < share.tiles * 8; i += kGemvThreads) {
            const int index = share.first_tile * 8 + i;
            uint16_t bits[Format::kParts];
            Format::hand_on(bits, index, swiglu_value<Format>(partials, scales, i));
#pragma unroll
            for (int part = 0; part < Format::kParts; ++part)
                static_cast<uint16_t*>(out)[part * ffn + index] = bits[part];
        }
    }
};

constexpr int kMaxHiddenPieces = 4;  // float4 a thread: hidden sizes up to 4096

/// This thread's pieces of a norm's weights, float32 [hidden].
static __device__ __forceinline__ void load_norm_weight(float4 (&weight)[kMaxHiddenPieces],
                                                        const float* norm_weight, int hidden) {
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) {
        const int p = threadIdx.x + i * kGemvThreads;
        // Not left as it was: in a loop that would keep its register from one round to the next.
        weight[i] = make_float4(0, 0, 0, 0);
        if (p < hidden / 4) weight[i] = reinterpret_cast<const float4*>(norm_weight)[p];
    }
}

/// Adds what residual_gemv left to the residual stream.
__device__ __forceinline__ float4 add_delta(float4 h, float4 delta) {
    const float4 d = without_flags(delta);
    return make_float4(h.x + d.x, h.y + d.y, h.z + d.z, h.w + d.w);
}

/// Normalises h, thread i's pieces i, i + kGemvThreads ... of a vector, into shared memory: x is an
/// activation [kParts, hidden].
template <class Format>
__device__ __forceinline__ void store_normalised(const float4 (&h)[kMaxHiddenPieces],
                                                 const float4 (&weight)[kMaxHiddenPieces],
                                                 int hidden, float eps,
                                                 typename Format::Activation* x, float* scratch) {
    const int pieces = hidden / 4;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) {
        const int p = threadIdx.x + i * kGemvThreads;
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
#pragma unroll
    for (int i = 0; i < kMaxHiddenPieces; ++i) h[i] = add_delta(h[i], added[i]);
    store_normalised<Format>(h, weight, hidden, eps, x, scratch);
}

/// The new residual stream, and zeros for the next sum; each block writes its part. One warp.
static __device__ __forceinline__ void hand_on(const Residual& residual, int hidden) {
    const int pieces = hidden / 4, mine = ceil_div(pieces, gridDim.x), first = mine * blockIdx.x;
    for (int p = first + lane_id(); p < min(first + mine, pieces); p += 32) {
        const float4 a = reinterpret_cast<const float4*>(residual.before)[p];
        const float4 b = reinterpret_cast<const float4*>(residual.delta)[p];
        if (residual.after) reinterpret_cast<float4*>(residual.after)[p] = add_delta(a, b);
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
    const WeightRing ring(shared, barriers, slots);
    const Share share = whole_tiles(matrix.tiles, matrix.blocks_a_tile());
    if (threadIdx.x >= kGemvThreads) {
        RingFiller{ring, kSlotsInFlight}.fill<Format>(matrix, share);
        wait_for_previous_kernel();
        hand_on(residual, matrix.columns);
        return;
    }
    float4 weight[kMaxHiddenPieces];
    load_norm_weight(weight, norm_weight, matrix.columns);
    float* scales = partials + share.tiles * kPartialsATile;
    load_scales<Format>(matrix, share, scales);
    clear_partials(partials, share.tiles);

    wait_for_previous_kernel();
    if (first_of_frame) allow_next_kernel();
    load_normalised<Format>(residual, weight, matrix.columns, eps, x, scratch);
    RingCursor cursor;
    multiply_share<Format>(ring, cursor, share, x, matrix.columns, partials);
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
    const int blocks = std::min(on.gemv_blocks, matrix.tiles);
    const GemvShared<Format> shared(on, matrix.columns, ceil_div(matrix.tiles, blocks), true);
    launch(on, norm_gemv_kernel<Format, Epilogue>, blocks, kGemvBlockThreads, shared.bytes, matrix,
           residual, norm_weight, eps, first_of_frame, shared.slots, epilogue);
}

}  // namespace livevoice
