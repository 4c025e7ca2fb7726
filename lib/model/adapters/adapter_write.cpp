#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "model/adapters/adapter.h"
#include "model/adapters/adapter_format.h"

namespace tandem::model {
namespace {

using Json = nlohmann::ordered_json;

/// Which features of its matrix a module's slice is of: those that go in (columns) or come out.
constexpr const char* kKinds = R"({"q_proj":"out","k_proj":"out","v_proj":"out","o_proj":"in",)"
                               R"("gate_proj":"out","up_proj":"out","down_proj":"in"})";

void add_slice(const AdapterSlice& slice, std::vector<io::TensorView>& tensors) {
  const auto n = static_cast<int64_t>(slice.index.size());
  const auto other = static_cast<int64_t>(slice.values.size()) / n;
  TANDEM_CHECK(other * n == static_cast<int64_t>(slice.values.size()),
               "{} values do not divide evenly among {} features", slice.values.size(), n);
  const std::string prefix = adapter_prefix(slice.id);
  tensors.push_back(
      {prefix + "index", DType::i32, {n}, std::as_bytes(std::span<const int32_t>(slice.index))});
  tensors.push_back({prefix + "value", DType::f32,
                     ends_in_stream(slice.id.role) ? io::Shape{other, n} : io::Shape{n, other},
                     std::as_bytes(slice.values)});
}

std::vector<io::TensorView> tensors_of(std::span<const AdapterSlice> slices) {
  std::vector<io::TensorView> tensors;
  for (const AdapterSlice& slice : slices) add_slice(slice, tensors);
  return tensors;
}

std::map<std::string, std::string> metadata_of(const AdapterInfo& info) {
  return {{kAdapterFormatKey, kAdapterFormat},
          {kAdapterVersionKey, kAdapterVersion},
          {kAdapterModeKey, kAdapterMode},
          {kAdapterBaseKey, info.base.name},
          {kAdapterFingerprintKey, info.base.fingerprint},
          {kAdapterStepsKey, std::to_string(info.steps)},
          {kAdapterSelectionKey, info.selection},
          {kAdapterKindKey, kKinds},
          {kAdapterDtypeKey, "F32"}};
}

}  // namespace

std::vector<std::byte> adapter_bytes(const AdapterInfo& info,
                                     std::span<const AdapterSlice> slices) {
  return io::safetensors_bytes(tensors_of(slices), metadata_of(info));
}

void write_adapter(const std::filesystem::path& folder, const AdapterInfo& info,
                   std::span<const AdapterSlice> slices) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw input_error(folder.string(), "cannot create the folder: {}", code.message());
  const std::map<std::string, std::string> metadata = metadata_of(info);
  Json config = metadata;
  for (const char* key : {kAdapterSelectionKey, kAdapterKindKey})
    config[key] = Json::parse(metadata.at(key));
  // Without the first file there is no adapter: one that was here is gone before its tensors are
  // replaced, and the new one is there when they are.
  std::filesystem::remove(folder / kAdapterConfigFile, code);
  if (code)
    throw input_error((folder / kAdapterConfigFile).string(), "cannot replace the file: {}",
                      code.message());
  io::write_safetensors(folder / kAdapterTensorFile, tensors_of(slices), metadata,
                        io::kChecksumBlock);
  io::AtomicFile file(folder / kAdapterConfigFile);
  file.write(config.dump(2) + "\n");
  file.commit();
}

}  // namespace tandem::model
