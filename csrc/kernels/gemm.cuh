// gemm: packed weights x the activations of a prompt chunk, Y[s, row] = sum_k W[row, k] X[s, k].
//
// Weights and activations come through stages of shared memory that are on their way while earlier
// ones are multiplied; the packed weights are the A operand as they lie, and activations are stored
// in that operand's order of columns (operand_column). Every output is summed over k in the same
// order whatever the length of the prompt.
#pragma once
#include <type_traits>

#include "kernels/gemm_parts.cuh"
#include "kernels/gemm_wgmma.cuh"

namespace livevoice {

/// How a block is cut: kWarpRows x kWarpColumns warps, each kTiles tiles of 16 rows by 8 * kColumns
/// positions; kBlocks k32 blocks a stage, kStages stages.
template <int kWarpRows_, int kWarpColumns_, int kTiles_, int kColumns_, int kBlocks_, int kStages_>
struct GemmShape {
    static constexpr int kWarpRows = kWarpRows_, kWarpColumns = kWarpColumns_;
    static constexpr int kTiles = kTiles_, kColumns = kColumns_, kBlocks = kBlocks_;
    static constexpr int kStages = kStages_;
    static constexpr int kWarps = kWarpRows * kWarpColumns, kThreads = 32 * kWarps;
    static constexpr int kPositions = 8 * kColumns * kWarpColumns;
    static constexpr int kBlockTiles = kWarpRows * kTiles;
    static_assert(kBlocks % 2 == 0, "two blocks of a position fill all 32 banks");
};

template <class Format, class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads)
    gemm_kernel(PackedMatrix matrix, const typename Format::Activation* x, int S, int splits,
                Epilogue epilogue) {
    using Stages = GemmStages<Format, Shape>;
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float scales[Shape::kBlockTiles * kTileRows];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / Shape::kWarpColumns, warp_column = warp % Shape::kWarpColumns;
    const GemmPart part(matrix, splits, Shape::kPositions, Shape::kBlockTiles);
    Stages stages(shared, matrix, x, S, part);

    allow_next_kernel();
    stages.template begin<Shape::kStages - 1>(matrix, part, scales);
    float sum[Shape::kTiles][Shape::kColumns][4] = {};
    const int x_offset = (warp_column * Shape::kColumns * 8 + lane % 8) * Stages::kRowBytes;
    const int piece[2] = {(lane / 8 ^ lane % 8) * 16, ((4 + lane / 8) ^ lane % 8) * 16};
    const int weight_offset = warp_row * Shape::kTiles * Stages::kTileBytes + lane * 16;
    for (int stage = 0; part.begin + stage * Shape::kBlocks < part.end; ++stage) {
        copy_async_wait<Shape::kStages - 2>();
        __syncthreads();
        stages.fetch(stage + Shape::kStages - 1);
        const uint8_t* x_lane = stages.activations(stage) + x_offset;
        const uint8_t* weight = stages.weights(stage) + weight_offset;
#pragma unroll
        for (int b = 0; b < Shape::kBlocks; ++b) {
            Operand a[Shape::kTiles];
#pragma unroll
            for (int m = 0; m < Shape::kTiles; ++m)
                a[m] = Format::unpack(
                    Format::load(weight + m * Stages::kTileBytes + b * Format::kBlockBytes));
#pragma unroll
            for (int n = 0; n < Shape::kColumns; ++n) {
                const uint4 v =
                    load_matrix(x_lane + n * 8 * Stages::kRowBytes + b / 2 * 128 + piece[b % 2]);
#pragma unroll
                for (int m = 0; m < Shape::kTiles; ++m) Format::multiply(sum[m][n], a[m], v);
            }
        }
    }
    if (part.begin >= part.end) __syncthreads();  // for the scales: nothing was multiplied
#pragma unroll
    for (int m = 0; m < Shape::kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < Shape::kColumns; ++n)
            store_sums<Format>(epilogue, matrix, part, scales, warp_row * Shape::kTiles + m,
                               (warp_column * Shape::kColumns + n) * 8, S, sum[m][n]);
    }
}

template <class Format, class Shape, class Epilogue>
void gemm_with(const Launch& on, const PackedMatrix& matrix, const typename Format::Activation* x,
               int S, int splits, const Epilogue& epilogue) {
    const dim3 grid(ceil_div(S, Shape::kPositions), ceil_div(matrix.tiles, Shape::kBlockTiles),
                    splits);
    launch(on, gemm_kernel<Format, Shape, Epilogue>, grid, Shape::kThreads,
           Shape::kStages * GemmStages<Format, Shape>::kStageBytes, matrix, x, S, splits, epilogue);
}

/// matrix: packed [rows, columns]; x: activation [S, columns] in operand order; columns a multiple
/// of 32.
template <class Format, class Epilogue>
void gemm(const Launch& on, const PackedMatrix& matrix, const typename Format::Activation* x, int S,
          int splits, const Epilogue& epilogue) {
    // Short prompts are bound by reading weights: few positions, many blocks on their way. Every
    // shape here fits the 99 KB of shared memory that a block may have on any GPU.
    constexpr int kDeep = 4096 / Format::kBlockBytes;
    using Medium = std::conditional_t<Format::kScaled, GemmShape<1, 4, 5, 2, 4, 3>,
                                      GemmShape<4, 1, 1, 8, 4, 3>>;
    if (S <= 16)
        gemm_with<Format, GemmShape<4, 1, 1, 2, kDeep, 3>>(on, matrix, x, S, splits, epilogue);
    else if (S <= 32)
        gemm_with<Format, GemmShape<4, 1, 1, 4, kDeep / 2, 3>>(on, matrix, x, S, splits, epilogue);
    else if (S <= 64)
        gemm_with<Format, Medium>(on, matrix, x, S, splits, epilogue);
    else if (!on.has_wgmma)
        gemm_with<Format, GemmShape<4, 1, 2, 8, 2, 3>>(on, matrix, x, S, splits, epilogue);
    else if (ceil_div(S, 128) <= ceil_div(S, 152))
        wgmma_gemm<Format, 128>(on, matrix, x, S, splits, epilogue);
    else
        wgmma_gemm<Format, 152>(on, matrix, x, S, splits, epilogue);
}

}  // namespace livevoice
