#include "ffn/thresholds.h"

#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::ffn {
namespace {

constexpr const char* kFormat = "ffn-thresholds/1";
constexpr size_t kMostBytes = size_t{1} << 20;
constexpr size_t kMostLayers = 4096;

}  // namespace

Thresholds parse_thresholds(std::string_view text, const std::string& where) {
  const io::Json json = io::parse_json(text, where);
  io::check_format(json, kFormat, where);
  Thresholds t{.model = io::get_string(json, "model", where),
               .fingerprint = io::get_string(json, "fingerprint", where),
               .keep = io::get_double(json, "keep", where),
               .values = {}};
  if (!(t.keep > 0 && t.keep <= 1))
    throw input_error(where, "keep is {}, expected a share above 0 and up to 1", t.keep);
  const io::Json& values = io::get_array(json, "thresholds", where);
  if (values.empty() || values.size() > kMostLayers)
    throw input_error(where, "thresholds: expected 1 to {} numbers, found {}", kMostLayers,
                      values.size());
  for (const io::Json& value : values) {
    const auto x = value.is_number() ? static_cast<float>(value.get<double>()) : -1.0f;
    if (!(x >= 0 && std::isfinite(x)))
      throw input_error(where, "thresholds[{}]: expected a number of at least 0, found {}",
                        t.values.size(), io::describe(value));
    t.values.push_back(x);
  }
  return t;
}

std::string thresholds_text(const Thresholds& t) {
  return io::Json{{"format", kFormat},
                  {"model", t.model},
                  {"fingerprint", t.fingerprint},
                  {"keep", t.keep},
                  {"thresholds", t.values}}
             .dump(1) +
         "\n";
}

Thresholds read_thresholds(const std::filesystem::path& path, const Bounds& bounds) {
  const std::string where = path.string();
  Thresholds t = parse_thresholds(io::read_file(path, kMostBytes), where);
  if (!bounds.fingerprint.empty() && t.fingerprint != bounds.fingerprint)
    throw input_error(where, "was measured on another model, {}", io::quote(t.model))
        .hint("measure thresholds of model.path with pig-eval, task channels");
  if (std::ssize(t.values) != bounds.shape.n_layers)
    throw input_error(where, "has thresholds for {} layers, the model has {}", t.values.size(),
                      bounds.shape.n_layers);
  return t;
}

}  // namespace tandem::ffn
