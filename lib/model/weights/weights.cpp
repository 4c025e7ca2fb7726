#include "model/weights/weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/spec/weight_formats.h"
#include "tensor/cuda.h"

namespace tandem::model {
namespace {

using ops::PackedWeights;

/// One packed product, and the rows of checkpoint matrices that it stacks.
struct Product {
  PackedWeights::Spec spec;
  struct Part {
    Role role;
    int64_t rows;
    int64_t first = 0;  // of the checkpoint's matrix
  };
  std::vector<Part> parts;
  int layer = 0;
};

/// Sets the formats in which the rows of a product lie.
void set_formats(Product& p, const ModelConfig& c) {
  PackedWeights::Spec& s = p.spec;
  s.int8_inputs = c.formats && c.formats->int8_inputs;
  s.fp8_inputs = c.formats && c.formats->fp8_inputs;
  for (const Product::Part& part : p.parts) {
    const WeightFormat format = stored_as(c, {part.role, p.layer}, s.input);
    if (!s.stacked.empty() && s.stacked.back().stored == format)
      s.stacked.back().rows += part.rows;
    else
      s.stacked.push_back({part.rows, format});
  }
  if (s.stacked.size() > 1) return;
  s.stored = s.stacked.front().stored;
  s.stacked.clear();
}

/// True where something reads the weights that cannot read codes. Listed channels are read from
/// codes on a GPU, but not exchanged.
bool read_as_numbers(const PackedWeights::Spec& s, const WeightPlaces& places) {
  const bool reads_codes = places.trainable.codes && !places.by_channel;
  const bool lists_codes = places.device.kind == Device::Kind::cuda && !places.divides();
  const bool lists = s.by_input || (s.gated && places.by_channel);
  return (s.trainable && !reads_codes) || (lists && !lists_codes);
}

struct ChannelRange {
  int64_t first = 0, n = 0;
};

/// Channels of an FFN in a part: of the set, of the rest, or all.
ChannelRange channels_in(const ModelConfig& c, const WeightPlaces& places, LayerPart part) {
  if (part == LayerPart::rest) return {places.set_channels, c.ffn_dim - places.set_channels};
  return {0, places.divides() ? places.set_channels : c.ffn_dim};
}

Product product(const ModelConfig& c, DType dtype, const WeightPlaces& places, MatrixId id) {
  const LayerPart part = info(id.role).part;
  const bool outside = part == LayerPart::outside, adds = ends_in_stream(id.role);
  const ChannelRange channels = channels_in(c, places, part);
  Product p{.spec = {.name = "weights/", .stored = dtype, .device = places.device},
            .parts = {},
            .layer = id.layer};
  if (!outside) p.spec.name += "layers." + std::to_string(id.layer) + ".";
  p.spec.name += info(id.role).planned;
  for (const Role of : members(id.role)) {
    const io::Shape shape = shape_of(of, c);
    const bool neurons = info(of).unit == Unit::neuron;
    p.parts.push_back(neurons && !adds ? Product::Part{of, channels.n, channels.first}
                                       : Product::Part{of, shape[0]});
    p.spec.out += p.parts.back().rows;
    p.spec.in = neurons && adds ? channels.n : shape[1];
  }
  if (id.role == Role::head && c.head.tied) p.parts.front().role = Role::embedding;
  // The set's product adds the bias of down.
  p.spec.bias = has_bias(id.role, c) && id.role != Role::rest_down;
  // Channels are rows of gate and up, of which a GPU has no other form, and inputs of down.
  p.spec.gated = info(id.role).stack == Role::gate_up;
  const bool reads_rows = p.spec.gated && places.by_channel;
  p.spec.trainable = outside ? places.trainable.any()
                             : id.layer >= places.trainable.from ||
                                   (reads_rows && places.device.kind != Device::Kind::cuda);
  const bool is_down = info(id.role).stack == Role::down;
  p.spec.by_input = is_down && places.by_channel;
  if (is_down && places.divides()) {
    p.spec.source_in = c.ffn_dim;
    p.spec.first_in = channels.first;
  }
  const bool is_rewritten = places.rewritten && !outside;
  if (!is_rewritten && !read_as_numbers(p.spec, places)) set_formats(p, c);
  if (reads_rows) p.spec.stacked.clear();  // codes of two formats are read as numbers
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

/// The products of a part; of the rest none where channels are not divided.
std::vector<Role> products_of(LayerPart part, const WeightPlaces& places) {
  std::vector<Role> all;
  for (const Role role : kPackedRoles)
    if (info(role).part == part && (part != LayerPart::rest || places.divides()))
      all.push_back(role);
  return all;
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

/// Rows of a product from its source; of some type, the numbers that the source quantizes.
struct ProductRows {
  const Product& p;
  const WeightSource& source;
  LoadWatch& watch;
  std::optional<DType> numbers = {};

  /// Rows [begin, end) of the stacked matrix, part by part: write(source, matrix, its rows, their
  /// format, where they go) until one is false.
  bool stacked(int64_t begin, int64_t end, void* out, const auto& write) const {
    auto* to = static_cast<char*>(out);
    int64_t first = 0;
    for (const Product::Part& part : p.parts) {
      const MatrixId id{part.role, p.layer};
      const int64_t lo = std::max(begin, first), hi = std::min(end, first + part.rows);
      const int64_t shift = part.first - first;
      const WeightFormat format = numbers ? *numbers : p.spec.format_at(first);
      if (lo < hi) {
        const WeightSource& from = numbers ? *source.unquantized(id).source : source;
        if (!write(from, id, lo + shift, hi + shift, format, to)) return false;
        to += matrix_bytes(format, hi - lo, p.spec.row_numbers());
      }
      first += part.rows;
    }
    return true;
  }
  PackedWeights::RowSource on_host() const {
    return [rows = *this](int64_t begin, int64_t end, void* out) {
      rows.watch.add((end - begin) * rows.p.spec.in);
      rows.stacked(begin, end, out,
                   [](const WeightSource& from, MatrixId id, int64_t lo, int64_t hi,
                      const WeightFormat& format, void* to) {
                     from.rows(id, lo, hi, format, to);
                     return true;
                   });
    };
  }
  PackedWeights::DeviceRowSource on_device() const {
    return [rows = *this](int64_t begin, int64_t end, void* device, Stream stream) {
      const bool written =
          rows.stacked(begin, end, device,
                       [&](const WeightSource& from, MatrixId id, int64_t lo, int64_t hi,
                           const WeightFormat& format, void* to) {
                         return from.rows_on_device(id, lo, hi, format, to, stream);
                       });
      if (written) rows.watch.add((end - begin) * rows.p.spec.in);
      return written;
    };
  }
};

/// The numbers of a product, if its source quantizes all matrices that are codes.
PackedWeights::Unquantized unquantized(ProductRows rows) {
  PackedWeights::Unquantized all{};
  all.type = DType::bf16;
  int64_t first = 0;
  for (const Product::Part& part : rows.p.parts) {
    const MatrixId id{part.role, rows.p.layer};
    if (!is_coded(rows.p.spec.format_at(std::exchange(first, first + part.rows)))) continue;
    const auto [numbers, search] = rows.source.unquantized(id);
    if (numbers == nullptr) return {};
    if (numbers->native(id) != DType::bf16) all.type = DType::f32;
    all.search = search;
  }
  all.refuse = [p = rows.p, &source = rows.source] {
    for (const Product::Part& part : p.parts) {
      const MatrixId id{part.role, p.layer};
      const WeightFormat format = source.native(id);
      std::vector<std::byte> row(row_bytes(format, p.spec.row_numbers()));
      for (int64_t i = part.first; i < part.first + part.rows; ++i)
        source.rows(id, i, i + 1, format, row.data());
    }
  };
  rows.numbers = all.type;
  all.rows = rows.on_host();
  all.device_rows = rows.on_device();
  return all;
}

/// memory   of a GPU, or the arena to take it from
PackedWeights load_product(const Product& p, const WeightSource& source, auto&& memory,
                           ops::Staging& staging, LoadWatch& watch) {
  std::vector<float> bias;
  if (p.spec.bias)
    for (const Product::Part& part : p.parts) {
      const std::vector<float> values = source.vector({bias_of(part.role), p.layer});
      const auto begin = values.begin() + part.first;
      bias.insert(bias.end(), begin, begin + part.rows);
    }
  PackedWeights packed;
  const ProductRows rows{p, source, watch};
  packed.load(p.spec, memory, rows.on_host(), bias, staging, rows.on_device(), unquantized(rows));
  return packed;
}

int64_t matrix_elements(const ModelConfig& c, DType dtype) {
  int64_t layer = 0;
  for (const LayerPart part : kLayerParts)
    for (const Role role : products_of(part, {})) {
      const PackedWeights::Spec spec = product(c, dtype, {}, {role}).spec;
      layer += spec.out * spec.in;
    }
  return c.n_layers * layer + int64_t{c.head_rows()} * c.dim;
}

/// Bytes of a GPU's memory for the matrices of a part of a layer and their biases.
size_t part_bytes(const ModelConfig& c, DType dtype, const WeightPlaces& places, int layer,
                  LayerPart part) {
  size_t bytes = 0;
  for (const Role role : products_of(part, places))
    bytes += PackedWeights::device_bytes(product(c, dtype, places, {role, layer}).spec);
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
        all.push_back({layer, part, part_bytes(c, dtype, places, layer, part)});
  return all;
}

bool holds(const std::vector<LayerStream::Part>& parts, int layer, LayerPart part) {
  return std::ranges::any_of(
      parts, [&](const LayerStream::Part& p) { return p.layer == layer && p.part == part; });
}

/// Factors of all layers' norms, and the last norm's, as norm_offset places them.
std::vector<float> all_norms(const ModelConfig& c, const WeightSource& source) {
  std::vector<float> all;
  const auto append = [&](MatrixId id) {
    std::vector<float> values = source.vector(id);
    if (c.norms().unit_offset)
      for (float& value : values) ++value;
    const auto expected = static_cast<size_t>(shape_of(id.role, c).front());
    TANDEM_CHECK(values.size() == expected, "found {} norm weights, expected {}", values.size(),
                 expected);
    all.insert(all.end(), values.begin(), values.end());
  };
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const Role role : layer_roles(c))
      if (is_norm(role)) append({role, layer});
  append({Role::out_norm});
  return all;
}

LayerNorms norms_of(const ModelConfig& c, const float* all, int layer) {
  const auto at = [&](Role role) {
    return present(role, c) ? all + norm_offset({role, layer}, c) : nullptr;
  };
  const bool rows = c.qk_norm() == QkNorm::row;
  return {at(Role::attn_pre),
          at(Role::ffn_pre),
          at(rows ? Role::q_row_norm : Role::q_norm),
          at(rows ? Role::k_row_norm : Role::k_norm),
          at(Role::attn_post),
          at(Role::ffn_post)};
}

/// Fills host memory with the rows of the embedding, pinned for kernels of a GPU.
/// errors   kind memory: the system refuses to pin it
PinnedPages load_host_embedding(const ModelConfig& c, DType dtype, const WeightSource& source,
                                void* memory, LoadWatch& watch) {
  constexpr int64_t kRows = 4096;
  const size_t row_bytes = tandem::row_bytes(dtype, c.dim);
  PinnedPages pinned(memory, static_cast<size_t>(c.head_rows()) * row_bytes, 0);
  if (!pinned.refusal().empty())
    throw make_error(ErrorKind::memory, kHostEmbedding,
                     "needs {} of pinned memory for the GPU to read, which the system refused: {}",
                     format_bytes(static_cast<size_t>(c.head_rows()) * row_bytes), pinned.refusal())
        .hint(
            "raise the limit of locked memory (ulimit -l, container limits), or raise "
            "run.gpu_memory_limit to keep it on the GPU");
  for (int64_t begin = 0; begin < c.head_rows(); begin += kRows) {
    const int64_t end = std::min<int64_t>(begin + kRows, c.head_rows());
    watch.add((end - begin) * c.dim);
    source.rows({Role::embedding}, begin, end, dtype,
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
  // Layers may differ in formats of codes: these are bytes of the mean layer.
  const auto bytes = [&](LayerPart part) {
    double sum = 0;
    for (int layer = 0; layer < config.n_layers; ++layer)
      sum += static_cast<double>(part_bytes(config, dtype, places, layer, part));
    return sum / config.n_layers;
  };
  const double attention = bytes(LayerPart::attention), ffn = bytes(LayerPart::ffn),
               rest = kind == ReadKind::all ? bytes(LayerPart::rest) : 0;
  const auto head = static_cast<double>(
      matrix_bytes(stored_as(config, {Role::head}, dtype), config.head_rows(), config.dim));
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
      for (const Role role : products_of(part, places))
        add(product(config, dtype, places, {role, layer}), !holds(parts, layer, part));
  if (!parts.empty()) LayerStream::plan(parts, device, plan);
  add(product(config, dtype, places, {Role::head}));
  if (has_own_embedding(config, places)) add(product(config, dtype, places, {Role::embedding}));
  if (has_host_embedding(config, places))
    plan.add(kHostEmbedding, matrix_bytes(dtype, config.head_rows(), config.dim));
  plan.add("weights/norms", static_cast<size_t>(norm_elements(config)) * sizeof(float), device);
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
  w.norms = {all, static_cast<size_t>(norm_elements(config))};
  {
    ops::Staging staging(device, arena.take("load/staging"),
                         arena.plan().find("load/staging")->bytes);
    LoadWatch watch(events, matrix_elements(config, dtype));
    const auto load = [&](MatrixId id) {
      return load_product(product(config, dtype, places, id), source, arena, staging, watch);
    };
    const auto load_part = [&](std::byte* memory, int layer, LayerPart part) {
      LayerWeights l;
      for (const Role role : products_of(part, places)) {
        const Product p = product(config, dtype, places, {role, layer});
        l[role] = load_product(p, source, memory, staging, watch);
        memory += PackedWeights::device_bytes(p.spec);
      }
      staging.wait();
      return l;
    };
    for (int layer = 0; layer < config.n_layers; ++layer) {
      LayerWeights& l = w.layers.emplace_back();
      l.norms = norms_of(config, all, layer);
      for (const LayerPart part : kLayerParts)
        if (w.stream && w.stream->holds(layer, part))
          w.stream->load([&](std::byte* memory) { return load_part(memory, layer, part); });
        else
          for (const Role role : products_of(part, places)) l[role] = load({role, layer});
    }
    w.out_norm = all + norm_offset({Role::out_norm}, config);
    w.lm_head = load({Role::head});
    if (has_own_embedding(config, places)) w.own_embedding = load({Role::embedding});
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
                                int64_t head_rows, const WeightPlaces& places) {
  size_t bytes = 0;
  const auto add = [&](MatrixId id, int64_t rows) {
    const Product p = product(config, dtype, places, id);
    bytes = std::max(bytes, PackedWeights::workspace_bytes(p.spec, rows));
  };
  add({Role::head}, head_rows);
  // Layers differ only in their formats.
  for (int layer = 0; layer < (config.formats ? config.n_layers : 1); ++layer)
    for (const LayerPart part : kLayerParts)
      for (const Role role : products_of(part, places)) add({role, layer}, max_rows);
  return bytes;
}

size_t Weights::bytes_of(std::initializer_list<Role> roles) const {
  size_t sum = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    for (const Role role : roles) {
      const LayerPart part = info(role).part;
      const int layer = static_cast<int>(i);
      const bool streams = stream && stream->holds(layer, part);
      const LayerWeights on_host = streams ? stream->on_host(layer, part) : LayerWeights{};
      const PackedWeights& w = (streams ? on_host : layers[i])[role];
      if (!w.empty()) sum += w.bytes();
    }
  return sum;
}

size_t Weights::bytes() const {
  return lm_head.bytes() + bytes_of({Role::qkv, Role::o}) + gate_up_bytes() + down_bytes();
}

size_t Weights::gate_up_bytes() const { return bytes_of({Role::gate_up, Role::rest_gate_up}); }

size_t Weights::down_bytes() const { return bytes_of({Role::down, Role::rest_down}); }

std::vector<const PackedWeights*> Weights::on_device(Role role) const {
  std::vector<const PackedWeights*> all;
  for (const LayerWeights& l : layers)
    if (!l[role].empty()) all.push_back(&l[role]);
  for (int i = 0; stream && i < stream->n_buffers(); ++i)
    if (const PackedWeights& w = stream->in_buffer(i, info(role).part)[role]; !w.empty())
      all.push_back(&w);
  return all;
}

}  // namespace tandem::model
