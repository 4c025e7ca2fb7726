#include "adapters/model_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/convert.h"
#include "base/error.h"
#include "io/gguf_write.h"
#include "model/gguf/gguf_export.h"
#include "model/weights/quantized_source.h"
#include "text/gguf_tokenizer.h"

namespace tandem::adapters {
namespace {

using recipe::WeightType;

constexpr int kGgufGroup = 32, kFolderGroup = 64;

/// bf16 if all matrices of the base are; in f32 no other type loses a bit.
DType numbers_of(const decode::ModelFiles& files) {
  if (files.synthetic()) return DType::bf16;
  const auto is_bf16 = [&](model::MatrixId id) {
    return !model::is_matrix(id.role) || files.source->native(id) == DType::bf16;
  };
  return std::ranges::all_of(model::all_matrices(files.config), is_bf16) ? DType::bf16 : DType::f32;
}

WeightFormat format_of(WeightType type, DType numbers, const AdapterOutput& output) {
  const bool gguf = output.gguf();
  if (type == WeightType::automatic) return numbers;
  if (!recipe::is_quantized(type)) return type == WeightType::f32 ? DType::f32 : DType::bf16;
  const int group = output.group != 0 ? output.group : gguf ? kGgufGroup : kFolderGroup;
  WeightFormat format = decode::quantized_format(type, group);
  if (gguf) format.zero = Zero::none;  // Q4_0 has none
  return format;
}

/// "int4 in groups of 64", or "bf16".
std::string words_of(const WeightFormat& format) {
  if (!is_coded(format)) return format_name(format);
  if (format.code == Code::fp8) return "fp8";
  return fmt::format("{} in groups of {}", format.code == Code::i4 ? "int4" : "int8", format.group);
}

void check_group(model::MatrixId id, const WeightFormat& format, const model::ModelConfig& config) {
  const int64_t in = model::shape_of(id.role, config).back();
  if (in % cut_unit(format, in) != 0)
    throw recipe_error("output.group", "groups of {} weights do not divide the {} inputs of {}",
                       format.group, in, model::canonical_name(id))
        .hint("set another output.group, or write a GGUF file");
}

}  // namespace

ModelFormats::ModelFormats(const decode::ModelFiles& base, const AdapterOutput& output)
    : config_(base.config) {
  const WeightType layers = output.weights;
  const bool codes = recipe::is_quantized(layers), tied = config_.head.tied, gguf = output.gguf();
  numbers_ = layers == WeightType::f32         ? DType::f32
             : layers == WeightType::automatic ? numbers_of(base)
                                               : DType::bf16;
  if (tied && !gguf && recipe::is_quantized(output.head))
    throw recipe_error("output.head",
                       "the head is tied to the embedding, and compressed-tensors quantizes only "
                       "linear layers")
        .hint("leave output.head out, or write a GGUF file");
  const auto outer = [&](WeightType given, bool quantizes) {
    if (given == WeightType::automatic && codes)
      given = !quantizes ? WeightType::bf16 : layers == WeightType::fp8 ? layers : WeightType::int8;
    return format_of(given == WeightType::automatic ? layers : given, numbers_, output);
  };
  for (const model::MatrixId& id : model::all_matrices(config_)) {
    if (!model::is_matrix(id.role)) continue;
    WeightFormat format = format_of(layers, numbers_, output);
    if (id.role == model::Role::head) format = outer(output.head, true);
    if (id.role == model::Role::embedding)
      format = outer(tied ? output.head : output.embedding, gguf);
    if (!gguf) check_group(id, format, config_);
    formats_.emplace(id, format);
  }
}

bool ModelFormats::coded() const {
  return std::ranges::any_of(formats_, [](const auto& f) { return is_coded(f.second); });
}

std::string ModelFormats::text() const {
  const WeightFormat layers = formats_.at({model::Role::q}),
                     embedding = formats_.at({model::Role::embedding});
  const auto head = formats_.find({model::Role::head});
  std::string text = words_of(layers);
  if (head != formats_.end() && head->second != layers) text += ", head " + words_of(head->second);
  if (embedding != layers) text += ", embedding " + words_of(embedding);
  return text;
}

size_t ModelFormats::bytes() const {
  size_t n = 0;
  for (const model::MatrixId& id : model::all_matrices(config_)) {
    const io::Shape shape = model::shape_of(id.role, config_);
    const auto at = formats_.find(id);
    n += matrix_bytes(at == formats_.end() ? WeightFormat(DType::f32) : at->second, shape.front(),
                      shape.size() > 1 ? shape[1] : 1);
  }
  return n;
}

std::unique_ptr<model::WeightSource> source_in(const ModelFormats& formats,
                                               const OpenedAdapters& opened, bool scale_search) {
  const model::ModelConfig& config = opened.base.config;
  // Rows that are not entire blocks stay numbers.
  const auto format_of = [&](model::MatrixId id) -> std::optional<WeightFormat> {
    const WeightFormat format = formats.of(id);
    const int64_t in = model::shape_of(id.role, config).back();
    const bool divides = is_coded(format) && in % cut_unit(format, in) == 0;
    return divides ? std::optional(format) : std::nullopt;
  };
  return model::quantized_source(config, opened.merged(), format_of, scale_search);
}

void write_gguf(const std::filesystem::path& path, const OpenedAdapters& opened,
                const ModelFormats& formats, const model::WeightSource& source,
                io::Existing existing, const std::function<bool(double share)>& progress) {
  const decode::ModelFiles& base = opened.base;
  const model::GgufExport model(
      base.config, source, [&](model::MatrixId id) { return formats.of(id); },
      base.folder.string());
  io::GgufWriter writer;
  model.describe(writer);
  if (base.tokenizer) {
    text::add_tokenizer(writer, base.folder, *base.tokenizer, base.config.vocab_size,
                        base.config.eos_ids);
  } else {
    writer.text("tokenizer.ggml.model", "no_vocab");
    text::add_end_ids(writer, base.config.eos_ids);
  }
  size_t written = 0;
  const size_t total = writer.data_bytes();
  writer.write(
      path,
      [&](size_t i, const io::ByteSink& sink) {
        model.write(i, [&](std::span<const std::byte> bytes) {
          sink(bytes);
          written += bytes.size();
          if (progress && !progress(static_cast<double>(written) / static_cast<double>(total)))
            throw Error(ErrorKind::interrupted, path.string(), "the model was not written");
        });
      },
      existing);
}

int64_t verify_written(const std::filesystem::path& path, const OpenedAdapters& opened,
                       const ModelFormats& formats, const model::WeightSource& source,
                       const model::WeightProgress& progress) {
  const model::ModelConfig& config = opened.base.config;
  const decode::ModelFiles read = decode::open_model(path.string(), opened.seed);
  const auto refuse = [&](const std::string& what) {
    throw make_error(ErrorKind::numeric, what, "{} holds other values than were written",
                     path.string());
  };
  int64_t equal = 0;
  for (const model::MatrixId& id : model::all_matrices(config)) {
    const io::Shape shape = model::shape_of(id.role, config);
    if (shape.size() == 1) {
      if (read.source->vector(id) != source.vector(id)) refuse(model::canonical_name(id));
      equal += shape.front();
      continue;
    }
    const WeightFormat format = formats.of(id);
    const bool halves = is_coded(format) && shape.back() % cut_unit(format, shape.back()) != 0,
               bf16s = format == DType::bf16;
    model::each_piece(source, *read.source, id, shape, progress,
                      [&](int64_t, std::span<const float> ours, std::span<const float> theirs) {
                        const auto rounded = [&](float x) {
                          return halves ? to_float(to_f16(x)) : bf16s ? to_float(to_bf16(x)) : x;
                        };
                        if (!std::ranges::equal(ours, theirs, {}, rounded))
                          refuse(model::canonical_name(id));
                      });
    equal += shape[0] * shape[1];
  }
  for (const int id : config.eos_ids)
    if (std::ranges::find(read.config.eos_ids, id) == read.config.eos_ids.end())
      refuse(fmt::format("end-of-text id {}", id));
  return equal;
}

}  // namespace tandem::adapters
