#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/weight_table.h"
#include "tensor/cuda.h"

namespace tandem::model {
namespace {

using ops::PackedWeights;

/// One packed product: the checkpoint's matrices that it stacks, and their biases.
struct Product {
  PackedWeights::Spec spec;
  struct Part {
    Weight weight;
    Weight bias;
    int64_t rows;
    int64_t first = 0;  // of the checkpoint's matrix
  };
  std::vector<Part> parts;
  int layer = 0;
};

enum class ProductKind : uint8_t {
  qkv,
  wo,
  gate_up,
  w_down,
  rest_gate_up,
  rest_down,
  lm_head,
  embedding
};

struct ChannelRange {
  int64_t first = 0, n = 0;
};

/// Channels of a product of an FFN: of the set, of the rest, or all.
ChannelRange channels_in(const ModelConfig& c, const WeightPlaces& places, ProductKind kind) {
  const bool of_rest = kind == ProductKind::rest_gate_up || kind == ProductKind::rest_down;
  if (of_rest) return {places.set_channels, c.ffn_dim - places.set_channels};
  return {0, places.divides() ? places.set_channels : c.ffn_dim};
}

Product product(const ModelConfig& c, DType dtype, const WeightPlaces& places, ProductKind kind,
                int layer) {
  Product p;
  p.layer = layer;
  const std::string prefix = "weights/layers." + std::to_string(layer) + ".";
  const ChannelRange channels = channels_in(c, places, kind);
  switch (kind) {
    case ProductKind::qkv:
      p.spec = {prefix + "qkv", c.q_dim() + 2 * int64_t{c.kv_dim()}, c.dim, c.qkv_bias(), dtype};
      p.parts = {{Weight::wq, Weight::bq, c.q_dim()},
                 {Weight::wk, Weight::bk, c.kv_dim()},
                 {Weight::wv, Weight::bv, c.kv_dim()}};
      break;
    case ProductKind::wo:
      p.spec = {prefix + "wo", c.dim, c.q_dim(), c.o_bias(), dtype};
      p.parts = {{Weight::wo, Weight::bo, c.dim}};
      break;
    case ProductKind::gate_up:
    case ProductKind::rest_gate_up:
      p.spec = {prefix + (kind == ProductKind::gate_up ? "gate_up" : "rest_gate_up"),
                2 * channels.n, c.dim, c.mlp_bias(), dtype};
      p.parts = {{Weight::w_gate, Weight::b_gate, channels.n, channels.first},
                 {Weight::w_up, Weight::b_up, channels.n, channels.first}};
      break;
    case ProductKind::w_down:
      p.spec = {prefix + "w_down", c.dim, channels.n, c.mlp_bias(), dtype};
      p.parts = {{Weight::w_down, Weight::b_down, c.dim}};
      break;
    case ProductKind::rest_down:  // the bias is added once
      p.spec = {prefix + "rest_down", c.dim, channels.n, false, dtype};
      p.parts = {{Weight::w_down, Weight::b_down, c.dim}};
      break;
    case ProductKind::embedding:  // never multiplied, but loaded like the others
      p.spec = {"weights/embedding", c.head_rows(), c.dim, false, dtype};
      p.parts = {{Weight::tok_emb, Weight::tok_emb, c.head_rows()}};
      break;
    case ProductKind::lm_head: {
      const Weight head = c.head.tied ? Weight::tok_emb : Weight::lm_head;
      p.spec = {"weights/lm_head", c.head_rows(), c.dim, false, dtype};
      p.parts = {{head, head, c.head_rows()}};
      break;
    }
  }
  p.spec.device = places.device;
  const bool outside = kind == ProductKind::lm_head || kind == ProductKind::embedding;
  const bool on_gpu = places.device.kind == Device::Kind::cuda;
  // Channels are rows of gate and up, of which a GPU has no other form, and inputs of w_down.
  const bool reads_rows = kind == ProductKind::gate_up && places.by_channel && !on_gpu;
  p.spec.trainable =
      outside ? places.trainable.any() : layer >= places.trainable.from || reads_rows;
  const bool is_down = kind == ProductKind::w_down || kind == ProductKind::rest_down;
  p.spec.by_input = is_down && places.by_channel;
  if (is_down && places.divides()) {
    p.spec.source_in = c.ffn_dim;
    p.spec.first_in = channels.first;
  }
  return p;
}

bool has_host_embedding(const ModelConfig& c, const WeightPlaces& places) {
  return places.device.kind == Device::Kind::cuda && places.host_embedding && !c.head.tied;
}

/// On a GPU, or where they are trainable, embedding rows come from memory: those of the head where
/// they are tied.
bool has_own_embedding(const ModelConfig& c, const WeightPlaces& places) {
  return (places.device.kind == Device::Kind::cuda || places.trainable.embedding) && !c.head.tied &&
         !has_host_embedding(c, places);
}

constexpr const char* kHostEmbedding = "embedding/rows";

struct LayerProduct {
  ProductKind kind;
  LayerPart part;
  Weights::Matrix matrix;
};

constexpr std::array kLayerProducts = {
    LayerProduct{ProductKind::qkv, LayerPart::attention, &LayerWeights::qkv},
    LayerProduct{ProductKind::wo, LayerPart::attention, &LayerWeights::wo},
    LayerProduct{ProductKind::gate_up, LayerPart::ffn, &LayerWeights::gate_up},
    LayerProduct{ProductKind::w_down, LayerPart::ffn, &LayerWeights::w_down},
    LayerProduct{ProductKind::rest_gate_up, LayerPart::rest, &LayerWeights::rest_gate_up},
    LayerProduct{ProductKind::rest_down, LayerPart::rest, &LayerWeights::rest_down}};

/// The products of a part; of the rest none where channels are not divided.
std::vector<LayerProduct> products_of(LayerPart part, const WeightPlaces& places) {
  std::vector<LayerProduct> all;
  for (const LayerProduct& p : kLayerProducts)
    if (p.part == part && (part != LayerPart::rest || places.divides())) all.push_back(p);
  return all;
}

LayerPart part_of(Weights::Matrix matrix) {
  return std::ranges::find(kLayerProducts, matrix, &LayerProduct::matrix)->part;
}

/// Rows [begin, end) of the stacked matrix, part by part: write(part, its rows, where they go)
/// until one is false.
bool stacked_rows(const Product& p, int64_t begin, int64_t end, void* out, const auto& write) {
  const size_t row_bytes = tandem::row_bytes(p.spec.stored, p.spec.row_numbers());
  int64_t first = 0;
  for (const Product::Part& part : p.parts) {
    const int64_t lo = std::max(begin, first), hi = std::min(end, first + part.rows);
    char* to = static_cast<char*>(out) + static_cast<size_t>(lo - begin) * row_bytes;
    const int64_t shift = part.first - first;
    if (lo < hi && !write(part.weight, lo + shift, hi + shift, to)) return false;
    first += part.rows;
  }
  return true;
}

/// Polls for an interruption and reports how far loading has come.
class LoadWatch {
 public:
  LoadWatch(const LoadEvents& events, int64_t elements) : events_(events), elements_(elements) {}

  void add(int64_t elements) {
    poll(events_.interrupted);
    done_ += elements;
    if (events_.progress)
      events_.progress(static_cast<double>(done_) / static_cast<double>(elements_));
  }

 private:
  const LoadEvents& events_;
  int64_t elements_, done_ = 0;
};

/// memory   of a GPU, or the arena to take it from
PackedWeights load_product(const Product& p, const WeightSource& source, auto&& memory,
                           ops::Staging& staging, LoadWatch& watch) {
  std::vector<float> bias;
  if (p.spec.bias)
    for (const Product::Part& part : p.parts) {
      const std::vector<float> values = source.vector(part.bias, p.layer);
      const auto begin = values.begin() + part.first;
      bias.insert(bias.end(), begin, begin + part.rows);
    }
  const DType numbers = numbers_of(p.spec.stored);
  PackedWeights packed;
  const auto rows = [&](int64_t begin, int64_t end, void* out) {
    watch.add((end - begin) * p.spec.in);
    stacked_rows(p, begin, end, out, [&](Weight weight, int64_t lo, int64_t hi, void* to) {
      source.rows(weight, p.layer, lo, hi, numbers, to);
      return true;
    });
  };
  const auto device_rows = [&](int64_t begin, int64_t end, void* device, Stream stream) {
    const bool written =
        stacked_rows(p, begin, end, device, [&](Weight weight, int64_t lo, int64_t hi, void* to) {
          return source.rows_on_device(weight, p.layer, lo, hi, numbers, to, stream);
        });
    if (written) watch.add((end - begin) * p.spec.in);
    return written;
  };
  packed.load(p.spec, memory, rows, bias, staging, device_rows);
  return packed;
}

int64_t matrix_elements(const ModelConfig& c, DType dtype) {
  int64_t layer = 0;
  for (const LayerPart part : kLayerParts)
    for (const LayerProduct& p : products_of(part, {})) {
      const PackedWeights::Spec spec = product(c, dtype, {}, p.kind, 0).spec;
      layer += spec.out * spec.in;
    }
  return c.n_layers * layer + int64_t{c.head_rows()} * c.dim;
}

/// Bytes of a GPU's memory for the matrices of a part and their biases.
size_t part_bytes(const ModelConfig& c, DType dtype, const WeightPlaces& places, LayerPart part) {
  size_t bytes = 0;
  for (const LayerProduct& p : products_of(part, places))
    bytes += PackedWeights::device_bytes(product(c, dtype, places, p.kind, 0).spec);
  return bytes;
}

/// In the order in which forwards use them.
std::vector<LayerStream::Part> streamed(const ModelConfig& c, DType dtype,
                                        const WeightPlaces& places) {
  const StreamedParts n = streamed_parts(c.n_layers, places);
  const std::array<std::vector<int>, kLayerParts.size()> layers = {
      streamed_layers(c.n_layers, n.attention), streamed_layers(c.n_layers, n.ffn),
      streamed_layers(c.n_layers, n.rest)};
  std::vector<LayerStream::Part> all;
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const LayerPart part : kLayerParts)
      if (std::ranges::binary_search(layers[static_cast<size_t>(part)], layer))
        all.push_back({layer, part, part_bytes(c, dtype, places, part)});
  return all;
}

bool holds(const std::vector<LayerStream::Part>& parts, int layer, LayerPart part) {
  return std::ranges::any_of(
      parts, [&](const LayerStream::Part& p) { return p.layer == layer && p.part == part; });
}

size_t norm_elements(const ModelConfig& c) {
  const int64_t of_heads = c.qk_norm() ? 2 * int64_t{c.head_dim} : 0;
  return static_cast<size_t>(c.n_layers * (2 * int64_t{c.dim} + of_heads) + c.dim);
}

/// Norm weights of all layers in the order of next_norms, and the last norm's.
std::vector<float> all_norms(const ModelConfig& c, const WeightSource& source) {
  std::vector<float> all;
  const auto append = [&](Weight weight, int layer) {
    const std::vector<float> values = source.vector(weight, layer);
    const auto expected = static_cast<size_t>(weight_shape(weight, c).front());
    TANDEM_CHECK(values.size() == expected, "found {} norm weights, expected {}", values.size(),
                 expected);
    all.insert(all.end(), values.begin(), values.end());
  };
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const Weight norm : {Weight::attn_norm, Weight::ffn_norm, Weight::q_norm, Weight::k_norm})
      if (has_weight(norm, c)) append(norm, layer);
  append(Weight::out_norm, 0);
  return all;
}

/// The norms of the next layer; `at` moves past them.
LayerNorms next_norms(const ModelConfig& c, const float*& at) {
  const auto take = [&](int n) { return std::exchange(at, at + n); };
  LayerNorms norms{.attn = take(c.dim), .ffn = take(c.dim)};
  if (c.qk_norm()) {
    norms.q = take(c.head_dim);
    norms.k = take(c.head_dim);
  }
  return norms;
}

/// Fills host memory with the rows of the embedding, pinned for kernels of a GPU.
/// errors   kind memory: the system refuses to pin it
PinnedPages load_host_embedding(const ModelConfig& c, DType dtype, const WeightSource& source,
                                void* memory, LoadWatch& watch) {
  constexpr int64_t kRows = 4096;
  const size_t row_bytes = tandem::row_bytes(dtype, c.dim);
  PinnedPages pinned(memory, static_cast<size_t>(c.head_rows()) * row_bytes, 0);
  if (!pinned.refusal().empty())
    throw Error::make(ErrorKind::memory, kHostEmbedding,
                      "needs {} of pinned memory for the GPU to read, which the system refused: {}",
                      format_bytes(static_cast<size_t>(c.head_rows()) * row_bytes),
                      pinned.refusal())
        .hint(
            "raise the limit of locked memory (ulimit -l, container limits), or raise "
            "run.gpu_memory_limit to keep it on the GPU");
  for (int64_t begin = 0; begin < c.head_rows(); begin += kRows) {
    const int64_t end = std::min<int64_t>(begin + kRows, c.head_rows());
    watch.add((end - begin) * c.dim);
    source.rows(Weight::tok_emb, 0, begin, end, dtype,
                static_cast<std::byte*>(memory) + static_cast<size_t>(begin) * row_bytes);
  }
  return pinned;
}

void copy_to(Device device, float* to, std::span<const float> from) {
  if (device.kind == Device::Kind::cpu) {
    std::memcpy(to, from.data(), from.size_bytes());
    return;
  }
  cuda::Queue queue(device.index);
  queue.copy_in(to, from.data(), from.size_bytes());
  queue.wait();
}

}  // namespace

StreamedParts streamed_parts(int n_layers, const WeightPlaces& places) {
  const int n = places.n_streamed;
  if (!places.divides()) return {n, n, 0};
  const auto share = [&](int before) { return std::clamp(n - before, 0, n_layers); };
  return {share(2 * n_layers), share(n_layers), share(0)};
}

ForwardBytes forward_bytes(const ModelConfig& config, DType dtype, const WeightPlaces& places,
                           ReadKind kind) {
  const StreamedParts n = streamed_parts(config.n_layers, places);
  const auto bytes = [&](LayerPart part) {
    return static_cast<double>(part_bytes(config, dtype, places, part));
  };
  const double attention = bytes(LayerPart::attention), ffn = bytes(LayerPart::ffn),
               rest = kind == ReadKind::all ? bytes(LayerPart::rest) : 0;
  const auto head = static_cast<double>(matrix_bytes(dtype, config.head_rows(), config.dim));
  return {config.n_layers * (attention + ffn + rest) + head,
          n.attention * attention + n.ffn * ffn + n.rest * rest};
}

void Weights::plan(const ModelConfig& config, DType dtype, MemoryPlan& plan,
                   const WeightPlaces& places) {
  const Device device = places.device;
  size_t staging = 0;
  const auto add = [&](const Product& p, bool resident = true) {
    if (resident) PackedWeights::plan(p.spec, plan);
    staging = std::max(staging, PackedWeights::staging_bytes(p.spec));
  };
  const std::vector<LayerStream::Part> parts = streamed(config, dtype, places);
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const LayerPart part : kLayerParts)
      for (const LayerProduct& p : products_of(part, places))
        add(product(config, dtype, places, p.kind, layer), !holds(parts, layer, part));
  if (!parts.empty()) LayerStream::plan(parts, device, plan);
  add(product(config, dtype, places, ProductKind::lm_head, 0));
  if (has_own_embedding(config, places))
    add(product(config, dtype, places, ProductKind::embedding, 0));
  if (has_host_embedding(config, places))
    plan.add(kHostEmbedding, matrix_bytes(dtype, config.head_rows(), config.dim));
  plan.add("weights/norms", norm_elements(config) * sizeof(float), device);
  plan.add("load/staging", staging, {}, Lifetime::load);
}

Weights Weights::load(const ModelConfig& config, DType dtype, const WeightSource& source,
                      Arena& arena, const LoadEvents& events, const WeightPlaces& places) {
  const Device device = places.device;
  Weights w;
  if (places.n_streamed > 0)
    w.stream = std::make_unique<LayerStream>(streamed(config, dtype, places), device, arena);
  float* const all = static_cast<float*>(arena.take("weights/norms"));
  copy_to(device, all, all_norms(config, source));
  w.norms = {all, norm_elements(config)};
  const float* norms = all;
  {
    ops::Staging staging(device, arena.take("load/staging"),
                         arena.plan().find("load/staging")->bytes);
    LoadWatch watch(events, matrix_elements(config, dtype));
    const auto load = [&](ProductKind kind, int layer) {
      return load_product(product(config, dtype, places, kind, layer), source, arena, staging,
                          watch);
    };
    const auto load_part = [&](std::byte* memory, int layer, LayerPart part) {
      LayerWeights l;
      for (const LayerProduct& of : products_of(part, places)) {
        const Product p = product(config, dtype, places, of.kind, layer);
        l.*of.matrix = load_product(p, source, memory, staging, watch);
        memory += PackedWeights::device_bytes(p.spec);
      }
      staging.wait();
      return l;
    };
    for (int layer = 0; layer < config.n_layers; ++layer) {
      LayerWeights& l = w.layers.emplace_back();
      l.norms = next_norms(config, norms);
      for (const LayerPart part : kLayerParts)
        if (w.stream && w.stream->holds(layer, part))
          w.stream->load([&](std::byte* memory) { return load_part(memory, layer, part); });
        else
          for (const LayerProduct& of : products_of(part, places))
            l.*of.matrix = load(of.kind, layer);
    }
    w.out_norm = norms;
    w.lm_head = load(ProductKind::lm_head, 0);
    if (has_own_embedding(config, places)) w.own_embedding = load(ProductKind::embedding, 0);
    if (has_host_embedding(config, places)) {
      w.host_embedding = arena.take(kHostEmbedding);
      w.pinned_embedding = load_host_embedding(config, dtype, source, w.host_embedding, watch);
    }
    staging.wait();
  }
  arena.give_back("load/staging");
  if (w.stream) w.stream->start();
  return w;
}

size_t Weights::workspace_bytes(const ModelConfig& config, DType dtype, int64_t max_rows,
                                int64_t head_rows, Device device) {
  size_t bytes = PackedWeights::workspace_bytes(
      product(config, dtype, {device}, ProductKind::lm_head, 0).spec, head_rows);
  for (const LayerPart part : kLayerParts)
    for (const LayerProduct& p : products_of(part, {}))
      bytes = std::max(bytes, PackedWeights::workspace_bytes(
                                  product(config, dtype, {device}, p.kind, 0).spec, max_rows));
  return bytes;
}

size_t Weights::bytes_of(std::initializer_list<Matrix> matrices) const {
  size_t sum = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    for (const Matrix matrix : matrices) {
      const LayerPart part = part_of(matrix);
      const bool streams = stream && stream->holds(static_cast<int>(i), part);
      const PackedWeights& w = (streams ? stream->in_buffer(0, part) : layers[i]).*matrix;
      if (!w.empty()) sum += w.bytes();
    }
  return sum;
}

size_t Weights::bytes() const {
  return lm_head.bytes() + bytes_of({&LayerWeights::qkv, &LayerWeights::wo}) + gate_up_bytes() +
         down_bytes();
}

size_t Weights::gate_up_bytes() const {
  return bytes_of({&LayerWeights::gate_up, &LayerWeights::rest_gate_up});
}

size_t Weights::down_bytes() const {
  return bytes_of({&LayerWeights::w_down, &LayerWeights::rest_down});
}

std::vector<const PackedWeights*> Weights::on_device(Matrix matrix) const {
  std::vector<const PackedWeights*> all;
  for (const LayerWeights& l : layers)
    if (!(l.*matrix).empty()) all.push_back(&(l.*matrix));
  for (int i = 0; stream && i < stream->n_buffers(); ++i)
    if (const PackedWeights& w = stream->in_buffer(i, part_of(matrix)).*matrix; !w.empty())
      all.push_back(&w);
  return all;
}

}  // namespace tandem::model
