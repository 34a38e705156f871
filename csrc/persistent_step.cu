// Launches the persistent decode step, and says where it can't run.
#include "kernels/persistent_step.cuh"

#include <cstdlib>

namespace livevoice {

namespace {

int tuned(const char* name, int value) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : value;
}

int attribute(cudaDeviceAttr which) {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
    return value;
}

/// Shared memory of a block: the ring, a phase's input, two times partial sums and row scales.
template <class Format, int D>
struct StepShared {
    int slots, x_bytes, max_tiles;
    size_t bytes;

    StepShared(const Launch& on, const ModelShape& shape) {
        const size_t longest = std::max({shape.hidden, shape.attention_width(), shape.ffn});
        const size_t x = std::max({longest * Format::kParts * sizeof(typename Format::Activation),
                                   shape.hidden * Bf16::kParts * sizeof(Bf16::Activation),
                                   JoinedPart<D>::kScratchFloats * sizeof(float)});
        x_bytes = static_cast<int>((x + 127) / 128 * 128);
        const int rows = std::max({shape.qkv_rows(), 2 * shape.ffn, shape.table_rows()});
        max_tiles = std::max(ceil_div(ceil_div(rows, kTileRows), on.gemv_blocks),
                             ceil_div(shape.hidden / kTileRows, on.gemv_blocks) + 1);
        const size_t others =
            x_bytes + sizeof(float) * (2 * max_tiles * (kPartialsATile + kTileRows) + shape.hidden);
        cudaFuncAttributes kernel{};
        CUDA_CHECK(cudaFuncGetAttributes(&kernel, persistent_step_kernel<Format, D>));
        const int64_t room = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) -
                             static_cast<int64_t>(kernel.sharedSizeBytes + others);
        slots = std::min<int>(room / kSlotBytes, tuned("LV_SLOTS", kMaxStepSlots));
        bytes = others + static_cast<size_t>(slots) * kSlotBytes;
    }
};

}  // namespace

int decode_blocks(const ModelShape& shape, int multiprocessors) {
    const int fewest_rows =
        std::min({shape.qkv_rows(), shape.hidden, 2 * shape.ffn, shape.table_rows()});
    return std::min(multiprocessors, fewest_rows / kTileRows);
}

template <class Format, int D>
std::string persistent_obstacle(const Launch& on, const Model& model) {
    if (!attribute(cudaDevAttrCooperativeLaunch))
        return "this GPU or its driver can't start all blocks of a kernel at once";
    const StepShared<Format, D> shared(on, model.shape);
    if (shared.slots < kSlotsInFlight) return "the blocks' shared memory is too small";
    const auto* kernel = reinterpret_cast<const void*>(persistent_step_kernel<Format, D>);
    prepare(kernel, shared.bytes);
    int blocks = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kStepThreads,
                                                             shared.bytes));
    if (blocks * on.multiprocessors < on.gemv_blocks) return "its blocks don't fit all at once";
    return {};
}

template <class Format, int D>
void persistent_step(const Launch& on, const Model& model, const DecodeBuffers& b,
                     bool is_forced) {
    const StepShared<Format, D> shared(on, model.shape);
    const Weights& w = model.weights;
    StepPlan plan{};
    plan.shape = model.shape;
    plan.first = w.layers.at(0);
    if (model.shape.layers > 1)
        plan.layer_stride = w.layers[1].qkv.weights - w.layers[0].qkv.weights;
    plan.head = w.head;
    plan.head_rows = model.shape.table_rows();
    plan.final_norm = w.final_norm;
    plan.table = model.table();
    plan.first_cache = model.cache(0);
    plan.first_heads = model.heads(0);
    plan.state = b.state;
    plan.control = b.control;
    plan.signals = b.signals;
    plan.exchange = b.exchange;
    plan.logits = b.logits;
    plan.rows = b.rows;
    plan.slots = shared.slots;
    plan.slots_in_flight = std::min(tuned("LV_IN_FLIGHT", kSlotsInFlight), shared.slots);
    plan.hidden_copies = std::min(tuned("LV_COPIES", 4), kHiddenCopies);
    plan.watching_lanes = tuned("LV_WATCH", 4);
    plan.x_bytes = shared.x_bytes;
    plan.max_tiles = shared.max_tiles;
    plan.is_forced = is_forced;
    launch_in_order(on, Order::kTogether, persistent_step_kernel<Format, D>, on.gemv_blocks,
                    kStepThreads, shared.bytes, plan);
}

#define LIVEVOICE_STEP(Format, D)                                                           \
    template std::string persistent_obstacle<Format, D>(const Launch&, const Model&);       \
    template void persistent_step<Format, D>(const Launch&, const Model&, const DecodeBuffers&, bool);
LIVEVOICE_STEP(Fp8, 64)
LIVEVOICE_STEP(Fp8, 128)
LIVEVOICE_STEP(Bf16, 64)
LIVEVOICE_STEP(Bf16, 128)

}  // namespace livevoice
