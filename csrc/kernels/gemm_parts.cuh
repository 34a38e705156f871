// What the two matrix products of a prompt share: how the work is cut, the stages of shared memory
// that weights and activations come through, and where the sums go.
#pragma once
#include "kernels/gemv.cuh"
#include "kernels/swiglu.cuh"

namespace livevoice {

/// Y float32 [splits, S, rows]: split i at i * split_stride.
struct StoreGemm {
    float* out;
    int rows;
    size_t split_stride;
    float input_scale;
    template <class Format>
    __device__ __forceinline__ void store(int tile, int g, int position, int split, float low,
                                          float high) const {
        float* to = out + split * split_stride + static_cast<size_t>(position) * rows;
        const int row = tile * kTileRows + g;
        if (row < rows) to[row] = low * input_scale;
        if (row + 8 < rows) to[row + 8] = high * input_scale;
    }
};

/// Gate and up rows of one tile meet in one lane: activation [S, ffn] in operand order.
struct StoreGemmSwiglu {
    void* out;
    int ffn;
    template <class Format>
    __device__ __forceinline__ void store(int tile, int g, int position, int, float gate,
                                          float up) const {
        static_cast<typename Format::Activation*>(
            out)[static_cast<size_t>(position) * ffn + operand_column(tile * 8 + g)] =
            Format::round(swiglu(gate, up) * Format::kSwigluScale);
    }
};

/// What a block of the grid (positions, tiles, splits) computes, and the k32 blocks it sums over.
struct GemmPart {
    int first_position, first_tile, split, begin, end;

    __device__ __forceinline__ GemmPart(const PackedMatrix& matrix, int splits, int positions,
                                        int tiles)
        : first_position(blockIdx.x * positions),
          first_tile(blockIdx.y * tiles),
          split(blockIdx.z) {
        const int share = ceil_div(matrix.blocks_a_tile(), splits);
        begin = split * share;
        end = min(begin + share, matrix.blocks_a_tile());
    }
};

/// What one thread copies of every stage's activations: the same positions and columns, moving
/// along K. The 16-byte pieces of a position lie permuted by its number: eight lanes that read the
/// same piece of eight positions then meet all 32 banks.
template <class Shape, class T>
struct ActivationFetch {
    static constexpr int kRowBytes = Shape::kBlocks * kBlockColumns * 2;
    static constexpr int kPieces = kRowBytes / 16;
    static constexpr int kRows = Shape::kThreads / kPieces;
    static constexpr int kCopies = (Shape::kPositions + kRows - 1) / kRows;
    static_assert(Shape::kThreads % kPieces == 0, "even shares");

    const T *x, *from;
    size_t row_stride;
    int position, piece, column, end_column, rows_left;

    __device__ __forceinline__ ActivationFetch(const T* x, int S, int columns, const GemmPart& part)
        : x(x),
          row_stride(static_cast<size_t>(kRows) * columns),
          position(threadIdx.x / kPieces),
          piece(threadIdx.x % kPieces),
          column(part.begin * kBlockColumns + 8 * piece),
          end_column(part.end * kBlockColumns),
          rows_left(S - part.first_position - position) {
        from = x + static_cast<size_t>(part.first_position + position) * columns + column;
    }
    /// Zeros past the ends.
    __device__ __forceinline__ void next(uint8_t* stage) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int at = position + i * kRows;
            const bool valid = i * kRows < rows_left && column < end_column;
            if (Shape::kPositions % kRows == 0 || at < Shape::kPositions)
                copy_async(stage + at * kRowBytes + (piece ^ at % 8) * 16,
                           valid ? from + i * row_stride : x, valid);
        }
        from += Shape::kBlocks * kBlockColumns;
        column += Shape::kBlocks * kBlockColumns;
    }
};

/// The same for a warp's share of a stage's weights, in pieces of 512 bytes. Zeros past the ends.
template <class Format, class Shape>
struct WeightFetch {
    static constexpr int kTileBytes = Shape::kBlocks * Format::kBlockBytes;  // of a stage
    static constexpr int kPiece = 512, kPieces = kTileBytes / kPiece;
    static constexpr int kAll = Shape::kBlockTiles * kPieces;
    static constexpr int kCopies = (kAll + Shape::kWarps - 1) / Shape::kWarps;

    const uint8_t *weights, *from;
    uint32_t tile_bytes;
    int left, tiles_left;  // left: bytes of each tile

    __device__ __forceinline__ WeightFetch(const PackedMatrix& matrix, const GemmPart& part)
        : weights(matrix.weights),
          tile_bytes(matrix.blocks_a_tile() * Format::kBlockBytes),
          left((part.end - part.begin) * Format::kBlockBytes),
          tiles_left(matrix.tiles - part.first_tile) {
        from = weights + static_cast<size_t>(part.first_tile) * tile_bytes +
               static_cast<size_t>(part.begin) * Format::kBlockBytes + threadIdx.x % 32 * 16;
    }
    __device__ __forceinline__ void next(uint8_t* stage) {
        const int warp = threadIdx.x / 32;
        stage += threadIdx.x % 32 * 16;
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int unit = warp + i * Shape::kWarps;
            const int tile = unit / kPieces, at = unit % kPieces * kPiece;
            const bool valid = tile < tiles_left && at < left;
            if (kAll % Shape::kWarps == 0 || unit < kAll)
                copy_async(stage + unit * kPiece, valid ? from + (tile * tile_bytes + at) : weights,
                           valid);
        }
        from += kTileBytes;
        left -= kTileBytes;
    }
};

/// Stages of shared memory: activations [positions, columns], then weights [tiles, blocks].
template <class Format, class Shape>
struct GemmStages {
    using T = typename Format::Activation;
    static constexpr int kRowBytes = ActivationFetch<Shape, T>::kRowBytes;
    static constexpr int kTileBytes = WeightFetch<Format, Shape>::kTileBytes;
    static constexpr int kActivationBytes = Shape::kPositions * kRowBytes;
    static constexpr int kStageBytes = kActivationBytes + Shape::kBlockTiles * kTileBytes;

    uint8_t* memory;
    WeightFetch<Format, Shape> weight_fetch;
    ActivationFetch<Shape, T> activation_fetch;

    __device__ __forceinline__ GemmStages(uint8_t* memory, const PackedMatrix& matrix, const T* x,
                                          int S, const GemmPart& part)
        : memory(memory),
          weight_fetch(matrix, part),
          activation_fetch(x, S, matrix.columns, part) {}

    __device__ __forceinline__ uint8_t* activations(int stage) const {
        return memory + stage % Shape::kStages * kStageBytes;
    }
    __device__ __forceinline__ uint8_t* weights(int stage) const {
        return activations(stage) + kActivationBytes;
    }
    /// Requests the first kAhead stages: weights before the kernel waits for its input.
    template <int kAhead>
    __device__ __forceinline__ void begin(const PackedMatrix& matrix, const GemmPart& part,
                                          float* scales) {
        for (int s = 0; s < kAhead; ++s) weight_fetch.next(weights(s));
        for (int i = threadIdx.x; Format::kScaled && i < Shape::kBlockTiles * kTileRows;
             i += Shape::kThreads)
            scales[i] =
                matrix.scales[min(part.first_tile * kTileRows + i, matrix.tiles * kTileRows - 1)];
        wait_for_previous_kernel();
        for (int s = 0; s < kAhead; ++s) {
            activation_fetch.next(activations(s));
            copy_async_commit();  // the weights of all first stages belong to the first group
        }
    }
    /// Requests one more stage, as a group.
    __device__ __forceinline__ void fetch(int stage) {
        weight_fetch.next(weights(stage));
        activation_fetch.next(activations(stage));
        copy_async_commit();
    }
};

/// Hands on the sums of one tile (counted in the block) and eight positions, as mma leaves them.
template <class Format, class Epilogue>
__device__ __forceinline__ void store_sums(const Epilogue& epilogue, const PackedMatrix& matrix,
                                           const GemmPart& part, const float* scales, int tile,
                                           int position, int S, const float (&sum)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (part.first_tile + tile >= matrix.tiles) return;
    const float scale_low = Format::kScaled ? scales[tile * kTileRows + g] : 1.0f;
    const float scale_high = Format::kScaled ? scales[tile * kTileRows + g + 8] : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int s = part.first_position + position + 2 * t + i;
        if (s < S)
            epilogue.template store<Format>(part.first_tile + tile, g, s, part.split,
                                            sum[i] * scale_low, sum[2 + i] * scale_high);
    }
}

}  // namespace livevoice
