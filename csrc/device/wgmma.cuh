// Warpgroup matrix products (wgmma), which H100 and H200 alone have: four warps multiply 64 rows of
// an operand in registers by N columns in shared memory. Shapes are per warpgroup.
#pragma once
#include <cstdint>

namespace livevoice {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LIVEVOICE_WGMMA 1
#else
#define LIVEVOICE_WGMMA 0
#endif

/// Shared memory where the products find N columns of 64 values: 128 bytes a column, its pieces of
/// 16 bytes exchanged by the column's number modulo 8 (128-byte swizzle), 1024-byte aligned.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t shared_address) {
    constexpr uint64_t kSwizzle128 = 1ull << 62, kEightColumns = (1024ull >> 4) << 32;
    return kSwizzle128 | kEightColumns | 1ull << 16 | shared_address >> 4;
}
/// The operand 16 values further along K.
__device__ __forceinline__ uint64_t next_k16(uint64_t operand) { return operand + (32 >> 4); }

#if LIVEVOICE_WGMMA

#define LIVEVOICE_OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LIVEVOICE_OUT8(i) LIVEVOICE_OUT4(i), LIVEVOICE_OUT4(i + 4)

#define LIVEVOICE_WGMMA_128(type)                                                           \
    asm volatile(                                                                           \
        "{ .reg .pred add; setp.ne.b32 add, 1, 0;"                                          \
        " wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                       \
        " {"                                                                                \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
        "{%64, %65, %66, %67}, %68, add, 1, 1, 0; }"                                        \
        : LIVEVOICE_OUT8(0), LIVEVOICE_OUT8(8), LIVEVOICE_OUT8(16), LIVEVOICE_OUT8(24),     \
          LIVEVOICE_OUT8(32), LIVEVOICE_OUT8(40), LIVEVOICE_OUT8(48), LIVEVOICE_OUT8(56)    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

#define LIVEVOICE_WGMMA_152(type)                                                          \
    asm volatile(                                                                          \
        "{ .reg .pred add; setp.ne.b32 add, 1, 0;"                                         \
        " wgmma.mma_async.sync.aligned.m64n152k16.f32." type "." type                      \
        " {"                                                                               \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75}, "                    \
        "{%76, %77, %78, %79}, %80, add, 1, 1, 0; }"                                       \
        : LIVEVOICE_OUT8(0), LIVEVOICE_OUT8(8), LIVEVOICE_OUT8(16), LIVEVOICE_OUT8(24),    \
          LIVEVOICE_OUT8(32), LIVEVOICE_OUT8(40), LIVEVOICE_OUT8(48), LIVEVOICE_OUT8(56),  \
          LIVEVOICE_OUT8(64), LIVEVOICE_OUT4(72)                                           \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/// d += A x B, float32 sums of float16 (kHalf) or bfloat16. A: rows 16 w + g and g + 8 of warp w,
/// as mma.m16n8k16 has them; d: [N / 8][4] like its accumulators. Runs on until wgmma_wait.
template <int N, bool kHalf>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
    static_assert(N == 128 || N == 152, "add its text above");
    if constexpr (N == 128 && kHalf) LIVEVOICE_WGMMA_128("f16");
    if constexpr (N == 128 && !kHalf) LIVEVOICE_WGMMA_128("bf16");
    if constexpr (N == 152 && kHalf) LIVEVOICE_WGMMA_152("f16");
    if constexpr (N == 152 && !kHalf) LIVEVOICE_WGMMA_152("bf16");
}

/// Before the first product that reads registers or sums written otherwise.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kPending groups are still at work.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Makes what cp.async wrote to shared memory visible to the products.
__device__ __forceinline__ void fence_for_wgmma() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// The compiler must neither move nor copy sums that a product is still adding to.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#undef LIVEVOICE_OUT4
#undef LIVEVOICE_OUT8
#undef LIVEVOICE_WGMMA_128
#undef LIVEVOICE_WGMMA_152

#endif

}  // namespace livevoice
