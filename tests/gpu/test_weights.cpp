#include "gpu/device_buffer.h"
#include "model/weights/weights.h"
#include "ops/elementwise.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

const model::ModelConfig kConfig = [] {
  model::ModelConfig c;
  c.name = "small";
  c.dim = 64;
  c.n_layers = 2;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = 16;
  c.ffn_dim = 96;
  c.vocab_size = 200;
  c.kinds[0].attention.qkv_bias = true;
  c.kinds[0].attention.qk_norm = model::QkNorm::head;
  return c;
}();

/// A source of numbers that name their matrix, layer, row and column; on the GPU, if asked to.
class CountingSource final : public model::WeightSource {
 public:
  explicit CountingSource(bool on_device) : on_device_(on_device) {}

  static float value(model::MatrixId id, int64_t row, int64_t col) {
    return static_cast<float>(static_cast<int>(id.role) * 8 + id.layer * 4 + row % 4) +
           static_cast<float>(col) / 128;
  }
  WeightFormat native(model::MatrixId /*id*/) const override { return DType::f32; }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat,
            void* out) const override {
    auto* to = static_cast<float*>(out);
    const int64_t cols = id.role == model::Role::down ? kConfig.ffn_dim : kConfig.dim;
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < cols; ++c) *to++ = value(id, r, c);
    asked_host += 1;
  }
  bool rows_on_device(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream /*stream*/) const override {
    if (!on_device_) return false;
    const int64_t cols = id.role == model::Role::down ? kConfig.ffn_dim : kConfig.dim;
    std::vector<float> host(static_cast<size_t>((end - begin) * cols));
    rows(id, begin, end, to, host.data());
    asked_host -= 1;
    queue().copy_in(device, host.data(), host.size() * sizeof(float));
    queue().wait();
    return true;
  }
  std::vector<float> vector(model::MatrixId id) const override {
    const int64_t n = model::shape_of(id.role, kConfig).front();
    std::vector<float> v;
    for (int64_t i = 0; i < n; ++i) v.push_back(value(id, i, 0));
    return v;
  }
  void embed(std::span<const int32_t>, float*) const override {}

  mutable int asked_host = 0;

 private:
  bool on_device_;
};

std::vector<float> on_host(const float* device, int64_t n) {
  std::vector<float> host(static_cast<size_t>(n));
  queue().copy_out(host.data(), device, host.size() * sizeof(float));
  queue().wait();
  return host;
}

/// Column `col` of the weights, and the bias added.
std::vector<float> column(const ops::PackedWeights& w, int64_t col) {
  std::vector<float> x(static_cast<size_t>(w.in()), 0.0f);
  x[static_cast<size_t>(col)] = 1;
  const DeviceBuffer dx(x), dy(static_cast<size_t>(w.out()) * sizeof(float));
  const size_t bytes = ops::PackedWeights::workspace_bytes(
      {"", w.out(), w.in(), false, DType::f32, DType::f32, kGpu}, 1);
  const DeviceBuffer scratch(bytes);
  ops::linear({dy.raw(), DType::f32, {1, w.out()}, kGpu}, {dx.raw(), DType::f32, {1, w.in()}, kGpu},
              w, ops::Accumulate::no, {scratch.as<std::byte>(), bytes}, queue().stream());
  return dy.vector<float>();
}

}  // namespace

TEST_SUITE("gpu/model/weights") {
  TEST_CASE(
      "every matrix, bias and norm of a model arrives, from the host or from a GPU's source") {
    using model::Role;
    struct Case {
      bool on_device;
      int n_streamed, set_channels;
    };
    for (const auto& [on_device, n_streamed, set] : {Case{false, 0, 0},
                                                     {true, 0, 0},
                                                     {false, 1, 0},
                                                     {true, 1, 0},
                                                     {false, 2, 0},
                                                     {true, 2, 0},
                                                     {false, 0, 40},
                                                     {true, 2, 40},
                                                     {true, 3, 24},
                                                     {false, 6, 40}}) {
      CAPTURE(on_device);
      CAPTURE(n_streamed);
      CAPTURE(set);
      const CountingSource source(on_device);
      const model::WeightPlaces places{
          .device = kGpu, .n_streamed = n_streamed, .by_channel = set > 0, .set_channels = set};
      MemoryPlan plan;
      model::Weights::plan(kConfig, DType::f32, plan, places);
      CHECK((plan.group_bytes("weights", {}) > 0) == (n_streamed > 0));
      Arena arena(plan);
      const model::Weights w = model::Weights::load(kConfig, DType::f32, source, arena, {}, places);
      CHECK((source.asked_host > 0) == !on_device);
      const auto append = [&](std::vector<float>& to, model::MatrixId id, int64_t first,
                              int64_t rows, int64_t col, Role bias) {
        const auto b = bias != id.role ? source.vector({bias, id.layer}) : std::vector<float>{};
        for (int64_t r = first; r < first + rows; ++r)
          to.push_back(CountingSource::value(id, r, col) +
                       (b.empty() ? 0.0f : b[static_cast<size_t>(r)]));
      };
      const auto check_attention = [&](const model::LayerWeights& l, int layer) {
        for (const int64_t col : {0, 5, 63}) {
          std::vector<float> qkv, wo;
          append(qkv, {Role::q, layer}, 0, 64, col, Role::q_bias);
          append(qkv, {Role::k, layer}, 0, 32, col, Role::k_bias);
          append(qkv, {Role::v, layer}, 0, 32, col, Role::v_bias);
          append(wo, {Role::o, layer}, 0, 64, col, Role::o);
          CHECK(column(l[model::Role::qkv], col) == qkv);
          CHECK(column(l[model::Role::o], col) == wo);
        }
      };
      const auto check_channels = [&](const ops::PackedWeights& upper,
                                      const ops::PackedWeights& lower, int layer, int64_t first,
                                      int64_t n) {
        REQUIRE(lower.in() == n);
        for (const int64_t col : {0, 5, 63}) {
          std::vector<float> gate_up;
          append(gate_up, {Role::gate, layer}, first, n, col, Role::gate);
          append(gate_up, {Role::up, layer}, first, n, col, Role::up);
          CHECK(column(upper, col) == gate_up);
        }
        for (const int64_t col : {int64_t{0}, n / 2, n - 1}) {
          std::vector<float> down;
          append(down, {Role::down, layer}, 0, 64, first + col, Role::down);
          CHECK(column(lower, col) == down);
        }
      };
      for (int layer = 0; layer < 2; ++layer) {
        const model::LayerWeights& here = w.layers[static_cast<size_t>(layer)];
        CHECK(on_host(here.norms.attn, 64) == source.vector({Role::attn_pre, layer}));
        CHECK(on_host(here.norms.ffn, 64) == source.vector({Role::ffn_pre, layer}));
        CHECK(on_host(here.norms.q, 16) == source.vector({Role::q_norm, layer}));
        CHECK(on_host(here.norms.k, 16) == source.vector({Role::k_norm, layer}));
        for (const model::LayerPart part : model::kLayerParts) {
          if (part == model::LayerPart::rest && set == 0) continue;
          const bool streamed = w.stream && w.stream->holds(layer, part);
          const model::LayerWeights& l = streamed ? w.stream->acquire(queue(), layer, part) : here;
          switch (part) {
            case model::LayerPart::attention:
              check_attention(l, layer);
              break;
            case model::LayerPart::ffn:
              check_channels(l[model::Role::gate_up], l[model::Role::down], layer, 0,
                             set > 0 ? set : 96);
              break;
            case model::LayerPart::rest:
              check_channels(l[model::Role::rest_gate_up], l[model::Role::rest_down], layer, set,
                             96 - set);
              break;
            case model::LayerPart::outside:
              break;
          }
          if (streamed) w.stream->release(queue());
        }
      }
      CHECK(on_host(w.out_norm, 64) == source.vector({Role::out_norm, 0}));
      std::vector<float> head;
      for (int64_t r = 0; r < 200; ++r)
        head.push_back(CountingSource::value({Role::head, 0}, r, 7));
      CHECK(column(w.lm_head, 7) == head);
    }
  }

  TEST_CASE("rows of the embedding come from the GPU's memory, or over the link from the host's") {
    constexpr int64_t kDim = 64, kVocab = 200;
    const std::vector<int32_t> ids = {0, 7, 199, 7, 128};
    const DeviceBuffer device_ids(ids);
    for (const bool on_device : {false, true})
      for (const bool on_host_too : {false, true}) {
        CAPTURE(on_device);
        CAPTURE(on_host_too);
        const CountingSource source(on_device);
        const model::WeightPlaces places{kGpu, 0, {}, on_host_too};
        MemoryPlan plan;
        model::Weights::plan(kConfig, DType::f32, plan, places);
        CHECK((plan.find("weights/embedding") == nullptr) == on_host_too);
        CHECK(plan.group_bytes("embedding", {}) ==
              (on_host_too ? size_t{kVocab * kDim} * sizeof(float) : 0));
        Arena arena(plan);
        const model::Weights w =
            model::Weights::load(kConfig, DType::f32, source, arena, {}, places);
        const DeviceBuffer out(ids.size() * kDim * sizeof(float));
        ops::embed_ids({out.raw(), DType::f32, {std::ssize(ids), kDim}, kGpu}, w.device_embedding(),
                       device_ids.as<int32_t>(), queue().stream());
        std::vector<float> want;
        for (const int32_t id : ids)
          for (int64_t c = 0; c < kDim; ++c)
            want.push_back(CountingSource::value({model::Role::embedding, 0}, id, c));
        CHECK(out.vector<float>() == want);
      }
  }
}
