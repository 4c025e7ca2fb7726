#include "recipe/sections.h"

namespace tandem::recipe {
namespace {

/// cuda or cuda:N[,M..] with ordinals of up to three digits.
bool is_cuda_list(std::string_view device) {
  if (!device.starts_with("cuda")) return false;
  device.remove_prefix(4);
  if (device.empty()) return true;
  if (device[0] != ':') return false;
  size_t digits = 0;
  for (const char c : device.substr(1)) {
    if (c >= '0' && c <= '9' && digits < 3)
      ++digits;
    else if (c == ',' && digits > 0)
      digits = 0;
    else
      return false;
  }
  return digits > 0;
}

}  // namespace

void Run::check(Problems& p) const {
  if (device != "auto" && device != "cpu" && !is_cuda_list(device))
    p.field("device", "run.device: expected auto, cpu, cuda or cuda:N[,M..], found '{}'", device);
}

}  // namespace tandem::recipe
