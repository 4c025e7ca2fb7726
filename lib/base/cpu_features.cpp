#include "base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace tandem {
namespace {

constexpr std::array kNames = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};

/// Linux gives AMX tile state only to processes that ask (arch_prctl ARCH_REQ_XCOMP_PERM).
bool request_amx() {
  constexpr long kReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kXfeatureTileData) == 0;
}

Isa detect() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::scalar;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
    return Isa::avx2;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni"))
    return Isa::avx512;
  __cpuid_count(7, 0, a, b, c, d);
  const bool amx_bf16 = (d >> 22) & 1, amx_tile = (d >> 24) & 1, amx_int8 = (d >> 25) & 1;
  return amx_bf16 && amx_tile && amx_int8 && request_amx() ? Isa::amx : Isa::avx512_bf16;
}

Isa& current() {
  static Isa isa = isa_detected();
  return isa;
}

}  // namespace

Isa isa_detected() {
  static const Isa isa = detect();
  return isa;
}

Isa isa_in_use() { return current(); }

const char* isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

void lower_isa(Isa isa) {
  current() = isa;
  // oneDNN reads this once, before its first primitive.
  constexpr std::array kOneDnn = {"SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "DEFAULT"};
  setenv("ONEDNN_MAX_CPU_ISA", kOneDnn[static_cast<size_t>(isa)], 1);
}

void lower_isa_by_environment() {
  const char* name = std::getenv("TANDEM_ISA");
  if (name != nullptr && *name != '\0') return lower_isa(isa_by_name(name, isa_detected()));
  // A parent at a lower ISA hands on its limit, under which oneDNN multiplies bf16 by scalar code.
  unsetenv("ONEDNN_MAX_CPU_ISA");
}

Isa isa_by_name(const std::string& name, Isa best) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name != kNames[i]) continue;
    const auto isa = static_cast<Isa>(i);
    if (isa > best)
      throw make_error(ErrorKind::device, "TANDEM_ISA",
                       "'{}' is not supported by this CPU ({}), which has {}", name,
                       cpu_model_name(), isa_name(best))
          .hint("unset TANDEM_ISA or lower it");
    return isa;
  }
  throw usage_error("TANDEM_ISA", "unknown instruction set '{}'", name)
      .hint("one of: scalar, avx2, avx512, avx512_bf16, amx");
}

std::string cpu_model_name() {
  std::ifstream f("/proc/cpuinfo");
  for (std::string line; std::getline(f, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

}  // namespace tandem
