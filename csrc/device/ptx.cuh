// The PTX drawer: every inline instruction of the kernels, behind a name. Shapes are per warp.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

namespace livevoice {

/// Waits until the kernels that this one depends on have finished and their writes are visible.
/// Before this call a kernel may only read what no kernel of the same frame writes.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start early, as far as registers and shared memory have room for it.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// 16 bytes, past L1.
__device__ __forceinline__ uint4 load_once(const void* address) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

/// 16 bytes from shared memory.
__device__ __forceinline__ uint4 load_shared(const void* address) {
    return *static_cast<const uint4*>(address);
}

/// Copies 16 bytes from global to shared memory behind the thread's back; writes zeros if !valid.
/// Never with a cache hint: what ptxas 13.0 makes of that form traps as an illegal instruction.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}

/// The same for one float.
__device__ __forceinline__ void copy_float_async(float* shared, const float* global, bool valid) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's committed groups are still on their way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// c[16, 8] += a[16, 16] * b[16, 8], float16 operands, float32 sums.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t* a, uint32_t b0,
                                        uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with bfloat16 operands.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t* a, uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two 16 x 8 operand fragments of a row-major 16 x 16 bfloat16 tile, transposed on the way.
/// Lane l gives the address of row l % 16, columns 8 * (l / 16).
__device__ __forceinline__ void load_transposed(uint32_t (&b)[4], const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from)
                 : "memory");
}

/// Four e4m3 values to four float16 values, exactly. The {lo, hi} form costs no shift instruction.
__device__ __forceinline__ void e4m3_to_f16(uint32_t four, uint32_t& low, uint32_t& high) {
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2;"
        " cvt.rn.f16x2.e4m3x2 %0, lo; cvt.rn.f16x2.e4m3x2 %1, hi; }"
        : "=r"(low), "=r"(high)
        : "r"(four));
}

}  // namespace livevoice
