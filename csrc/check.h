// Failures become exceptions that carry one sentence: what was expected, what came.
#pragma once
#include <cuda_runtime_api.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace livevoice {

template <class... Parts>
std::string sentence(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

/// The machine's fault: no driver, no memory, a failed launch. Python sees a RuntimeError.
struct CudaError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Device or pinned memory ran out. Python sees a MemoryError.
struct OutOfMemory : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check_cuda(cudaError_t status, const char* what, const char* file, int line) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // a failure that was reported must not surface again in the next check
    if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice)
        throw CudaError(
            "native backend: this machine has no usable NVIDIA GPU or its driver is older than "
            "CUDA "
            "13; install driver 580 or newer");
    if (status == cudaErrorMemoryAllocation)
        throw OutOfMemory(sentence("native backend: out of GPU memory in ", what));
    throw CudaError(sentence("native backend: ", what, " failed: ", cudaGetErrorString(status),
                             " [", file, ":", line, "]"));
}

}  // namespace livevoice

/// The caller's fault: a wrong shape, dtype or argument. Python sees a ValueError.
#define LIVEVOICE_CHECK(condition, ...)                                                    \
    do {                                                                                   \
        if (!(condition)) throw std::invalid_argument(::livevoice::sentence(__VA_ARGS__)); \
    } while (0)

#define CUDA_CHECK(call) ::livevoice::check_cuda((call), #call, __FILE__, __LINE__)
