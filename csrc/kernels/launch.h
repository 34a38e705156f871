// One way to launch a kernel: on a stream, checked, with or without programmatic dependent launch.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "check.h"

namespace livevoice {

/// Where and how kernels run. `overlap`: the next kernel may start before this one ends (sm_90 and
/// newer); every kernel that is launched this way calls wait_for_previous_kernel() before it touches
/// what others write.
struct Launch {
    cudaStream_t stream;
    bool overlap;
    int multiprocessors;
    int ring_bytes;  // of one warp in gemv: depends on the shared memory of the GPU
    size_t max_window_bytes;  // of L2's access policy; 0: leave L2 alone
};

/// Memory that a kernel reads once: L2 gives it up first, and keeps what kernels hand to each other.
struct Streamed {
    const void* data;
    size_t bytes;
};

template <class... Parameters, class... Arguments>
void launch_streaming(const Launch& on, const Streamed& streamed, void (*kernel)(Parameters...),
                      dim3 grid, int threads, size_t shared_bytes, Arguments&&... arguments) {
    constexpr size_t kWithoutAsking = 48 << 10;
    // One division between cache and shared memory for all kernels: a multiprocessor must run empty
    // before it changes it, and then no kernel could start before the one before it ends.
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    if (shared_bytes > kWithoutAsking)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)));
    cudaLaunchAttribute attributes[2]{};
    int n_attributes = 0;
    if (on.overlap) {
        cudaLaunchAttribute& attribute = attributes[n_attributes++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
#ifdef LV_NOWIN
    if (false) {
#else
    if (streamed.bytes > 0 && on.max_window_bytes > 0) {
#endif
        cudaLaunchAttribute& attribute = attributes[n_attributes++];
        attribute.id = cudaLaunchAttributeAccessPolicyWindow;
        auto& window = attribute.val.accessPolicyWindow;
        window.base_ptr = const_cast<void*>(streamed.data);
        window.num_bytes = std::min(streamed.bytes, on.max_window_bytes);
        window.hitRatio = 1.0f;
        window.hitProp = cudaAccessPropertyStreaming;
        window.missProp = cudaAccessPropertyNormal;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = on.stream;
    config.attrs = attributes;
    config.numAttrs = n_attributes;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

template <class... Parameters, class... Arguments>
void launch(const Launch& on, void (*kernel)(Parameters...), dim3 grid, int threads,
            size_t shared_bytes, Arguments&&... arguments) {
    launch_streaming(on, {nullptr, 0}, kernel, grid, threads, shared_bytes,
                     std::forward<Arguments>(arguments)...);
}

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace livevoice
