#pragma once
#include <cstdint>
#include <string>

namespace tandem {

/// Instruction sets that kernels are compiled for, weakest first; each includes those before it.
enum class Isa : uint8_t { scalar, avx2, avx512, avx512_bf16, amx };

/// The best of them that CPU and operating system offer.
Isa isa_detected();
/// The one in use: detected, or lowered once by lower_isa.
Isa isa_in_use();
/// Lowers the ISA to the named one ("scalar", "avx2", "avx512", "avx512_bf16", "amx"), for our
/// kernels and for oneDNN. Call before the first kernel runs.
/// errors   kind usage for an unknown name; kind device if the CPU lacks it.
void lower_isa(const std::string& name);
const char* isa_name(Isa isa);
/// Model name of the CPU as /proc/cpuinfo gives it.
std::string cpu_model_name();

}  // namespace tandem
