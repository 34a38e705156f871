// One model on one GPU: its arenas, its captured decode step, and the loop that stays a few frames
// ahead of the caller. Everything is released, in the proved order, by unload() or the destructor.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph.h"
#include "loader.h"
#include "model.h"
#include "steps.h"

namespace livevoice {

/// Regions of the arenas, by index; filled by the layout before anything is allocated.
struct Layout {
    struct Layer {
        int qkv, qkv_scales, o, o_scales, gate_up, gate_up_scales, down, down_scales;
        int input_norm, post_norm, q_norm, k_norm;
    };
    std::vector<Layer> layers;
    int head, final_norm, rope;
    int kv;
    int state, residual_a, residual_b, delta_attention, delta_ffn, qkv, parts, lse, activation,
        logits, exchange, step_control;
    int chunk_residual, chunk_normed, chunk_qkv, chunk_q, chunk_attention, chunk_activation,
        chunk_partials, chunk_text, chunk_codes;
};

/// The three arenas of the backbone, laid out.
struct Arenas {
    Arena weights{"weights"}, decode{"KV cache and decode state"}, scratch{"scratch"};
    Layout at;
    Arenas(const ModelShape& shape, Precision precision);
    size_t layout_bytes() const {
        return weights.layout_bytes() + decode.layout_bytes() + scratch.layout_bytes();
    }
};

/// Bytes that an engine of this shape will hold; needs no GPU.
size_t engine_bytes(const ModelShape& shape, Precision precision);

class Engine {
  public:
    /// Allocates; weights come next. Nothing is held when it throws. `overlap` false: no kernel
    /// starts before the one before it has ended, as on GPUs that can't do better. `way`: to run a
    /// decode step.
    Engine(const ModelShape& shape, Precision precision, int device, bool overlap, StepWay way);
    ~Engine() { unload(); }

    /// Loads one matrix: "q", "k", "v", "o", "gate", "up", "down" of a layer, or "head".
    void load_matrix(const std::string& name, int layer, const MatrixSource& source);
    /// Loads float32 values: "input_norm", "post_norm", "q_norm", "k_norm" of a layer,
    /// "final_norm", or "rope".
    void load_values(const std::string& name, int layer, const float* values, size_t count);
    /// All weights are there: frees what only loading needs and captures the decode step.
    void finish_loading();

    /// Reads S positions from `first` on (the ones before are in the cache). text: bf16 [S,
    /// hidden]; codes: int32 [S, codebooks], -1 where the text row counts.
    void prefill(const void* text, const int* codes, int S, int first);
    /// Logits of the next row, float32 [codebooks * vocab], to host memory.
    void logits(float* out);
    /// Feeds this row, int32 [codebooks], as the next input.
    void force(const int* row);
    /// Starts sampling rows; ends the generation that was running.
    void start(const Sampling& sampling, int max_rows);
    /// The next row, waiting for it; nothing when the engine is being unloaded. The caller stops
    /// asking when it has seen the last one.
    std::optional<std::vector<int>> next_row();

    /// Fills everything but the weights with NaN patterns; forgets the cache.
    void poison();
    /// Which way a decode step runs, and why.
    std::string step_reason();
    /// For tests: how patient the persistent step is, and what delays it.
    void try_step(const StepTrial& trial);
    /// Milliseconds of one decode step at this position: `steps` of them, timed on the GPU.
    float time_steps(int position, int steps);
    /// Frees everything; any thread, any time; a waiting next_row() returns first.
    void unload() noexcept;

    size_t resident_bytes() const { return resident_bytes_; }
    std::vector<std::pair<std::string, size_t>> arena_bytes() const;

  private:
    /// Everything that holds a handle or memory. Members are destroyed last to first.
    struct Held {
        Stream stream;
        Arenas arenas;
        PinnedBuffer rows, prompt, small;
        DecodeSteps steps;
        std::unique_ptr<Loader> loader;
        Held(const ModelShape& shape, Precision precision) : arenas(shape, precision) {}
    };
    Held& held();
    void bind();
    void upload_state(const Sampling& sampling, int max_rows);
    bool wait_for_row(const volatile int* row);
    void reset_exchange();
    void check_steps();
    float time_graph(const CapturedGraph& graph, int position, int steps);

    const ModelShape shape_;
    const Precision precision_;
    const int device_;
    const Passes passes_;
    const StepWay way_;
    Launch on_{};
    Model model_{};
    DecodeBuffers decode_{};
    PrefillBuffers prefill_{};

    std::mutex work_;     // one caller at a time
    std::mutex closing_;  // held_ does not go away meanwhile
    std::atomic<bool> is_closing_{false};
    std::atomic<size_t> resident_bytes_{0};
    std::unique_ptr<Held> held_;
    int position_ = 0;  // of the next row to be computed
    int max_rows_ = 0, rows_launched_ = 0, rows_taken_ = 0;
};

}  // namespace livevoice
