#include "loader.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

namespace livevoice {

namespace {

constexpr int kReadThreads = 4;

class File {
  public:
    explicit File(const std::string& path)
        : path_(path), descriptor_(open(path.c_str(), O_RDONLY)) {
        if (descriptor_ < 0)
            throw CudaError(sentence("checkpoint: can't open ", path, ": ", std::strerror(errno)));
    }
    ~File() { close(descriptor_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    /// Copying out of the page cache is bound by one core's memory speed: several threads share it.
    void read(void* to, size_t bytes, int64_t offset) const {
        const size_t share = (bytes / kReadThreads + 4095) / 4096 * 4096;
        std::atomic<bool> has_failed{false};
        std::vector<std::thread> threads;
        for (size_t begin = 0; begin < bytes; begin += share) {
            const size_t end = std::min(begin + share, bytes);
            threads.emplace_back([=, &has_failed] {
                if (!read_part(static_cast<char*>(to) + begin, end - begin, offset + begin))
                    has_failed = true;
            });
        }
        for (std::thread& thread : threads) thread.join();
        if (has_failed) throw CudaError(sentence("checkpoint: reading ", path_, " failed"));
    }

  private:
    bool read_part(char* to, size_t bytes, int64_t offset) const {
        while (bytes > 0) {
            const ssize_t n = pread(descriptor_, to, bytes, offset);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return false;
            to += n;
            offset += n;
            bytes -= n;
        }
        return true;
    }

    std::string path_;
    int descriptor_;
};

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
            file->read(pinned, bytes, source.offset + static_cast<int64_t>(start));
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
