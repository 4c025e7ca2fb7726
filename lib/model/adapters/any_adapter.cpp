#include "model/adapters/any_adapter.h"

#include "base/error.h"

namespace tandem::model {

AnyAdapter open_adapter(const std::filesystem::path& path, const ModelConfig& config,
                        const AdapterBase& base, OtherBase other) {
  const std::filesystem::path folder = adapter_folder(path);
  if (LowRankAdapter::is_at(folder))
    return with_remedy("copy the folder again, or save the adapter again with PEFT",
                       [&] { return LowRankAdapter::open(folder, config); });
  return with_remedy(
      "if the file is damaged, download or copy it again, or train the adapter again",
      [&] { return Adapter::open(folder, config, base, other); });
}

const io::Safetensors& file_of(const AnyAdapter& adapter) {
  return std::visit([](const auto& a) -> const io::Safetensors& { return a.file(); }, adapter);
}

bool holds(const AnyAdapter& adapter, MatrixId id) {
  return std::visit([&](const auto& a) { return a.holds(id); }, adapter);
}

}  // namespace tandem::model
