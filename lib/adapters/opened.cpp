#include "adapters/opened.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "model/adapters/extract_slices.h"

namespace tandem::adapters {
namespace {

namespace fs = std::filesystem;

bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code code;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path), code),
                 outer = fs::canonical(folder, code);
  if (code) return false;
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

}  // namespace

std::unique_ptr<model::WeightSource> OpenedAdapters::merged_with(
    std::vector<model::WeightedAdapter> which) const {
  decode::ModelFiles again = decode::open_model(base_path, seed);
  if (again.config.head.tied && !base.config.head.tied) decode::untie(again);
  return model::fused_source(std::move(again.source), std::move(which), base.config);
}

bool OpenedAdapters::all_slices() const {
  return std::ranges::all_of(adapters, [](const model::WeightedAdapter& given) {
    return std::holds_alternative<model::Adapter>(given.adapter);
  });
}

OpenedAdapters open_adapters(const AdapterRecipe& recipe) {
  const auto seed = static_cast<uint64_t>(recipe.run.seed);
  OpenedAdapters opened{.base = decode::open_model(recipe.model.path.value, seed),
                        .base_path = recipe.model.path.value,
                        .seed = seed,
                        .paths = {},
                        .adapters = {}};
  for (const GivenAdapter& given : recipe.adapter.adapters) {
    opened.paths.push_back(model::adapter_folder(given.path).string());
    opened.adapters.push_back({decode::open_adapter(given.path, recipe.adapter.force, opened.base),
                               static_cast<float>(given.weight)});
  }
  if (decode::unties(opened.adapters)) decode::untie(opened.base);
  return opened;
}

std::vector<std::string> repeated(const OpenedAdapters& opened) {
  std::vector<std::string> found;
  for (size_t i = 1; i < opened.paths.size(); ++i)
    if (std::ranges::any_of(std::span(opened.paths).first(i), [&](const std::string& path) {
          std::error_code code;
          return fs::equivalent(path, opened.paths[i], code);
        }))
      found.push_back(opened.paths[i]);
  return found;
}

void check_exclusive(const OpenedAdapters& opened, std::span<const model::Overlap> overlaps) {
  if (overlaps.empty()) return;
  const model::Overlap& o = overlaps.front();
  const int unit = model::unit_features(o.id.role, opened.base.config);
  throw input_error(
      opened.paths[o.second],
      "changes {} of the {} of {} that {} also changes, the first of {} shared matrices", o.units,
      unit > 1 ? "heads" : "channels", model::canonical_name(o.id), opened.paths[o.first],
      overlaps.size())
      .hint(
          "train the second with train.select.exclude=[the first], or leave out adapter.exclusive "
          "to add them up");
}

void add_extracted(OpenedAdapters& opened, const std::string& tuned,
                   const model::WeightProgress& progress) {
  const decode::ModelFiles &base = opened.base, files = decode::open_model(tuned, opened.seed);
  const std::vector<model::OwnedSlice> slices = model::extract_slices(
      {base.config, *base.source, base.name}, {files.config, *files.source, tuned}, progress);
  const model::AdapterBase of{base.name, base.fingerprint};
  const nlohmann::json selection = {{"strategy", "extracted"}, {"tuned", files.fingerprint}};
  auto tensors =
      model::adapter_bytes({.base = of, .selection = selection.dump()}, model::slice_views(slices));
  opened.paths = {tuned};
  opened.adapters = {
      {model::Adapter::parse(io::Safetensors::hold(std::move(tensors), tuned), base.config, of)}};
}

void check_apart(const AdapterRecipe& recipe, const OpenedAdapters& opened) {
  const fs::path& output = recipe.output.path;
  if (output.empty() || output == "-") return;
  std::vector<fs::path> inputs;
  if (!opened.base.synthetic()) inputs.push_back(opened.base.folder);
  if (!recipe.adapter.tuned.value.empty()) inputs.emplace_back(recipe.adapter.tuned.value);
  for (const std::string& path : opened.paths) inputs.emplace_back(path);
  for (const GivenAdapter& given : recipe.adapter.adapters) {
    std::error_code code;  // a run's folder may get new files, but it is no output itself
    if (fs::equivalent(output, given.path, code))
      throw usage_error(output.string(), "expected a new folder, found an input adapter")
          .hint("name a new folder with -o");
  }
  for (const fs::path& input : inputs)
    if (is_within(output, input))
      throw usage_error(output.string(),
                        "expected a folder outside the inputs, found one inside {}", input.string())
          .hint("with -o, name a folder outside the base model and the adapters");
}

}  // namespace tandem::adapters
