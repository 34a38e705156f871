// Philox4x32-10 (Salmon et al., SC 2011): random words as a pure function of counter and key,
// the same in engine/sampling.py.
#pragma once
#include <cstdint>

namespace livevoice {

__device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
    constexpr uint32_t kMultiplyA = 0xD2511F53u, kMultiplyB = 0xCD9E8D57u;
    constexpr uint32_t kWeylA = 0x9E3779B9u, kWeylB = 0xBB67AE85u;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint32_t high_a = __umulhi(kMultiplyA, counter.x), low_a = kMultiplyA * counter.x;
        const uint32_t high_b = __umulhi(kMultiplyB, counter.z), low_b = kMultiplyB * counter.z;
        counter = make_uint4(high_b ^ counter.y ^ key.x, low_b, high_a ^ counter.w ^ key.y, low_a);
        key.x += kWeylA;
        key.y += kWeylB;
    }
    return counter;
}

/// Gumbel noise -log(-log(u)) for code `index` of `codebook` in delayed row `row`.
__device__ __forceinline__ float gumbel(uint2 seed, uint32_t stream, uint32_t row,
                                        uint32_t codebook, uint32_t index) {
    const uint4 words = philox4x32(make_uint4(index / 4, codebook, row, stream), seed);
    const uint32_t pick = index % 4;
    const uint32_t word = pick == 0 ? words.x : pick == 1 ? words.y : pick == 2 ? words.z : words.w;
    // The 23 high bits, centred in their interval: exact in float32, never 0 and never 1.
    const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
    return -logf(-logf(u));
}

}  // namespace livevoice
