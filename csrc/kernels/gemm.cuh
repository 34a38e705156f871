// gemm: packed weights x the activations of a prompt chunk, Y[s, row] = sum_k W[row, k] X[s, k].
//
// Weights and activations come through stages of shared memory that are on their way while earlier
// ones are multiplied; the packed weights are the A operand as they lie. Every output is summed
// over k in the same order whatever the length of the prompt, so a prefix that is reused gives the
// same bits as one that is read again.
#pragma once
#include "kernels/gemv.cuh"
#include "kernels/swiglu.cuh"

namespace livevoice {

/// How a block is cut: 4 warps, each kTiles tiles of 16 rows by 8 * kColumns positions; kBlocks k32
/// blocks a stage.
template <int kTilesAWarp, int kColumnsAWarp, int kBlocksAStage>
struct GemmShape {
    static constexpr int kWarps = 4, kThreads = 32 * kWarps, kStages = 3;
    static constexpr int kTiles = kTilesAWarp, kColumns = kColumnsAWarp, kBlocks = kBlocksAStage;
    static constexpr int kPositions = 8 * kColumns;
    /// 64 bytes of padding: eight lanes that read 16 bytes each then meet all 32 banks.
    static constexpr int kStride = kBlocks * kBlockColumns + 32;
    static constexpr int kActivationBytes = kPositions * kStride * 2;
    static constexpr int kWarpBlocks = kTiles * kBlocks;  // weight blocks of a warp and stage
    template <class Format>
    static constexpr int kStageBytes =
        kActivationBytes + kWarps * kWarpBlocks * Format::kBlockBytes;
    static_assert(kBlocks % 2 == 0, "the padding is for an even number of blocks");
};

/// Y float32 [splits, S, rows]: split i at i * split_stride.
struct StoreGemm {
    float* out;
    int rows;
    size_t split_stride;
    float input_scale;
    template <class Format>
    __device__ __forceinline__ void store(const PackedMatrix& matrix, int tile, int g, int position,
                                          int split, float low, float high) const {
        float* to = out + split * split_stride + static_cast<size_t>(position) * rows;
        const int row = tile * kTileRows + g;
        const float scale_low = Format::kScaled ? matrix.scales[row] : 1.0f;
        const float scale_high = Format::kScaled ? matrix.scales[row + 8] : 1.0f;
        if (row < rows) to[row] = low * input_scale * scale_low;
        if (row + 8 < rows) to[row + 8] = high * input_scale * scale_high;
    }
};

/// Gate and up rows of one tile meet in one lane: activation [S, ffn].
struct StoreGemmSwiglu {
    void* out;
    int ffn;
    template <class Format>
    __device__ __forceinline__ void store(const PackedMatrix& matrix, int tile, int g, int position,
                                          int, float gate, float up) const {
        if (Format::kScaled) {
            gate *= matrix.scales[tile * kTileRows + g];
            up *= matrix.scales[tile * kTileRows + g + 8];
        }
        static_cast<typename Format::Activation*>(
            out)[static_cast<size_t>(position) * ffn + tile * 8 + g] =
            Format::round(swiglu(gate, up) * Format::kSwigluScale);
    }
};

/// What one thread copies of every stage: the same positions and columns, moving along K.
template <class Shape, class T>
struct ActivationFetch {
    static constexpr int kPieces = Shape::kBlocks * kBlockColumns / 8;
    static constexpr int kRows = Shape::kThreads / kPieces, kCopies = Shape::kPositions / kRows;
    static_assert(Shape::kThreads % kPieces == 0 && Shape::kPositions % kRows == 0, "even shares");

    const T *x, *from;
    size_t row_stride;
    int column, end_column, rows_left, to;

    __device__ __forceinline__ ActivationFetch(const T* x, int S, int columns, int first_position,
                                               int first_column, int end_column)
        : x(x), row_stride(static_cast<size_t>(kRows) * columns), end_column(end_column) {
        const int position = threadIdx.x / kPieces, piece = threadIdx.x % kPieces * 8;
        column = first_column + piece;
        rows_left = S - first_position - position;
        from = x + static_cast<size_t>(first_position + position) * columns + column;
        to = position * Shape::kStride + piece;
    }
    /// Zeros past the ends.
    __device__ __forceinline__ void next(T* stage) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const bool valid = i * kRows < rows_left && column < end_column;
            copy_async(stage + to + i * kRows * Shape::kStride, valid ? from + i * row_stride : x,
                       valid);
        }
        from += Shape::kBlocks * kBlockColumns;
        column += Shape::kBlocks * kBlockColumns;
    }
};

/// The same for a warp's weights: kBlocks blocks of each of its tiles. Past the ends nothing is
/// read and the results are not stored.
template <class Format, class Shape>
struct WeightFetch {
    const uint8_t* from;
    size_t tile_stride;
    int block, end, tiles_left;

    __device__ __forceinline__ WeightFetch(const PackedMatrix& matrix, int first_tile, int begin,
                                           int end)
        : tile_stride(static_cast<size_t>(matrix.blocks_a_tile()) * Format::kBlockBytes),
          block(begin),
          end(end),
          tiles_left(matrix.tiles - first_tile) {
        from = matrix.weights + first_tile * tile_stride +
               static_cast<size_t>(begin) * Format::kBlockBytes + threadIdx.x % 32 * 16;
    }
    __device__ __forceinline__ void next(uint8_t* stage) {
#pragma unroll
        for (int m = 0; m < Shape::kTiles; ++m) {
#pragma unroll
            for (int b = 0; b < Shape::kBlocks; ++b) {
                const bool valid = m < tiles_left && block + b < end;
                if (valid)
                    Format::fetch(stage + (m * Shape::kBlocks + b) * Format::kBlockBytes,
                                  from + m * tile_stride + b * Format::kBlockBytes);
            }
        }
        from += Shape::kBlocks * Format::kBlockBytes;
        block += Shape::kBlocks;
    }
};

template <class Format, class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads)
    gemm_kernel(PackedMatrix matrix, const typename Format::Activation* x, int S, int splits,
                Epilogue epilogue) {
    using T = typename Format::Activation;
    extern __shared__ __align__(16) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int blocks_a_tile = matrix.blocks_a_tile(), share = ceil_div(blocks_a_tile, splits);
    const int begin = blockIdx.z * share, end = min(begin + share, blocks_a_tile);
    const int first_position = blockIdx.y * Shape::kPositions;
    const int first_tile = (blockIdx.x * Shape::kWarps + warp) * Shape::kTiles;

    constexpr int kStageBytes = Shape::template kStageBytes<Format>;
    const auto activations = [&](int stage) {
        return reinterpret_cast<T*>(shared + stage % Shape::kStages * kStageBytes);
    };
    const auto weights = [&](int stage) {
        return shared + stage % Shape::kStages * kStageBytes + Shape::kActivationBytes +
               warp * Shape::kWarpBlocks * Format::kBlockBytes + lane * 16;
    };
    WeightFetch<Format, Shape> weight_fetch(matrix, first_tile, begin, end);
    ActivationFetch<Shape, T> activation_fetch(x, S, matrix.columns, first_position,
                                               begin * kBlockColumns, end * kBlockColumns);
    allow_next_kernel();
    for (int s = 0; s < Shape::kStages - 1; ++s) weight_fetch.next(weights(s));
    wait_for_previous_kernel();
    for (int s = 0; s < Shape::kStages - 1; ++s) {
        activation_fetch.next(activations(s));
        copy_async_commit();  // the weights of all first stages belong to the first group
    }

    float sum[Shape::kTiles][Shape::kColumns][4] = {};
    for (int stage = 0; begin + stage * Shape::kBlocks < end; ++stage) {
        copy_async_wait<Shape::kStages - 2>();
        __syncthreads();
        weight_fetch.next(weights(stage + Shape::kStages - 1));
        activation_fetch.next(activations(stage + Shape::kStages - 1));
        copy_async_commit();
        const T* x_lane = activations(stage) + g * Shape::kStride + 8 * t;
        const uint8_t* weight = weights(stage);
#pragma unroll
        for (int b = 0; b < Shape::kBlocks; ++b) {
            if (begin + stage * Shape::kBlocks + b >= end) break;  // what lies there is left over
            Operand a[Shape::kTiles];
#pragma unroll
            for (int m = 0; m < Shape::kTiles; ++m)
                a[m] = Format::unpack(
                    Format::load(weight + (m * Shape::kBlocks + b) * Format::kBlockBytes));
#pragma unroll
            for (int n = 0; n < Shape::kColumns; ++n) {
                const uint4 v = load_shared(x_lane + n * 8 * Shape::kStride + b * kBlockColumns);
#pragma unroll
                for (int m = 0; m < Shape::kTiles; ++m) Format::multiply(sum[m][n], a[m], v);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < Shape::kTiles; ++m) {
        if (first_tile + m >= matrix.tiles) continue;
#pragma unroll
        for (int n = 0; n < Shape::kColumns; ++n) {
            const int position = first_position + n * 8 + 2 * t;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (position + i < S)
                    epilogue.template store<Format>(matrix, first_tile + m, g, position + i,
                                                    blockIdx.z, sum[m][n][i], sum[m][n][2 + i]);
        }
    }
}

template <class Format, class Shape, class Epilogue>
void gemm_with(const Launch& on, const PackedMatrix& matrix, const typename Format::Activation* x,
               int S, int splits, const Epilogue& epilogue) {
    const dim3 grid(ceil_div(matrix.tiles, Shape::kWarps * Shape::kTiles),
                    ceil_div(S, Shape::kPositions), splits);
    launch(on, gemm_kernel<Format, Shape, Epilogue>, grid, Shape::kThreads,
           Shape::kStages * Shape::template kStageBytes<Format>, matrix, x, S, splits, epilogue);
}

/// matrix: packed [rows, columns]; x: activation [S, columns]; columns a multiple of 32.
template <class Format, class Epilogue>
void gemm(const Launch& on, const PackedMatrix& matrix, const typename Format::Activation* x, int S,
          int splits, const Epilogue& epilogue) {
    // Short prompts are bound by reading weights: few positions, many blocks on their way. Every
    // shape fits the 99 KB of shared memory that a block may have on any GPU.
    constexpr int kDeep = 4096 / Format::kBlockBytes;
    if (S <= 16)
        gemm_with<Format, GemmShape<1, 2, kDeep>>(on, matrix, x, S, splits, epilogue);
    else if (S <= 32)
        gemm_with<Format, GemmShape<1, 4, kDeep / 2>>(on, matrix, x, S, splits, epilogue);
    else
        gemm_with<Format, GemmShape<2, 8, 2>>(on, matrix, x, S, splits, epilogue);
}

}  // namespace livevoice
