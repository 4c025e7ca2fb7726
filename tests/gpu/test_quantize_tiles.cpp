// Weights that a GPU quantizes: the bytes are those of the CPU's codes, placed in tiles.
#include <cmath>
#include <limits>

#include "error_text.h"
#include "gpu/device_buffer.h"
#include "kernels/cuda_table.h"
#include "model/spec/weight_formats.h"
#include "model/weights/quantized_source.h"
#include "model/weights/weights.h"
#include "ops/loading.h"
#include "ops/quantizing.h"

using namespace tandem;
using namespace tandem::test;
using ops::PackedWeights;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

/// Formats that a GPU multiplies and quantize writes.
std::vector<WeightFormat> formats() {
  std::vector<WeightFormat> all;
  for (const Code code : {Code::i4, Code::i8})
    for (const Zero zero : {Zero::none, Zero::integer})
      for (const int group : {0, 16, 32, 64, 128, 256})
        all.emplace_back(code, static_cast<int16_t>(group), ScaleType::f16, zero);
  for (const int group : {0, 128, 384})
    all.emplace_back(Code::fp8, static_cast<int16_t>(group), ScaleType::f32, Zero::none);
  return all;
}

/// Weights of many sizes, some of them equal. Some rows are zeros, positive, huge or tiny.
float weight(PhiloxStream& stream, int64_t row) {
  const float x = random_float(stream, 0.1f);
  switch (row % 11) {
    case 3:
      return std::ldexp(x, -static_cast<int>(stream.below(30)));
    case 4:
      return 0;
    case 5:
      return static_cast<float>(stream.below(3)) - 1;
    case 6:
      return std::abs(x);
    case 7:
      return x * 1e31f;
    case 8:
      return std::ldexp(x, -130);
    default:
      return stream.below(50) == 0 ? 8 * x : x;
  }
}

std::vector<std::byte> as_type(std::vector<float>& numbers, DType type) {
  std::vector<std::byte> bytes(numbers.size() * dtype_bytes(type));
  const auto n = std::ssize(numbers);
  ops::convert(bytes.data(), type, numbers.data(), DType::f32, n);
  ops::convert(numbers.data(), DType::f32, bytes.data(), type, n);
  return bytes;
}

/// A matrix in numbers and in the CPU's codes.
struct Matrix {
  WeightFormat format;
  int64_t out, in;
  bool search;
  DType type;
  std::vector<std::byte> numbers, codes;

  Matrix(const WeightFormat& f, int64_t o, int64_t i, bool searches = true, DType t = DType::bf16)
      : format(f), out(o), in(i), search(searches), type(t) {
    PhiloxStream stream(31, static_cast<uint32_t>(in));
    std::vector<float> all;
    for (int64_t k = 0; k < out * in; ++k) all.push_back(weight(stream, k / in));
    numbers = as_type(all, type);
    if (!is_coded(format)) return;
    codes.resize(matrix_bytes(format, out, in));
    ops::quantize(codes.data(), format, all.data(), out, in, search);
  }
};

/// Weights in a buffer of the GPU, from codes of the CPU or from numbers.
std::vector<uint8_t> loaded(const std::vector<const Matrix*>& stacks, bool from_numbers,
                            bool gated = false) {
  const Matrix& first = *stacks.front();
  PackedWeights::Spec spec{.name = "weights/w",
                           .in = first.in,
                           .stored = first.format,
                           .input = DType::bf16,
                           .device = kGpu};
  spec.gated = gated;
  for (const Matrix* m : stacks) {
    spec.out += m->out;
    if (stacks.size() > 1) spec.stacked.push_back({m->out, m->format});
  }
  bool asked_for_codes = false;
  const auto read = [&](bool numbers) {
    return [&, numbers](int64_t begin, int64_t end, void* to) {
      for (const Matrix* m : stacks) {
        const auto& from = numbers || !is_coded(m->format) ? m->numbers : m->codes;
        const size_t row = from.size() / static_cast<size_t>(m->out);
        if (begin >= 0 && begin < m->out) {
          asked_for_codes |= &from == &m->codes;
          std::memcpy(to, from.data() + static_cast<size_t>(begin) * row,
                      static_cast<size_t>(end - begin) * row);
        }
        begin -= m->out;
        end -= m->out;
      }
    };
  };
  const DeviceBuffer memory(PackedWeights::device_bytes(spec));
  MemoryPlan plan;
  plan.add("load/staging", PackedWeights::staging_bytes(spec), {}, Lifetime::load);
  Arena arena(plan);
  PackedWeights packed;
  {
    ops::Staging staging(kGpu, arena.take("load/staging"), plan.find("load/staging")->bytes);
    packed.load(spec, memory.raw(), read(false), {}, staging, {},
                from_numbers
                    ? PackedWeights::Unquantized{read(true), {}, first.type, first.search, {}}
                    : PackedWeights::Unquantized{});
    staging.wait();
  }
  const CodeTiles* const tiles = packed.device_codes();
  const bool fits = tiles == nullptr || cuda_table().quantize_tiles_fits(*tiles, first.type);
  CHECK(asked_for_codes != (from_numbers && fits));
  return memory.vector<uint8_t>();
}

constexpr int kDim = 72, kFfn = 130, kVocab = 300;  // groups and parts of groups

model::ModelConfig small_config(
    const std::function<std::optional<WeightFormat>(model::MatrixId)>& format_of) {
  model::ModelConfig c;
  c.name = "small";
  c.dim = kDim;
  c.n_layers = 2;
  c.n_heads = 3;
  c.n_kv_heads = 1;
  c.head_dim = 24;
  c.ffn_dim = kFfn;
  c.vocab_size = kVocab;
  auto formats = std::make_shared<model::WeightFormats>();
  for (const model::MatrixId id : model::all_matrices(c))
    if (model::shape_of(id.role, c).size() == 2)
      if (const auto format = format_of(id)) formats->coded.emplace(id, *format);
  c.formats = formats;
  return c;
}

/// Random numbers in bf16, or f32 from the GPU. One weight of one matrix may be another.
class NumberSource final : public model::WeightSource {
 public:
  NumberSource(const model::ModelConfig& c, DType type, std::optional<model::MatrixId> bad = {},
               float value = 0)
      : base_(synthetic_source(c, 5)), config_(c), type_(type), bad_(bad), value_(value) {}
  WeightFormat native(model::MatrixId) const override { return type_; }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to,
            void* out) const override {
    const int64_t in = model::shape_of(id.role, config_)[1];
    std::vector<float> all(static_cast<size_t>((end - begin) * in));
    base_->rows(id, begin, end, DType::f32, all.data());
    if (id == bad_ && begin == 0) all[3] = value_;
    as_type(all, type_);
    ops::convert(out, numbers_of(to), all.data(), DType::f32, std::ssize(all));
    ++asked_host;
  }
  bool rows_on_device(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream stream) const override {
    return type_ == DType::f32 && !bad_ &&
           base_->rows_on_device(id, begin, end, to, device, stream);
  }
  std::vector<float> vector(model::MatrixId id) const override { return base_->vector(id); }
  void embed(std::span<const int32_t>, float*) const override {}

  mutable int asked_host = 0;

 private:
  std::unique_ptr<model::WeightSource> base_;
  model::ModelConfig config_;
  DType type_;
  std::optional<model::MatrixId> bad_;
  float value_;
};

/// Hides that a source can deliver numbers, so that the CPU quantizes them.
class CodesSource final : public model::WeightSource {
 public:
  explicit CodesSource(const model::WeightSource& base) : base_(base) {}
  WeightFormat native(model::MatrixId id) const override { return base_.native(id); }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to,
            void* out) const override {
    base_.rows(id, begin, end, to, out);
  }
  std::vector<float> vector(model::MatrixId id) const override { return base_.vector(id); }
  void embed(std::span<const int32_t>, float*) const override {}

 private:
  const model::WeightSource& base_;
};

/// The bytes of all matrices on the GPU.
std::vector<std::vector<uint8_t>> all_bytes(const model::ModelConfig& c,
                                            const model::WeightSource& source, int n_streamed) {
  const model::WeightPlaces places{.device = kGpu, .n_streamed = n_streamed};
  MemoryPlan plan;
  model::Weights::plan(c, DType::bf16, plan, places);
  Arena arena(plan);
  const model::Weights w = model::Weights::load(c, DType::bf16, source, arena, {}, places);
  std::vector<std::vector<uint8_t>> all;
  const auto add = [&](const PackedWeights& packed) {
    const CodeTiles* const tiles = packed.device_codes();
    const void* const from = tiles != nullptr ? tiles->data : packed.device_rows();
    const size_t bytes =
        tiles != nullptr ? static_cast<size_t>(tiles->down() * tiles->row_bytes()) : packed.bytes();
    if (from == nullptr) return;  // several formats: test "stacks" compares those
    all.emplace_back(bytes);
    queue().copy_out(all.back().data(), from, bytes);
    queue().wait();
  };
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const model::LayerPart part : {model::LayerPart::attention, model::LayerPart::ffn}) {
      const bool streamed = w.stream && w.stream->holds(layer, part);
      const model::LayerWeights& l =
          streamed ? w.stream->acquire(queue(), layer, part) : w.layers[static_cast<size_t>(layer)];
      if (part == model::LayerPart::attention) add(l[model::Role::qkv]), add(l[model::Role::o]);
      if (part == model::LayerPart::ffn) add(l[model::Role::gate_up]), add(l[model::Role::down]);
      if (streamed) w.stream->release(queue());
    }
  add(w.lm_head);
  add(w.own_embedding);
  return all;
}

}  // namespace

TEST_SUITE("gpu/ops/quantize_tiles") {
  TEST_CASE("tiles of every format are the bytes of codes that the CPU makes and places") {
    int differ = 0;
    for (const WeightFormat& format : formats())
      for (const auto& [out, in] :
           {std::pair{44, 64}, {44, 130}, {330, 200}, {16, 576}, {44, 1040}, {18, 2100}})
        for (const bool search : {false, true})
          for (const DType type : {DType::bf16, DType::f32})
            for (const bool gated : {false, true}) {
              const Matrix m(format, out, in, search, type);
              if (loaded({&m}, true, gated) == loaded({&m}, false, gated)) continue;
              ++differ;
              MESSAGE(format_name(format), " ", out, " x ", in, " ", dtype_name(type),
                      search ? " search" : "", gated ? " gated" : "");
            }
    CHECK(differ == 0);
  }

  TEST_CASE("numbers need no alignment, and only whole tiles are written") {
    for (const Code code : {Code::i4, Code::fp8}) {
      const bool fp8 = code == Code::fp8;
      const Matrix m({code, static_cast<int16_t>(fp8 ? 0 : 64),
                      fp8 ? ScaleType::f32 : ScaleType::f16, Zero::none},
                     48, 264);
      CodeTiles t{
          .out = 48, .in = 264, .group = m.format.group, .code = code, .scale = m.format.scale};
      std::vector<std::vector<uint8_t>> found;
      for (const size_t shift : {size_t{0}, size_t{2}}) {
        const DeviceBuffer from(m.numbers, shift);
        const DeviceBuffer to(static_cast<size_t>(3 * t.row_bytes()));
        // The middle row of tiles goes first.
        for (const int first : {1, 0, 2})
          cuda_table().quantize_tiles(
              {.to = to.as<uint8_t>() + first * t.row_bytes(),
               .tiles = t,
               .numbers = from.as<bf16>() + first * int64_t{kTileOutputs} * t.in,
               .type = DType::bf16,
               .search = true,
               .first = first,
               .n = 1,
               .refused = nullptr,
               .number = 0},
              queue().stream());
        cuda::launched("quantize_tiles", queue().stream());
        found.push_back(to.vector<uint8_t>());
      }
      CHECK(found[0] == found[1]);
      std::vector<uint8_t> all = loaded({&m}, false);
      all.resize(found[0].size());  // without what aligns the next matrix
      CHECK(found[0] == all);
    }
  }

  TEST_CASE("stacks of formats and of plain numbers have the bytes of each") {
    const Matrix q({Code::i4, 64, ScaleType::f16, Zero::integer}, 40, 200),
        k({Code::i8, 32, ScaleType::f16, Zero::none}, 24, 200), v(DType::bf16, 24, 200),
        f({Code::fp8, 0, ScaleType::f32, Zero::none}, 17, 200);
    CHECK(loaded({&q, &k, &v, &f}, true) == loaded({&q, &k, &v, &f}, false));
  }

  TEST_CASE("long rows have the same bytes, also if shared memory cannot hold two of them") {
    const WeightFormat fp8(Code::fp8, 0, ScaleType::f32, Zero::none);
    for (const int64_t in : {14336, 28672, 60000}) {
      const Matrix m(fp8, 20, in);
      CHECK(loaded({&m}, true) == loaded({&m}, false));
    }
    CodeTiles t{.out = 16, .in = 1 << 20, .code = Code::fp8, .scale = ScaleType::f32};
    CHECK(!cuda_table().quantize_tiles_fits(t, DType::bf16));
    t.group = 128;
    CHECK(cuda_table().quantize_tiles_fits(t, DType::bf16));
  }
}

TEST_SUITE("gpu/model/quantized_weights") {
  TEST_CASE("a model's matrices are those that the CPU quantizes, resident or streamed") {
    const WeightFormat four(Code::i4, 64, ScaleType::f16, Zero::integer),
        eight(Code::i8, 32, ScaleType::f16, Zero::none),
        fp8(Code::fp8, 0, ScaleType::f32, Zero::none);
    for (const WeightFormat& format : {four, eight, fp8}) {
      const auto format_of = [&](model::MatrixId id) -> std::optional<WeightFormat> {
        if (!model::in_layers(id.role)) return format == fp8 ? fp8 : eight;
        return id.role == model::Role::o ? std::nullopt : std::optional(format);
      };
      const model::ModelConfig c = small_config(format_of);
      for (const DType type : {DType::bf16, DType::f32})
        for (const int n_streamed : {0, 1}) {
          CAPTURE(format_name(format));
          CAPTURE(dtype_name(type));
          CAPTURE(n_streamed);
          auto numbers = std::make_unique<NumberSource>(c, type);
          const int& asked_host = numbers->asked_host;
          const auto source = model::quantized_source(c, std::move(numbers), format_of);
          const auto found = all_bytes(c, *source, n_streamed);
          CHECK((asked_host == 0) == (type == DType::f32));
          REQUIRE(found.size() == 10);
          CHECK(found == all_bytes(c, CodesSource(*source), n_streamed));
        }
    }
  }

  TEST_CASE("weights that are NaN or infinite are refused with the name of their matrix") {
    const WeightFormat four(Code::i4, 64, ScaleType::f16, Zero::integer);
    const auto format_of = [&](model::MatrixId id) -> std::optional<WeightFormat> {
      return model::in_layers(id.role) ? std::optional(four) : std::nullopt;
    };
    const model::ModelConfig c = small_config(format_of);
    const float inf = std::numeric_limits<float>::infinity();
    for (const DType type : {DType::bf16, DType::f32})
      for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()})
        for (const auto& [role, name] : {std::pair{model::Role::k, "self_attn.k_proj"},
                                         {model::Role::up, "mlp.up_proj"},
                                         {model::Role::down, "mlp.down_proj"}}) {
          const model::MatrixId id{role, 1};
          const auto source = model::quantized_source(
              c, std::make_unique<NumberSource>(c, type, id, bad), format_of);
          CHECK(input_error_text([&] { all_bytes(c, *source, 0); }) ==
                fmt::format("model.layers.1.{}.weight: holds a weight that is NaN or infinite, "
                            "which i4 g64 f16 integer cannot hold",
                            name));
        }
  }
}
