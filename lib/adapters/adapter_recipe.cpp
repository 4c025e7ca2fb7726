#include "adapters/adapter_recipe.h"

#include <cmath>
#include <cstdlib>

#include "recipe/fields_of.h"
#include "recipe/scalar.h"
#include "recipe/value_of.h"

namespace tandem::adapters {

std::string read_item(const recipe::Node& node, const recipe::Folders& models, GivenAdapter& out) {
  const size_t equals = node.scalar.rfind('=');
  if (node.kind != recipe::Node::Kind::scalar)
    return recipe::read_item<GivenAdapter>(node, models, out);
  const auto part = [&](std::string text) {
    return recipe::scalar_node(std::move(text), node.origin);
  };
  const bool weighted = equals != std::string::npos && equals + 1 < node.scalar.size();
  const char* const text = weighted ? node.scalar.c_str() + equals + 1 : "";
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  const bool has_weight = weighted && *end == '\0';
  if (has_weight && !std::isfinite(number))
    return fmt::format("the weight is {}, expected a number", text);
  recipe::Node map = recipe::nest("path", part(node.scalar.substr(0, has_weight ? equals : -1ul)));
  map.origin = node.origin;
  if (has_weight) recipe::merge(map, recipe::nest("weight", part(text)));
  return recipe::read_item<GivenAdapter>(map, models, out);
}

void AdapterRecipe::check(recipe::Problems& p) const {
  const AdapterForm to = adapter.to;
  if (adapter.adapters.empty() && adapter.tuned.value.empty() && to != AdapterForm::model)
    p.field("adapter.adapters",
            "adapter.adapters: is empty: add --adapter FOLDER, or --tuned FOLDER");
  for (const GivenAdapter& given : adapter.adapters)
    if (given.path.empty())
      p.field("adapter.adapters",
              "adapter.adapters: expected the path of a folder, found an empty one");
  if (!adapter.adapters.empty() && !adapter.tuned.value.empty())
    p.field("adapter.tuned",
            "adapter.tuned: cannot be combined with adapter.adapters: set only one of them");
  if (to != AdapterForm::summary && (output.path.empty() || output.path == "-"))
    p.field("output.path", "output.path: expected a folder for the {}: add -o FOLDER",
            to == AdapterForm::model ? "model" : "adapter");
  if (to == AdapterForm::model && model.path.value.starts_with("synthetic:"))
    p.field("adapter.to", "adapter.to: model needs a base in a folder, found a synthetic model");
  if (!adapter.ranks.empty() && to != AdapterForm::summary)
    p.field(
        "adapter.ranks",
        "adapter.ranks: needs adapter.to summary, since it only prints a table: leave out --to");
  if (!adapter.to_lora() && adapter.rank != 0)
    p.field("adapter.rank", "adapter.rank: needs adapter.to lora: add --to lora");
  if (adapter.rank == 0 && adapter.max_error != 1)
    p.field("adapter.max_error", "adapter.max_error: needs adapter.rank: add --to lora --rank K");
  AdapterOutput usual;
  usual.path = output.path;
  if (to == AdapterForm::summary && adapter.verify && !recipe::is_quantized(output.weights))
    usual.weights = output.weights;
  if (to != AdapterForm::model && output != usual)
    p.field("output.weights",
            "output.weights: needs a merged model, as group, head, embedding and scale_search do: "
            "add --to model, or verify a summary of bf16 or f32");
}

void AdapterOutput::check(recipe::Problems& p) const {
  using recipe::WeightType;
  if (group != 0 && group != 32 && group != 64 && group != 128)
    p.field("group", "output.group: expected 32, 64 or 128, or 0 for the default, found {}", group);
  else if (gguf() && group != 0 && group != 32)
    p.field("group", "output.group: blocks of GGUF have 32 weights, found {}: leave it out", group);
  if (!gguf() && recipe::is_quantized(embedding))
    p.field("embedding",
            "output.embedding: compressed-tensors quantizes only linear layers: leave it out, or "
            "write a GGUF file");
  for (const auto& [key, type] : {std::pair{"weights", weights}, {"head", head}})
    if (gguf() && type == WeightType::fp8)
      p.field(key, "output.{}: GGUF has no fp8: write a folder, or choose int8 or int4", key);
  const auto needs = [&](const char* key, bool usual, const char* types) {
    if (!usual)
      p.field(key, "output.{0}: needs weights {1}, found {2}: set weights, or leave {0} out", key,
              types, recipe::yaml_text(weights));
  };
  if (!recipe::is_quantized(weights)) {
    needs("head", head == WeightType::automatic, "int8, int4 or fp8");
    needs("embedding", embedding == WeightType::automatic, "int8, int4 or fp8");
  }
  if (recipe::has_groups(weights) || recipe::has_groups(head)) return;
  needs("group", group == 0, "int8 or int4");
  needs("scale_search", scale_search, "int8 or int4");
}

}  // namespace tandem::adapters

template tandem::recipe::Field tandem::recipe::fields_of(tandem::adapters::AdapterRecipe&);
