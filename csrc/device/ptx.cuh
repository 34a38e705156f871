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

/// Asks for global memory to be brought into L2. `bytes`: a multiple of 16, as is the address.
__device__ __forceinline__ void prefetch_to_l2(const void* address, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes)
                 : "memory");
#endif
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

/// The same not transposed: four 8 x 8 tiles of 16-bit values, one address of 16 bytes a lane: lane
/// l gives row l % 8 of tile l / 8.
__device__ __forceinline__ uint4 load_matrix(const void* shared) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/// Keeps a value in its register: the compiler would rather derive it anew each time it is used.
template <class T>
__device__ __forceinline__ T keep(T value) {
    asm volatile("" : "+r"(value));
    return value;
}

/// Shared-memory barriers between the warp of a block that copies and the warps that use the
/// copies, by their shared addresses. `phase` is the parity of the round that is waited for, 0
/// first.
constexpr uint32_t kBarrierBytes = 8;

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return keep(static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/// After barrier_init and before __syncthreads(): the copy engine sees the barriers, too.
__device__ __forceinline__ void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t phase) {
    uint32_t passed;
    asm volatile(
        "{ .reg .pred p;"
#if __CUDA_ARCH__ >= 900
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
#else
        " mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;"
#endif
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(barrier), "r"(phase)
        : "memory");
    return passed != 0;
}

/// Ends the kernel with an error instead of hanging the GPU, should a copy never arrive.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
    constexpr uint32_t kSpinLimit = 1u << 28;
    for (uint32_t spins = 0; !barrier_passed(barrier, phase); ++spins)
        if (spins == kSpinLimit) __trap();
}

/// Arrivals at its barrier that one copy_bulk() makes.
__device__ __forceinline__ constexpr int copy_bulk_arrivals() {
#if __CUDA_ARCH__ >= 900
    return 1;
#else
    return 32;
#endif
}

/// Copies `bytes` (a multiple of 512) from global to shared memory behind the back of the warp that
/// calls it together; what is copied is read once and need not stay in L2.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          uint32_t barrier) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 900
    constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
    if (threadIdx.x % 32 != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(global), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
        : "memory");
#else
    const int lane = threadIdx.x % 32;
    for (int i = 16 * lane; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i),
                     "l"(static_cast<const uint8_t*>(global) + i)
                     : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

/// Two neighbouring words of 64 bits that other multiprocessors write while we look: each of them
/// is read in one piece, in no order with other reads.
__device__ __forceinline__ uint4 load_words(const uint64_t* address) {
    uint64_t a, b;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(address)
                 : "memory");
    return make_uint4(a, a >> 32, b, b >> 32);
}

/// The same way back, for one word.
__device__ __forceinline__ void store_word(uint64_t* address, uint64_t word) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}

/// A number that the host or another multiprocessor may change at any time.
__device__ __forceinline__ uint32_t load_now(const uint32_t* address) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
}
__device__ __forceinline__ void store_now(uint32_t* address, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Nanoseconds, the same on all multiprocessors.
__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

__device__ __forceinline__ void sleep_nanoseconds(uint32_t time) {
    asm volatile("nanosleep.u32 %0;" ::"r"(time) : "memory");
}

__device__ __forceinline__ int lane_id() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/// __syncthreads() for the first kThreads threads of a block.
template <int kThreads>
__device__ __forceinline__ void sync_first_threads() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

}  // namespace livevoice
