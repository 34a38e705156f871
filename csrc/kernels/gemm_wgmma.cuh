// gemm by warpgroup products, for prompts of more than 64 positions on H100 and H200: the weights
// are the operand in registers, as they lie packed; the activations are the one in shared memory.
#pragma once
#include "device/wgmma.cuh"
#include "kernels/gemm_parts.cuh"

namespace livevoice {

/// kGroups warpgroups, each 64 rows (a tile a warp) x N positions; stages of 64 columns.
template <int N>
struct WgmmaShape {
    static constexpr int kGroups = 3, kStages = 4, kBlocks = 2;
    static constexpr int kWarps = 4 * kGroups, kThreads = 32 * kWarps;
    static constexpr int kPositions = N, kBlockTiles = kWarps;
    static_assert(N % 8 == 0, "eight positions fill the 1024 bytes that the swizzle repeats after");
};

template <class Format, int N, class Epilogue>
__global__ void __launch_bounds__(WgmmaShape<N>::kThreads, 1)
    wgmma_gemm_kernel(PackedMatrix matrix, const typename Format::Activation* x, int S, int splits,
                      Epilogue epilogue) {
#if LIVEVOICE_WGMMA
    using Shape = WgmmaShape<N>;
    using Stages = GemmStages<Format, Shape>;
    extern __shared__ __align__(1024) uint8_t swizzled[];
    __shared__ float scales[Shape::kBlockTiles * kTileRows];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const GemmPart part(matrix, splits, Shape::kPositions, Shape::kBlockTiles);
    Stages stages(swizzled, matrix, x, S, part);
    // One stage less ahead than there are: products of the last stage may still read it.
    constexpr int kAhead = Shape::kStages - 2;

    allow_next_kernel();
    stages.template begin<kAhead>(matrix, part, scales);
    float sum[N / 2] = {};
    const int weight_offset = warp * Stages::kTileBytes + lane * 16;
    const auto multiply = [&](int stage, Operand(&a)[2]) {
        copy_async_wait<kAhead - 1>();
        fence_for_wgmma();
        __syncthreads();
        stages.fetch(stage + kAhead);
        const uint8_t* weight = stages.weights(stage) + weight_offset;
        a[0] = Format::unpack(Format::load(weight));
        a[1] = Format::unpack(Format::load(weight + Format::kBlockBytes));
        uint64_t b[4] = {wgmma_operand(
            static_cast<uint32_t>(__cvta_generic_to_shared(stages.activations(stage))))};
#pragma unroll
        for (int k = 1; k < 4; ++k) b[k] = next_k16(b[k - 1]);
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // all operands are ready before the first product
            auto& r = a[k / 2].step[k % 2];
            asm volatile("" : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]), "+l"(b[k])::"memory");
        }
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma<N, Format::kScaled>(sum, a[k / 2].step[k % 2], b[k]);
        wgmma_commit();
        pin(sum);
        wgmma_wait<1>();
    };
    // Two by turns, without a condition in between: ptxas would let every product wait otherwise.
    Operand even[2], odd[2];
    const int n_stages = ceil_div(part.end - part.begin, Shape::kBlocks);
    int stage = 0;
#pragma unroll 1
    for (; stage + 1 < n_stages; stage += 2) {
        multiply(stage, even);
        multiply(stage + 1, odd);
    }
    if (stage < n_stages) multiply(stage, even);
    wgmma_wait<0>();
    pin(sum);
    if (n_stages <= 0) __syncthreads();  // for the scales: nothing was multiplied
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
        store_sums<Format>(epilogue, matrix, part, scales, warp, 8 * n, S,
                           reinterpret_cast<const float (&)[4]>(sum[4 * n]));
#else
    __trap();  // the host never chooses it
#endif
}

template <class Format, int N, class Epilogue>
void wgmma_gemm(const Launch& on, const PackedMatrix& matrix, const typename Format::Activation* x,
                int S, int splits, const Epilogue& epilogue) {
    using Shape = WgmmaShape<N>;
    const dim3 grid(ceil_div(S, Shape::kPositions), ceil_div(matrix.tiles, Shape::kBlockTiles),
                    splits);
    launch(on, wgmma_gemm_kernel<Format, N, Epilogue>, grid, Shape::kThreads,
           Shape::kStages * GemmStages<Format, Shape>::kStageBytes, matrix, x, S, splits, epilogue);
}

}  // namespace livevoice
