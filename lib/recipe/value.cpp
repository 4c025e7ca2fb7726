#include "recipe/auto_counts.h"
#include "recipe/gpu_name.h"
#include "recipe/layer_range.h"
#include "recipe/offload.h"
#include "recipe/rebuild.h"
#include "recipe/refresh.h"
#include "recipe/value_of.h"

namespace tandem::recipe {
namespace {

class EnumValue final : public Value {
 public:
  EnumValue(uint8_t& field, std::span<const std::string_view> names)
      : field_(field), names_(names) {}

  std::string type() const override {
    std::string text;
    for (const std::string_view name : names_) text.append(text.empty() ? "" : "|").append(name);
    return text;
  }
  std::string read(const Node& node, const Folders&) override {
    size_t index = 0;
    std::string problem = read_enum(node, names_.data(), names_.size(), index);
    if (problem.empty()) field_ = static_cast<uint8_t>(index);
    return problem;
  }
  std::string yaml() const override { return std::string(names_[field_]); }
  nlohmann::json json() const override { return names_[field_]; }

 private:
  uint8_t& field_;
  std::span<const std::string_view> names_;
};

}  // namespace

std::unique_ptr<Value> enum_value(uint8_t& field, std::span<const std::string_view> names) {
  return std::make_unique<EnumValue>(field, names);
}

nlohmann::json json_of(const GpuName& value) { return value.value; }

nlohmann::json json_of(const AutoCounts& counts) {
  if (counts.automatic()) return yaml_text(counts);
  if (counts.values.size() == 1 && !counts.has_auto) return counts.values.front();
  nlohmann::json list = counts.values;
  if (counts.has_auto) list.push_back("auto");
  return list;
}

nlohmann::json json_of(Offload value) {
  if (!value.any() || value.automatic()) return yaml_text(value);
  return value.layers;
}

nlohmann::json json_of(LayerRange value) { return yaml_text(value); }

nlohmann::json json_of(Refresh value) {
  if (!value.ever()) return yaml_text(value);
  return value.tokens;
}

nlohmann::json json_of(Rebuild value) {
  if (value.by_acceptance()) return yaml_text(value);
  return json_of(Refresh{value.tokens});
}

template std::unique_ptr<Value> value_of(bool&);
template std::unique_ptr<Value> value_of(int&);
template std::unique_ptr<Value> value_of(int64_t&);
template std::unique_ptr<Value> value_of(uint64_t&);
template std::unique_ptr<Value> value_of(double&);
template std::unique_ptr<Value> value_of(std::string&);
template std::unique_ptr<Value> value_of(std::filesystem::path&);
template std::unique_ptr<Value> value_of(ModelName&);
template std::unique_ptr<Value> value_of(AutoPath&);
template std::unique_ptr<Value> value_of(ByteSize&);
template std::unique_ptr<Value> value_of(TokenCount&);
template std::unique_ptr<Value> value_of(Fraction&);
template std::unique_ptr<Value> value_of(Duration&);
template std::unique_ptr<Value> value_of(std::optional<bool>&);
template std::unique_ptr<Value> value_of(std::optional<int>&);
template std::unique_ptr<Value> value_of(std::optional<double>&);
template std::unique_ptr<Value> value_of(std::optional<ByteSize>&);
template std::unique_ptr<Value> value_of(std::optional<TokenCount>&);
template std::unique_ptr<Value> value_of(std::optional<GpuName>&);
template std::unique_ptr<Value> value_of(AutoCounts&);
template std::unique_ptr<Value> value_of(Offload&);
template std::unique_ptr<Value> value_of(Refresh&);
template std::unique_ptr<Value> value_of(Rebuild&);
template std::unique_ptr<Value> value_of(LayerRange&);
template std::unique_ptr<Value> value_of(std::vector<int>&);
template std::unique_ptr<Value> value_of(std::vector<double>&);
template std::unique_ptr<Value> value_of(std::vector<std::string>&);
template std::unique_ptr<Value> value_of(std::vector<TokenCount>&);
template std::unique_ptr<Value> value_of(std::vector<std::filesystem::path>&);

}  // namespace tandem::recipe
