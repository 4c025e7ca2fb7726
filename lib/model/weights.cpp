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
  };
  std::vector<Part> parts;
  int layer = 0;
};

enum class ProductKind : uint8_t { qkv, wo, gate_up, w_down, lm_head, embedding };

Product product(const ModelConfig& c, DType dtype, const WeightPlaces& places, ProductKind kind,
                int layer) {
  Product p;
  p.layer = layer;
  const std::string prefix = "weights/layers." + std::to_string(layer) + ".";
  switch (kind) {
    case ProductKind::qkv:
      p.spec = {prefix + "qkv", c.q_dim() + 2 * int64_t{c.kv_dim()}, c.dim, c.qkv_bias, dtype};
      p.parts = {{Weight::wq, Weight::bq, c.q_dim()},
                 {Weight::wk, Weight::bk, c.kv_dim()},
                 {Weight::wv, Weight::bv, c.kv_dim()}};
      break;
    case ProductKind::wo:
      p.spec = {prefix + "wo", c.dim, c.q_dim(), c.o_bias, dtype};
      p.parts = {{Weight::wo, Weight::bo, c.dim}};
      break;
    case ProductKind::gate_up:
      p.spec = {prefix + "gate_up", 2 * int64_t{c.ffn_dim}, c.dim, c.mlp_bias, dtype};
      p.parts = {{Weight::w_gate, Weight::b_gate, c.ffn_dim},
                 {Weight::w_up, Weight::b_up, c.ffn_dim}};
      break;
    case ProductKind::w_down:
      p.spec = {prefix + "w_down", c.dim, c.ffn_dim, c.mlp_bias, dtype};
      p.parts = {{Weight::w_down, Weight::b_down, c.dim}};
      break;
    case ProductKind::embedding:  // never multiplied, but loaded like the others
      p.spec = {"weights/embedding", c.vocab_size, c.dim, false, dtype};
      p.parts = {{Weight::tok_emb, Weight::tok_emb, c.vocab_size}};
      break;
    case ProductKind::lm_head: {
      const Weight head = c.tied_embeddings ? Weight::tok_emb : Weight::lm_head;
      p.spec = {"weights/lm_head", c.vocab_size, c.dim, false, dtype};
      p.parts = {{head, head, c.vocab_size}};
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
  p.spec.by_input = kind == ProductKind::w_down && places.by_channel;
  return p;
}

bool has_host_embedding(const ModelConfig& c, const WeightPlaces& places) {
  return places.device.kind == Device::Kind::cuda && places.host_embedding && !c.tied_embeddings;
}

/// On a GPU, or where they are trainable, embedding rows come from memory: those of the head where
/// they are tied.
bool has_own_embedding(const ModelConfig& c, const WeightPlaces& places) {
  return (places.device.kind == Device::Kind::cuda || places.trainable.embedding) &&
         !c.tied_embeddings && !has_host_embedding(c, places);
}

constexpr const char* kHostEmbedding = "embedding/rows";

constexpr std::array kLayerProducts = {ProductKind::qkv, ProductKind::wo, ProductKind::gate_up,
                                       ProductKind::w_down};

PackedWeights& slot_of(LayerWeights& w, ProductKind kind) {
  switch (kind) {
    case ProductKind::qkv:
      return w.qkv;
    case ProductKind::wo:
      return w.wo;
    case ProductKind::gate_up:
      return w.gate_up;
    default:
      return w.w_down;
  }
}

/// Rows [begin, end) of the stacked matrix, part by part: write(part, its rows, where they go)
/// until one is false.
bool stacked_rows(const Product& p, int64_t begin, int64_t end, void* out, const auto& write) {
  const size_t row_bytes = static_cast<size_t>(p.spec.in) * dtype_bytes(p.spec.dtype);
  int64_t first = 0;
  for (const Product::Part& part : p.parts) {
    const int64_t lo = std::max(begin, first), hi = std::min(end, first + part.rows);
    char* to = static_cast<char*>(out) + static_cast<size_t>(lo - begin) * row_bytes;
    if (lo < hi && !write(part.weight, lo - first, hi - first, to)) return false;
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
      bias.insert(bias.end(), values.begin(), values.end());
    }
  PackedWeights packed;
  const auto rows = [&](int64_t begin, int64_t end, void* out) {
    watch.add((end - begin) * p.spec.in);
    stacked_rows(p, begin, end, out, [&](Weight weight, int64_t lo, int64_t hi, void* to) {
      source.rows(weight, p.layer, lo, hi, p.spec.dtype, to);
      return true;
    });
  };
  const auto device_rows = [&](int64_t begin, int64_t end, void* device, Stream stream) {
    const bool written =
        stacked_rows(p, begin, end, device, [&](Weight weight, int64_t lo, int64_t hi, void* to) {
          return source.rows_on_device(weight, p.layer, lo, hi, p.spec.dtype, to, stream);
        });
    if (written) watch.add((end - begin) * p.spec.in);
    return written;
  };
  packed.load(p.spec, memory, rows, bias, staging, device_rows);
  return packed;
}

int64_t matrix_elements(const ModelConfig& c, DType dtype) {
  int64_t layer = 0;
  for (const ProductKind kind : kLayerProducts) {
    const PackedWeights::Spec spec = product(c, dtype, {}, kind, 0).spec;
    layer += spec.out * spec.in;
  }
  return c.n_layers * layer + int64_t{c.vocab_size} * c.dim;
}

/// Bytes of a GPU's memory for the matrices of a layer and their biases.
size_t block_bytes(const ModelConfig& c, DType dtype, Device device) {
  size_t bytes = 0;
  for (const ProductKind kind : kLayerProducts)
    bytes += PackedWeights::device_bytes(product(c, dtype, {device}, kind, 0).spec);
  return bytes;
}

size_t norm_elements(const ModelConfig& c) {
  const int64_t of_heads = c.qk_norm ? 2 * int64_t{c.head_dim} : 0;
  return static_cast<size_t>(c.n_layers * (2 * int64_t{c.dim} + of_heads) + c.dim);
}

/// Norm weights of all layers in the order of next_norms, and the last norm's.
std::vector<float> all_norms(const ModelConfig& c, const WeightSource& source) {
  std::vector<float> all;
  const auto append = [&](Weight weight, int layer) {
    const std::vector<float> values = source.vector(weight, layer);
    const auto expected = static_cast<size_t>(weight_shape(weight, c).front());
    TANDEM_CHECK(values.size() == expected, "{} norm weights of {}", values.size(), expected);
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
  if (c.qk_norm) {
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
  const size_t row_bytes = static_cast<size_t>(c.dim) * dtype_bytes(dtype);
  PinnedPages pinned(memory, static_cast<size_t>(c.vocab_size) * row_bytes, 0);
  if (!pinned.refusal().empty())
    throw Error::make(ErrorKind::memory, kHostEmbedding,
                      "is to be read by the GPU, which takes {} of pinned memory, but the system "
                      "refused: {}",
                      format_bytes(static_cast<size_t>(c.vocab_size) * row_bytes), pinned.refusal())
        .hint(
            "allow a process to lock as much (ulimit -l, the limits of a container), or raise "
            "run.gpu_memory_limit, so that it lies on the GPU");
  for (int64_t begin = 0; begin < c.vocab_size; begin += kRows) {
    const int64_t end = std::min<int64_t>(begin + kRows, c.vocab_size);
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

void Weights::plan(const ModelConfig& config, DType dtype, MemoryPlan& plan,
                   const WeightPlaces& places) {
  const Device device = places.device;
  size_t staging = 0;
  const auto add = [&](const Product& p, bool resident = true) {
    if (resident) PackedWeights::plan(p.spec, plan);
    staging = std::max(staging, PackedWeights::staging_bytes(p.spec));
  };
  const std::vector<int> streamed = streamed_layers(config.n_layers, places.n_streamed);
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const ProductKind kind : kLayerProducts)
      add(product(config, dtype, places, kind, layer),
          !std::ranges::binary_search(streamed, layer));
  if (!streamed.empty())
    LayerStream::plan(streamed, block_bytes(config, dtype, device), device, plan);
  add(product(config, dtype, places, ProductKind::lm_head, 0));
  if (has_own_embedding(config, places))
    add(product(config, dtype, places, ProductKind::embedding, 0));
  if (has_host_embedding(config, places))
    plan.add(kHostEmbedding, static_cast<size_t>(config.vocab_size) *
                                 static_cast<size_t>(config.dim) * dtype_bytes(dtype));
  plan.add("weights/norms", norm_elements(config) * sizeof(float), device);
  plan.add("load/staging", staging, {}, Lifetime::load);
}

Weights Weights::load(const ModelConfig& config, DType dtype, const WeightSource& source,
                      Arena& arena, const LoadEvents& events, const WeightPlaces& places) {
  const Device device = places.device;
  Weights w;
  if (places.n_streamed > 0)
    w.stream = std::make_unique<LayerStream>(streamed_layers(config.n_layers, places.n_streamed),
                                             block_bytes(config, dtype, device), device, arena);
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
    const auto load_layer = [&](std::byte* memory, int layer) {
      LayerWeights l;
      for (const ProductKind kind : kLayerProducts) {
        const Product p = product(config, dtype, places, kind, layer);
        slot_of(l, kind) = load_product(p, source, memory, staging, watch);
        memory += PackedWeights::device_bytes(p.spec);
      }
      staging.wait();
      return l;
    };
    for (int layer = 0; layer < config.n_layers; ++layer) {
      LayerWeights& l = w.layers.emplace_back();
      l.norms = next_norms(config, norms);
      if (w.stream && w.stream->holds(layer))
        w.stream->load(l.norms, [&](std::byte* memory) { return load_layer(memory, layer); });
      else
        for (const ProductKind kind : kLayerProducts) slot_of(l, kind) = load(kind, layer);
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
  for (const ProductKind kind : kLayerProducts)
    bytes = std::max(bytes, PackedWeights::workspace_bytes(
                                product(config, dtype, {device}, kind, 0).spec, max_rows));
  return bytes;
}

size_t Weights::bytes() const {
  size_t sum = lm_head.bytes();
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& l = layers[i].qkv.empty() ? stream->in_buffer(0) : layers[i];
    sum += l.qkv.bytes() + l.wo.bytes() + l.gate_up.bytes() + l.w_down.bytes();
  }
  return sum;
}

size_t Weights::gate_up_bytes() const {
  size_t sum = 0;
  for (const LayerWeights& l : layers)
    sum += (l.qkv.empty() ? stream->in_buffer(0) : l).gate_up.bytes();
  return sum;
}

size_t Weights::down_bytes() const {
  size_t sum = 0;
  for (const LayerWeights& l : layers)
    sum += (l.qkv.empty() ? stream->in_buffer(0) : l).w_down.bytes();
  return sum;
}

std::vector<const LayerWeights*> Weights::on_device() const {
  std::vector<const LayerWeights*> all;
  for (const LayerWeights& l : layers)
    if (!l.qkv.empty()) all.push_back(&l);
  for (int i = 0; stream && i < stream->n_buffers(); ++i) all.push_back(&stream->in_buffer(i));
  return all;
}

}  // namespace tandem::model
