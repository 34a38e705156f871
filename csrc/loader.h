// Weights from disk to the arena: a file (or host memory) is read by a few threads into two pinned
// buffers in turn, copied to a staging area on the GPU, and packed from there. No second copy.
#pragma once
#include <memory>
#include <string>

#include "graph.h"
#include "kernels/launch.h"
#include "kernels/pack.cuh"
#include "model.h"

namespace livevoice {

/// Where the bfloat16 rows of one matrix lie: in a file, or in memory when `path` is empty.
struct MatrixSource {
    std::string path;
    int64_t offset = 0;
    const void* memory = nullptr;
    int rows = 0, columns = 0;
};

class Loader {
  public:
    static constexpr size_t kChunkBytes = 32u << 20;
    static constexpr size_t kStagingBytes = 2 * kChunkBytes;

    /// staging: kStagingBytes on the GPU that nothing else uses meanwhile.
    Loader(const Launch& on, uint8_t* staging);

    /// Reads the matrix and packs its rows at `place`.
    void load(const MatrixSource& source, Precision format, uint8_t* packed, float* scales,
              RowPlacement place);

  private:
    const Launch on_;
    uint8_t* const staging_;
    PinnedBuffer pinned_[2];
    Event is_free_[2];  // the copy out of a pinned buffer has finished
    int next_ = 0;
};

}  // namespace livevoice
