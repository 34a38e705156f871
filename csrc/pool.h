// The engine's own memory: arenas of one cudaMalloc each, cut into named regions before anything is
// allocated. Plain cudaMalloc on purpose: ComfyUI's memory management sees it and makes room for
// it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace livevoice {

struct Region {
    std::string name;
    size_t offset, bytes;
};

/// Lay out first (reserve), then allocate; addresses never move until the arena is destroyed.
class Arena {
  public:
    explicit Arena(std::string name) : name_(std::move(name)) {}
    ~Arena() { release(); }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    /// Appends a region, 256-byte aligned. Returns its index.
    int reserve(const std::string& region, size_t bytes);
    /// Makes room for something that lies over the regions while they are not in use.
    void reserve_at_least(size_t bytes);
    /// One cudaMalloc on the current device. `on_host`: ordinary memory, to test the bookkeeping.
    void allocate(bool on_host = false);
    void release() noexcept;
    /// Fills everything with 0xFF: NaN in every float format, so that a read of something that was
    /// never written shows.
    void poison(cudaStream_t stream);

    template <class T>
    T* at(int region) const {
        return reinterpret_cast<T*>(base_ + regions_.at(region).offset);
    }
    uint8_t* base() const { return base_; }
    const std::string& name() const { return name_; }
    const std::vector<Region>& regions() const { return regions_; }
    size_t layout_bytes() const { return bytes_; }
    /// Bytes held now.
    size_t resident_bytes() const { return base_ ? bytes_ : 0; }

  private:
    std::string name_;
    std::vector<Region> regions_;
    size_t bytes_ = 0;
    uint8_t* base_ = nullptr;
    bool on_host_ = false;
};

/// Tests make the n-th fallible step (allocation, stream, capture) after this call fail; 0: none.
void inject_fault(int step);
/// Fallible steps passed since the last inject_fault.
int fault_steps();
/// A place where inject_fault may strike. Throws OutOfMemory there.
void fault_point(const char* what);

}  // namespace livevoice
