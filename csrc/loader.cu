#include "loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "file.h"

namespace livevoice {

namespace {

constexpr int kReadThreads = 4;

/// Copying out of the page cache is bound by one core's memory speed: several threads share it.
void read(const File& file, void* to, size_t bytes, int64_t offset) {
    const size_t share = (bytes / kReadThreads + 4095) / 4096 * 4096;
    std::atomic<bool> has_failed{false};
    std::vector<std::thread> threads;
    for (size_t begin = 0; begin < bytes; begin += share) {
        const size_t end = std::min(begin + share, bytes);
        threads.emplace_back([=, &file, &has_failed] {
            if (!file.read(static_cast<char*>(to) + begin, end - begin, offset + begin))
                has_failed = true;
        });
    }
    for (std::thread& thread : threads) thread.join();
    if (has_failed) throw CudaError(sentence("checkpoint: reading ", file.path(), " failed"));
}

}  // namespace

Loader::Loader(const Launch& on, uint8_t* staging) : on_(on), staging_(staging) {
    for (int i = 0; i < 2; ++i) {
        pinned_[i].allocate(kChunkBytes);
        is_free_[i].create();
    }
}

void Loader::load(const MatrixSource& source, Precision format, uint8_t* packed, float* scales,
                  RowPlacement place) {
    const size_t row_bytes = static_cast<size_t>(source.columns) * 2;
    const int rows_a_chunk = static_cast<int>(kChunkBytes / row_bytes);
    LIVEVOICE_CHECK(rows_a_chunk > 0, "loader: a row of ", row_bytes, " bytes is too long");
    std::unique_ptr<File> file;
    if (!source.path.empty()) file = std::make_unique<File>(source.path);

    for (int row = 0; row < source.rows; row += rows_a_chunk) {
        const int rows = std::min(rows_a_chunk, source.rows - row), slot = next_;
        const size_t bytes = rows * row_bytes, start = row * row_bytes;
        next_ = 1 - next_;
        CUDA_CHECK(cudaEventSynchronize(is_free_[slot].get()));
        void* pinned = pinned_[slot].as<void>();
        if (file)
            read(*file, pinned, bytes, source.offset + static_cast<int64_t>(start));
        else
            std::memcpy(pinned, static_cast<const char*>(source.memory) + start, bytes);
        // The stream is in order: an earlier pack has left this half of the staging area.
        uint8_t* staged = staging_ + slot * kChunkBytes;
        CUDA_CHECK(cudaMemcpyAsync(staged, pinned, bytes, cudaMemcpyHostToDevice, on_.stream));
        CUDA_CHECK(cudaEventRecord(is_free_[slot].get(), on_.stream));
        if (format == Precision::kFp8)
            pack<Fp8>(staged, packed, scales, row, rows, source.columns, place, on_.stream);
        else
            pack<Bf16>(staged, packed, scales, row, rows, source.columns, place, on_.stream);
    }
}

}  // namespace livevoice
