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
/// Lowers the ISA for our kernels and for oneDNN, to at most isa_detected(). Call before the first
/// kernel runs.
void lower_isa(Isa isa);
/// Lowers the ISA to the one that the variable TANDEM_ISA names; unset or empty means
/// isa_detected(). oneDNN's limit follows, in place of ONEDNN_MAX_CPU_ISA.
/// errors   as isa_by_name
void lower_isa_by_environment();
/// The ISA that TANDEM_ISA names ("scalar", "avx2", "avx512", "avx512_bf16", "amx"), on a CPU that
/// has `best`.
/// errors   kind usage for an unknown name; kind device for one above `best`
Isa isa_by_name(const std::string& name, Isa best);
const char* isa_name(Isa isa);
/// Model name of the CPU as /proc/cpuinfo gives it.
std::string cpu_model_name();

}  // namespace tandem
