#include "train/export/export_packed.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/adapters/each_piece.h"
#include "model/families/family.h"
#include "model/weights/pack_quantized.h"
#include "train/export/export_model.h"

namespace tandem::train {
namespace {

namespace pack_quantized = model::pack_quantized;

constexpr int64_t kZerosOfWord = pack_quantized::codes_of_word(4);

int bits_of(const WeightFormat& format) { return format.code == Code::i4 ? 4 : 8; }

/// Tensors that a matrix of the checkpoint becomes.
enum class PackedPart : uint8_t { vector, numbers, codes, zeros, scales, shape };

struct PackedTensor {
  PackedPart part;
  size_t matrix;  // index of matrices
};

/// A tensor of the checkpoint: one matrix, or some below each other.
struct PackedMatrix {
  std::string name;
  io::Shape shape;
  WeightFormat format;
  std::vector<model::MatrixId> ids;
  std::vector<std::byte> scales = {};  // [out, groups], once the codes are written
  std::vector<uint8_t> zeros = {};     // [out, groups]
};

std::string module_of(const std::string& tensor) {
  constexpr std::string_view kEnd = ".weight";
  return tensor.substr(0, tensor.size() - kEnd.size());
}

std::vector<PackedMatrix> matrices_of(
    const model::ModelConfig& config,
    const std::function<WeightFormat(model::MatrixId)>& format_of) {
  std::vector<PackedMatrix> matrices;
  for (const model::MatrixId& id : model::all_matrices(config)) {
    const auto [name, first, shape] = model::stored_part(id, config);
    if (first > 0) {
      matrices.back().ids.push_back(id);
      continue;
    }
    // Norms and biases are f32 in a running model: a bf16 copy would be another model.
    const WeightFormat format = shape.size() == 1 ? WeightFormat(DType::f32) : format_of(id);
    TANDEM_CHECK(!is_coded(format) || id.role != model::Role::embedding,
                 "compressed-tensors has no codes of embeddings");
    matrices.push_back({.name = name, .shape = shape, .format = format, .ids = {id}});
  }
  return matrices;
}

size_t scale_size(const WeightFormat& format) {
  return format.scale == ScaleType::f32 ? sizeof(float) : sizeof(f16);
}

bool is_fp8(const WeightFormat& format) { return format.code == Code::fp8; }

std::string name_of(const WeightFormat& format) {
  return is_fp8(format) ? "float-quantized" : std::string(pack_quantized::kName);
}

io::Json scheme_of(const WeightFormat& format) {
  const bool rows = format.group == 0;
  return {{"num_bits", bits_of(format)},
          {"type", is_fp8(format) ? "float" : "int"},
          {"symmetric", format.zero == Zero::none},
          {"strategy", rows ? "channel" : "group"},
          {"group_size", rows ? io::Json() : io::Json(format.group)},
          {"dynamic", false},
          {"actorder", nullptr},
          {"block_structure", nullptr},
          {"observer", "minmax"},
          {"observer_kwargs", io::Json::object()}};
}

/// The section of config.json that says how weights are stored.
io::Json quantization_config(std::span<const PackedMatrix> matrices) {
  constexpr const char* kHead = "lm_head";
  io::Json groups = io::Json::object(), ignored = io::Json::array();
  const auto add = [&](const WeightFormat& format, const char* target) {
    groups["group_" + std::to_string(groups.size())] = {{"targets", {target}},
                                                        {"weights", scheme_of(format)},
                                                        {"input_activations", nullptr},
                                                        {"output_activations", nullptr},
                                                        {"format", name_of(format)}};
  };
  const PackedMatrix *head = nullptr, *layers = nullptr;
  for (const PackedMatrix& m : matrices) {
    if (m.ids.front().role == model::Role::head) head = &m;
    if (layers == nullptr && model::in_layers(m.ids.front().role) && is_coded(m.format))
      layers = &m;
  }
  const bool mixed = layers != nullptr && head != nullptr && is_coded(head->format) &&
                     is_fp8(layers->format) != is_fp8(head->format);
  if (layers != nullptr) add(layers->format, "Linear");
  if (head == nullptr || !is_coded(head->format))
    ignored.push_back(kHead);
  else if (layers == nullptr || layers->format != head->format)
    add(head->format, kHead);
  return {{"quant_method", pack_quantized::kMethod},
          {"format", mixed ? std::string("mixed-precision")
                           : name_of((layers != nullptr ? layers : head)->format)},
          {"quantization_status", "compressed"},
          {"config_groups", groups},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr}};
}

void add_quantization(const std::filesystem::path& path, std::span<const PackedMatrix> matrices) {
  io::Json config = io::parse_json(io::read_file(path), path.string());
  config["quantization_config"] = quantization_config(matrices);
  io::AtomicFile file(path);
  file.write(config.dump(2) + "\n");
  file.commit();
}

/// Describes the tensors of a matrix, and remembers what they are.
void describe_packed(const PackedMatrix& m, size_t index, std::vector<io::TensorView>& tensors,
                     std::vector<PackedTensor>& stored) {
  const auto add = [&](PackedPart part, const std::string& name, DType type, io::Shape shape) {
    tensors.push_back({name, type, std::move(shape), {}});
    stored.push_back({part, index});
  };
  if (!is_coded(m.format))
    return add(m.shape.size() == 1 ? PackedPart::vector : PackedPart::numbers, m.name,
               numbers_of(m.format), m.shape);
  const auto name = [&](std::string_view end) { return module_of(m.name) + std::string(end); };
  const int64_t out = m.shape[0], in = m.shape[1], groups = in / cut_unit(m.format, in);
  if (is_fp8(m.format)) {
    add(PackedPart::codes, m.name, DType::u8, {out, in});
    tensors.back().spelling = "F8_E4M3";
    add(PackedPart::scales, name(pack_quantized::kScales), DType::f32, {out, groups});
    return;
  }
  add(PackedPart::codes, name(pack_quantized::kCodes), DType::i32,
      {out, in / pack_quantized::codes_of_word(bits_of(m.format))});
  if (m.format.zero == Zero::integer)
    add(PackedPart::zeros, name(pack_quantized::kZeros), DType::i32,
        {(out + kZerosOfWord - 1) / kZerosOfWord, groups});
  add(PackedPart::scales, name(pack_quantized::kScales), DType::f16, {out, groups});
  add(PackedPart::shape, name(pack_quantized::kShape), DType::i64, {2});
}

/// Hands over the rows of a matrix, or its codes without scales and zeros, which it keeps.
void write_rows(PackedMatrix& m, const model::ModelConfig& config,
                const model::WeightSource& source, const io::ByteSink& sink) {
  const int64_t in = m.shape[1], each = std::max<int64_t>(1, model::kWeightPiece / in);
  const bool coded = is_coded(m.format);
  std::vector<std::byte> rows, words, scales;
  for (const model::MatrixId& id : m.ids) {
    const int64_t n_rows = model::shape_of(id.role, config)[0];
    for (int64_t begin = 0; begin < n_rows; begin += each) {
      const int64_t n = std::min(each, n_rows - begin);
      rows.resize(matrix_bytes(m.format, n, in));
      source.rows(id, begin, begin + n, m.format, rows.data());
      if (!coded) {
        sink(rows);
        continue;
      }
      words.resize(static_cast<size_t>(n * in * bits_of(m.format) / 8));
      scales.resize(static_cast<size_t>(n * in / cut_unit(m.format, in)) * scale_size(m.format));
      split_codes(m.format, in, n, rows.data(), words.data(), scales.data(), m.zeros);
      m.scales.insert(m.scales.end(), scales.begin(), scales.end());
      sink(words);
    }
  }
}

}  // namespace

std::vector<uint32_t> pack_zeros(std::span<const uint8_t> zeros, int64_t rows, int64_t groups) {
  std::vector<uint32_t> words(
      static_cast<size_t>((rows + kZerosOfWord - 1) / kZerosOfWord * groups));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t g = 0; g < groups; ++g)
      words[static_cast<size_t>(row / kZerosOfWord * groups + g)] |=
          uint32_t{zeros[static_cast<size_t>(row * groups + g)]} << 4 * (row % kZerosOfWord);
  return words;
}

void split_codes(const WeightFormat& format, int64_t in, int64_t n, const std::byte* rows,
                 std::byte* words, std::byte* scales, std::vector<uint8_t>& zeros) {
  const int64_t group = cut_unit(format, in);
  const auto n_codes = static_cast<size_t>(group * bits_of(format) / 8);
  for (int64_t g = 0; g < n * (in / group); ++g) {
    std::transform(rows, rows + n_codes, words, [&](std::byte code) {
      return format.code == Code::i8 ? code ^ std::byte{0x80} : code;
    });
    rows += n_codes;
    words += n_codes;
    std::memcpy(scales, rows, scale_size(format));
    rows += scale_size(format);
    scales += scale_size(format);
    if (format.zero == Zero::integer) zeros.push_back(static_cast<uint8_t>(*rows++));
  }
}

void export_packed(const std::filesystem::path& folder, const std::filesystem::path& base,
                   const model::ModelConfig& config, const model::WeightSource& source,
                   const std::function<WeightFormat(model::MatrixId)>& format_of,
                   const std::function<bool(double share)>& progress) {
  export_files(folder, base, config);
  std::vector<PackedMatrix> matrices = matrices_of(config, format_of);
  add_quantization(folder / "config.json", matrices);
  std::vector<io::TensorView> tensors;
  std::vector<PackedTensor> stored;
  for (size_t i = 0; i < matrices.size(); ++i) describe_packed(matrices[i], i, tensors, stored);
  size_t total = 0, written = 0;
  for (const PackedMatrix& m : matrices)
    total += matrix_bytes(m.format, m.shape.front(), m.shape.size() > 1 ? m.shape[1] : 1);
  const auto write = [&](size_t i, const io::ByteSink& to) {
    const io::ByteSink sink = [&](std::span<const std::byte> bytes) {
      to(bytes);
      written += bytes.size();
      if (progress &&
          !progress(std::min(1.0, static_cast<double>(written) / static_cast<double>(total))))
        throw Error(ErrorKind::interrupted, folder.string(), "the model was not written");
    };
    PackedMatrix& m = matrices[stored[i].matrix];
    switch (stored[i].part) {
      case PackedPart::vector: {
        const std::vector<float> numbers = source.vector(m.ids.front());
        return sink(std::as_bytes(std::span(numbers)));
      }
      case PackedPart::numbers:
      case PackedPart::codes:
        return write_rows(m, config, source, sink);
      case PackedPart::zeros: {
        const int64_t groups = m.shape[1] / cut_unit(m.format, m.shape[1]);
        const std::vector<uint32_t> words = pack_zeros(m.zeros, m.shape[0], groups);
        return sink(std::as_bytes(std::span(words)));
      }
      case PackedPart::scales:
        // fp8 codes come later in the file.
        if (is_fp8(m.format)) write_rows(m, config, source, [](std::span<const std::byte>) {});
        sink(m.scales);
        return m.scales.clear();
      case PackedPart::shape:
        return sink(std::as_bytes(std::span(m.shape)));
    }
  };
  // Files are laid out by falling element size: words come before zeros and f16 scales, fp8 codes
  // after their scales in f32.
  io::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}}, write);
}

}  // namespace tandem::train
