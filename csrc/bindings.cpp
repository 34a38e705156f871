// What Python sees: the engine, the codec, and single kernels for the tests. The only file that
// knows Python. Tensors come in as anything that has torch's attributes; no torch header is needed,
// so one build serves every version.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>

#include "codec.h"
#include "engine.h"
#include "kernel_calls.h"
#include "tensor.h"

namespace py = pybind11;

namespace pybind11::detail {

/// torch.Tensor -> livevoice::TensorView; None -> an empty view.
template <>
struct type_caster<livevoice::TensorView> {
    PYBIND11_TYPE_CASTER(livevoice::TensorView, const_name("torch.Tensor"));

    bool load(handle source, bool) {
        if (source.is_none()) return true;
        if (!hasattr(source, "data_ptr") || !hasattr(source, "is_cuda")) return false;
        value.data = reinterpret_cast<void*>(source.attr("data_ptr")().cast<uintptr_t>());
        value.dtype = str(source.attr("dtype")).cast<std::string>();
        const size_t dot = value.dtype.rfind('.');  // "torch.float32"
        if (dot != std::string::npos) value.dtype.erase(0, dot + 1);
        value.shape = source.attr("shape").cast<std::vector<int64_t>>();
        value.is_on_gpu = source.attr("is_cuda").cast<bool>();
        value.is_contiguous = source.attr("is_contiguous")().cast<bool>();
        return true;
    }
};

}  // namespace pybind11::detail

namespace livevoice {
namespace {

using FreeGil = py::call_guard<py::gil_scoped_release>;

Precision precision_named(const std::string& name) {
    LIVEVOICE_CHECK(name == "fp8" || name == "bf16",
                    "native backend: precision must be fp8 or bf16, ", "got ", name);
    return name == "fp8" ? Precision::kFp8 : Precision::kBf16;
}

StepWay step_way_named(const std::string& name) {
    if (name == "fastest") return StepWay::kFastest;
    if (name == "small") return StepWay::kSmallKernels;
    LIVEVOICE_CHECK(name == "persistent",
                    "native backend: step must be fastest, small or persistent, got ", name);
    return StepWay::kPersistent;
}

ModelShape model_shape(const py::dict& sizes) {
    const auto size = [&](const char* name) { return sizes[name].cast<int>(); };
    return {size("n_layers"),     size("hidden"),
            size("n_heads"),      size("n_kv_heads"),
            size("head_dim"),     size("ffn"),
            size("n_codebooks"),  size("codebook_vocab"),
            size("context_rows"), sizes["rms_eps"].cast<float>()};
}

CodecShape codec_shape(const py::dict& sizes) {
    const auto size = [&](const char* name) { return sizes[name].cast<int>(); };
    return {size("n_codebooks"),
            size("codebook_size"),
            size("acoustic_hidden"),
            size("decoder_hidden"),
            sizes["upsampling_ratios"].cast<std::vector<int>>(),
            size("max_frames")};
}

void bind_engine(py::module_& m) {
    py::class_<Engine>(m, "Engine")
        .def(py::init(
                 [](const py::dict& sizes, const std::string& precision, int device, bool overlap,
                    const std::string& step) {
                     const ModelShape shape = model_shape(sizes);
                     const Precision format = precision_named(precision);
                     const StepWay way = step_way_named(step);
                     py::gil_scoped_release free_gil;
                     return std::make_unique<Engine>(shape, format, device, overlap, way);
                 }),
             py::arg("sizes"), py::arg("precision"), py::arg("device"), py::arg("overlap") = true,
             py::arg("step") = "fastest")
        .def(
            "load_file",
            [](Engine& engine, const std::string& name, int layer, const std::string& path,
               int64_t offset, int rows, int columns) {
                engine.load_matrix(name, layer, {path, offset, nullptr, rows, columns});
            },
            FreeGil())
        .def(
            "load_tensor",
            [](Engine& engine, const std::string& name, int layer, const TensorView& rows) {
                const void* data =
                    host_data<void>(rows, name.c_str(), "bfloat16", {kAnySize, kAnySize});
                engine.load_matrix(
                    name, layer,
                    {"", 0, data, static_cast<int>(rows.size(0)), static_cast<int>(rows.size(1))});
            },
            FreeGil())
        .def(
            "load_values",
            [](Engine& engine, const std::string& name, int layer, const TensorView& values) {
                const float* data = host_data<float>(values, name.c_str(), "float32", {kAnySize});
                engine.load_values(name, layer, data, values.size(0));
            },
            FreeGil())
        .def("finish_loading", &Engine::finish_loading, FreeGil())
        .def(
            "prefill",
            [](Engine& engine, const TensorView& text, const TensorView& codes, int first) {
                const int64_t S = text.size(0);
                engine.prefill(host_data<void>(text, "text", "bfloat16", {S, kAnySize}),
                               host_data<int>(codes, "codes", "int32", {S, kAnySize}),
                               static_cast<int>(S), first);
            },
            FreeGil())
        .def(
            "logits",
            [](Engine& engine, const TensorView& out) {
                engine.logits(host_data<float>(out, "out", "float32", {kAnySize, kAnySize}));
            },
            FreeGil())
        .def(
            "force",
            [](Engine& engine, const TensorView& row) {
                engine.force(host_data<int>(row, "row", "int32", {kAnySize}));
            },
            FreeGil())
        .def(
            "start",
            [](Engine& engine, double temperature, bool is_greedy, int top_k, double top_p,
               uint64_t seed, uint32_t stream, int max_rows) {
                engine.start(
                    {static_cast<float>(temperature), is_greedy, top_k, static_cast<float>(top_p),
                     static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), stream},
                    max_rows);
            },
            FreeGil())
        .def("next_row", &Engine::next_row, FreeGil())
        .def("poison", &Engine::poison, FreeGil())
        .def("time_steps", &Engine::time_steps, FreeGil())
        .def("step_reason", &Engine::step_reason, FreeGil())
        .def(
            "try_step",
            [](Engine& engine, uint32_t limit_ms, uint32_t delay_seed, uint32_t max_delay_ns,
               uint32_t stall_ms) {
                engine.try_step({limit_ms, delay_seed, max_delay_ns, stall_ms});
            },
            py::arg("limit_ms") = kStepLimitMs, py::arg("delay_seed") = 0,
            py::arg("max_delay_ns") = 0, py::arg("stall_ms") = 0, FreeGil())
        .def("unload", &Engine::unload, FreeGil())
        .def_property_readonly("resident_bytes", &Engine::resident_bytes)
        .def_property_readonly("arena_bytes", &Engine::arena_bytes);
    m.def("engine_bytes", [](const py::dict& sizes, const std::string& precision) {
        return engine_bytes(model_shape(sizes), precision_named(precision));
    });
}

void bind_codec(py::module_& m) {
    py::class_<Codec>(m, "Codec")
        .def(py::init([](const py::dict& sizes, int device) {
                 const CodecShape shape = codec_shape(sizes);
                 py::gil_scoped_release free_gil;
                 return std::make_unique<Codec>(shape, device);
             }),
             py::arg("sizes"), py::arg("device"))
        .def(
            "load_values",
            [](Codec& codec, const std::string& name, const TensorView& values) {
                codec.load_values(name,
                                  host_data<float>(values, name.c_str(), "float32", {kAnySize}),
                                  values.size(0));
            },
            FreeGil())
        .def(
            "decode",
            [](Codec& codec, const TensorView& codes, const TensorView& waveform) {
                const int64_t frames = codes.size(0);
                codec.decode(host_data<int>(codes, "codes", "int32", {frames, kAnySize}),
                             static_cast<int>(frames),
                             host_data<float>(waveform, "waveform", "float32", {kAnySize}));
            },
            FreeGil())
        .def("unload", &Codec::unload, FreeGil())
        .def_property_readonly("resident_bytes", &Codec::resident_bytes);
    m.def("codec_bytes",
          [](const py::dict& sizes) { return Codec::codec_bytes(codec_shape(sizes)); });
    m.def("codec_values",
          [](const py::dict& sizes) { return Codec::value_counts(codec_shape(sizes)); });
}

void bind_pool(py::module_& m) {
    py::class_<Arena>(m, "Arena")
        .def(py::init<std::string>())
        .def("reserve", &Arena::reserve)
        .def("allocate", &Arena::allocate, py::arg("on_host") = false)
        .def("release", &Arena::release)
        .def("poison", [](Arena& arena) { arena.poison(nullptr); })
        .def("address",
             [](const Arena& arena, int region) {
                 return reinterpret_cast<uintptr_t>(arena.at<uint8_t>(region));
             })
        .def_property_readonly("layout_bytes", &Arena::layout_bytes)
        .def_property_readonly("resident_bytes", &Arena::resident_bytes)
        .def_property_readonly("regions", [](const Arena& arena) {
            std::vector<std::tuple<std::string, size_t, size_t>> regions;
            for (const Region& r : arena.regions()) regions.emplace_back(r.name, r.offset, r.bytes);
            return regions;
        });
    m.def("inject_fault", &inject_fault);
    m.def("fault_steps", &fault_steps);
}

void bind_kernels(py::module_ m) {
    m.def("pack", &call_pack);
    m.def("norm_gemv", &call_norm_gemv);
    m.def("residual_gemv", &call_residual_gemv);
    m.def("gemm", &call_gemm);
    m.def("rmsnorm", &call_rmsnorm);
    m.def("qk_norm_rope", &call_qk_norm_rope);
    m.def("attention_prefill", &call_attention_prefill);
    m.def("attention_decode", &call_attention_decode);
    m.def("sample", &call_sample);
    m.def("embed", &call_embed);
    m.def("codec_conv", &call_codec_conv);
    m.def("read_bandwidth", &call_read_bandwidth);
    m.def("packed_bf16_piece", &packed_bf16_piece);
}

/// None when this build has code for the GPU `device`, else its name and compute capability.
/// Raises RuntimeError in one sentence when there is no such GPU or no driver for it.
std::optional<std::tuple<std::string, int, int>> check_device(int device) {
    int count = 0;
    CUDA_CHECK(cudaGetDeviceCount(&count));
    LIVEVOICE_CHECK(device >= 0 && device < count, "native backend: there is no GPU ", device, ", ",
                    count, " are visible");
    const DeviceScope scope(device);
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    if (probe_kernels() == cudaSuccess) return std::nullopt;
    cudaGetLastError();
    return std::make_tuple(std::string(properties.name), properties.major, properties.minor);
}

}  // namespace
}  // namespace livevoice

PYBIND11_MODULE(_C, m) {
    using namespace livevoice;
    m.doc() = "CUDA engine of LiveVoice: private memory, captured decode step, safe teardown.";
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const OutOfMemory& e) {
            PyErr_SetString(PyExc_MemoryError, e.what());
        } catch (const CudaError& e) {
            PyErr_SetString(PyExc_RuntimeError, e.what());
        }
    });
    bind_engine(m);
    bind_codec(m);
    bind_pool(m);
    bind_kernels(m.def_submodule("kernels", "Single kernels, for tests and measurements."));
    m.def("check_device", &check_device);
}
