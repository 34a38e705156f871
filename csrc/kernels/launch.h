// One way to launch a kernel: on a stream, checked, with or without programmatic dependent launch.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "check.h"

namespace livevoice {

/// Where and how kernels run. `overlap`: the next kernel may start before this one ends (sm_90 and
/// newer); every kernel that is launched this way calls wait_for_previous_kernel() before it
/// touches what others write.
struct Launch {
    cudaStream_t stream;
    bool overlap;
    int multiprocessors;
    int gemv_blocks;      // that a decode step deals the tiles of a matrix to
    size_t shared_bytes;  // that a block may take, such that the next kernel's fits beside it
    bool has_wgmma;       // H100 and H200: matrix products by groups of four warps
};

/// Launches on this stream of this device.
inline Launch launch_on(cudaStream_t stream, int device, bool overlap) {
    const auto attribute = [&](cudaDeviceAttr which) {
        int value = 0;
        CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
        return value;
    };
    const int major = attribute(cudaDevAttrComputeCapabilityMajor);
    const bool can_overlap = major >= 9;
    const int half = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 -
                     attribute(cudaDevAttrReservedSharedMemoryPerBlock);
    const int whole = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    return {stream,
            overlap && can_overlap,
            multiprocessors,
            multiprocessors,
            static_cast<size_t>(overlap && can_overlap ? half : whole),
            major == 9};
}

/// Sets what a kernel needs before its first launch on the current device; later calls cost little.
inline void prepare(const void* kernel, size_t shared_bytes) {
    static std::mutex mutex;
    static std::map<std::pair<const void*, int>, size_t> prepared;
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    const std::lock_guard<std::mutex> lock(mutex);
    const auto [entry, is_new] = prepared.try_emplace({kernel, device}, 0);
    // One division between cache and shared memory for all kernels: a multiprocessor must run empty
    // before it changes it, and then no kernel could start before the one before it ends.
    if (is_new)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                        cudaSharedmemCarveoutMaxShared));
    constexpr size_t kWithoutAsking = 40 << 10;  // of 48 KB; kernels have some of their own as well
    if (shared_bytes > std::max(entry->second, kWithoutAsking)) {
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)));
        entry->second = shared_bytes;
    }
}

/// How the blocks of a launch may run: after the kernel before, beside its end, or all at once.
enum class Order { kAfter, kOverlap, kTogether };

template <class... Parameters, class... Arguments>
void launch_in_order(const Launch& on, Order order, void (*kernel)(Parameters...), dim3 grid,
                     int threads, size_t shared_bytes, Arguments&&... arguments) {
    prepare(reinterpret_cast<const void*>(kernel), shared_bytes);
    cudaLaunchAttribute attribute{};
    if (order == Order::kTogether) {
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
    } else {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = on.stream;
    config.attrs = &attribute;
    config.numAttrs = order == Order::kAfter ? 0 : 1;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

template <class... Parameters, class... Arguments>
void launch(const Launch& on, void (*kernel)(Parameters...), dim3 grid, int threads,
            size_t shared_bytes, Arguments&&... arguments) {
    launch_in_order(on, on.overlap ? Order::kOverlap : Order::kAfter, kernel, grid, threads,
                    shared_bytes, std::forward<Arguments>(arguments)...);
}

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace livevoice
