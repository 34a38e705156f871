#include "pool.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "check.h"

namespace livevoice {

namespace {
constexpr size_t kAlignment = 256;
std::atomic<int> fault_at{0};
std::atomic<int> steps_passed{0};
}  // namespace

int Arena::reserve(const std::string& region, size_t bytes) {
    LIVEVOICE_CHECK(!base_, "arena ", name_, ": region ", region, " comes after the allocation");
    regions_.push_back({region, bytes_, bytes});
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<int>(regions_.size()) - 1;
}

void Arena::reserve_at_least(size_t bytes) {
    LIVEVOICE_CHECK(!base_, "arena ", name_, ": can't grow after the allocation");
    if (bytes > bytes_) bytes_ = bytes;
}

void Arena::allocate(bool on_host) {
    LIVEVOICE_CHECK(!base_, "arena ", name_, ": allocated twice");
    fault_point(name_.c_str());
    on_host_ = on_host;
    void* memory = nullptr;
    if (on_host) {
        memory = std::malloc(bytes_);
    } else {
        const cudaError_t status = cudaMalloc(&memory, bytes_);
        if (status == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            size_t free_bytes = 0, total_bytes = 0;
            cudaMemGetInfo(&free_bytes, &total_bytes);
            throw OutOfMemory(sentence("native backend: out of GPU memory, ", name_, " needs ",
                                       bytes_ >> 20, " MB and ", free_bytes >> 20, " of ",
                                       total_bytes >> 20, " MB are free"));
        }
        CUDA_CHECK(status);
    }
    base_ = static_cast<uint8_t*>(memory);
}

void Arena::release() noexcept {
    if (!base_) return;
    if (on_host_)
        std::free(base_);
    else
        cudaFree(base_);
    base_ = nullptr;
}

void Arena::poison(cudaStream_t stream) {
    if (!base_) return;
    if (on_host_)
        std::memset(base_, 0xFF, bytes_);
    else
        CUDA_CHECK(cudaMemsetAsync(base_, 0xFF, bytes_, stream));
}

void inject_fault(int step) {
    steps_passed = 0;
    fault_at = step;
}

int fault_steps() { return steps_passed; }

void fault_point(const char* what) {
    if (++steps_passed == fault_at)
        throw OutOfMemory(sentence("native backend: out of GPU memory in ", what, " (injected)"));
}

}  // namespace livevoice
