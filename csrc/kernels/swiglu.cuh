// swiglu: silu(gate) * up, one value; the matrix kernels apply it where both sums meet.
#pragma once

namespace livevoice {

__device__ __forceinline__ float swiglu(float gate, float up) {
    return gate / (1.0f + __expf(-gate)) * up;
}

}  // namespace livevoice
