// What the device knows between decode steps. The host writes it before a generation and reads
// nothing back but the rows.
#pragma once
#include <cstdint>

namespace livevoice {

constexpr int kMaxCodebooks = 16;

/// How codes are drawn; as engine/sampling.py.
struct Sampling {
    float temperature;
    int is_greedy;
    int top_k;  // 0: off
    float top_p;
    uint32_t seed_low, seed_high, stream;
};

struct DecodeState {
    Sampling sampling;
    int position;       // of the row being computed
    int next_position;  // of the one after it
    int row;            // delayed row that is sampled next, from 0
    int max_rows;
    int rows_to_eoc;  // rows left of the last frame once codebook 0 said EOC; -1 before
    int is_done;
    int codes[kMaxCodebooks];  // newest row, ramp applied
};

}  // namespace livevoice
