// One way to launch a kernel: on a stream, checked, with or without programmatic dependent launch.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
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
    int ring_bytes;  // of one warp in gemv: depends on the shared memory of the GPU
};

template <class... Parameters, class... Arguments>
void launch(const Launch& on, void (*kernel)(Parameters...), dim3 grid, int threads,
            size_t shared_bytes, Arguments&&... arguments) {
    constexpr size_t kWithoutAsking = 48 << 10;
    // One division between cache and shared memory for all kernels: a multiprocessor must run empty
    // before it changes it, and then no kernel could start before the one before it ends.
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    if (shared_bytes > kWithoutAsking)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared_bytes)));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = on.stream;
    config.attrs = &attribute;
    config.numAttrs = on.overlap ? 1 : 0;
    CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace livevoice
